"""The functions that touch single records, and CRC-32C, compiled if possible.

The functions come from the compiled module ``_kernels`` (C, works without the interpreter lock). If that was
not built, or STRATALOG_PURE_KERNELS=1 is in the environment, they come from their twins ``pure_kernels`` and
``pure_key_kernels``. `NATIVE` says which are in use. Results are the same byte for byte, and both refuse the
same input with the same class of error; messages and fields may differ.

All take bytes-like objects and are safe on any bytes: a bad frame raises CorruptRecordError, and neither time
nor memory exceeds a small multiple of the input. They are thread-safe as long as no other thread changes or
reads the objects that a call fills (`entries`, `columns`, `survivors`) until it returns. After an error
`entries` and `columns` are as before, and `survivors` must not be used.

scan_records(payload, records_count, last_offset_delta) -> RecordsSummary
    Proves the framing of a records section: counts, sizes, headers (names are UTF-8), offsets that increase
    strictly up to `last_offset_delta` at most, every byte used.
encode_records(records, base_timestamp) -> bytes
    The records section with offset deltas 0, 1, 2 and so on. Raises InvalidRequestError for values that the
    format cannot hold.
decode_records(payload, records_count, base_offset, base_timestamp, append_time_ms) -> list[Record]
    `append_time_ms`, unless None, is the timestamp of all records.
span_records(payload, position, max_count, max_bytes) -> (count, end_position)
    The number of records from `position` on that make a span, and its end: at most `max_count` in at most
    `max_bytes`, but at least one. Looks at nothing but sizes.
copy_records(payload, records_count, survivors, first_ordinal, *, first_offset_delta, end_offset_delta,
             drop_tombstones, timestamp_shift) -> CopiedRecords
    Copies the records whose bit is set in `survivors` (least significant first, the first record's is
    `first_ordinal`) and whose offset delta is in [first_offset_delta, end_offset_delta). `timestamp_shift`
    is added to timestamp deltas: the old base timestamp minus the new one. Does not look at headers.
clear_dropped(payload, records_count, survivors, first_ordinal, *, first_offset_delta, end_offset_delta,
              drop_tombstones) -> None
    Clears the bits of the records that `copy_records` leaves out by the other arguments. Bits are in an
    undefined state after an error.
decode_columns(payload, records_count, base_offset, base_timestamp, append_time_ms, first_offset,
               end_offset, columns) -> int
    Appends the records with offsets in [first_offset, end_offset) as rows; returns their number.
encode_columns(columns, first_row, row_count, base_timestamp) -> bytes
    The reverse: rows of columns in the bytes that `encode_records` would write. Ignores the offset column.
    It is for senders whose records are columns; so far only tests and benchmarks call it. Raises
    InvalidRequestError for columns that do not fit each other and for values that the format cannot hold.
    The columns must not change until it returns.
siphash128(key16, data) -> (high, low)
    SipHash-2-4 with a 128-bit result; see ``key_entries`` for the halves.
murmur2(key) -> int
    The hash by which Kafka's clients choose partitions, unsigned, of 32 bits.
hash_keys(payload, records_count, hash_key16, first_ordinal, entries, versions=None) -> None
    Appends an entry for each record with a key. `versions` (`BatchVersions`): with its version; the entries
    have versions then. Looks at headers only if they have the versions.
sort_key_entries(entries) -> KeyEntries
    Ascending by hash; of equal hashes only the highest ordinal is left, or, with versions, the highest
    version, and of those the highest ordinal.
key_columns_fault(hash_high, hash_low, ordinal, tombstone, record_count) -> str | None
    The fault in the columns of a key stream's block, as a clause for a message: hashes that do not ascend
    strictly, an ordinal that is not below `record_count`, a tombstone that is neither 0 nor 1.
merge_windows(windows, limit, survivors) -> list[int]
    Windows of sorted key streams, oldest slice first. Takes every entry with a hash up to and including
    `limit` (all if None); of equal hashes only the newest window's (or that with the highest version, and of
    those the newest window's) sets its bit among its window's survivors. Returns the number of taken entries
    of each window. Raises CorruptRecordError if a stream is not sorted, an ordinal has no bit, or only some
    windows have versions.
translate_keys(window, limit, kept, entries) -> int
    Takes the entries of a window with a hash up to and including `limit` (all if None), and appends those of
    records that stay by `kept` (`RankedSurvivors`), with their new ordinals and their versions. Returns the
    number of taken entries. Raises CorruptRecordError if an ordinal has no bit, or a new one no room.
translate_key_stream(data, kept, entries) -> None
    The same for a whole key stream without versions, whose checksum was proved before.
crc32c(data, crc=0) -> int
    The checksum of batches, object files and requests, continued from `crc`.
joined_crc(crc, next_crc, next_size) -> int
    The checksum of bytes that have `crc`, followed by `next_size` bytes that have `next_crc`, without a look
    at them.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from stratalog.record.columns import ColumnBuffers
from stratalog.record.native.key_entries import KeyEntries, KeyWindow, RankedSurvivors
from stratalog.record.records_summary import CopiedRecords, RecordsSummary

__all__ = (
    "NATIVE",
    "ColumnBuffers",
    "CopiedRecords",
    "KeyEntries",
    "KeyWindow",
    "RankedSurvivors",
    "RecordsSummary",
    "clear_dropped",
    "copy_records",
    "crc32c",
    "decode_columns",
    "decode_records",
    "encode_columns",
    "encode_records",
    "hash_keys",
    "joined_crc",
    "key_columns_fault",
    "merge_windows",
    "murmur2",
    "scan_records",
    "siphash128",
    "sort_key_entries",
    "span_records",
    "translate_key_stream",
    "translate_keys",
)

PURE_KERNELS_VARIABLE = "STRATALOG_PURE_KERNELS"


def _is_native() -> bool:
    if os.environ.get(PURE_KERNELS_VARIABLE) == "1":
        return False
    try:
        importlib.import_module("stratalog.record.native._kernels")
    except ImportError:
        return False
    return True


NATIVE = _is_native()
"""The compiled kernels are in use."""

if TYPE_CHECKING or not NATIVE:
    from stratalog.record.native.pure_kernels import (
        clear_dropped,
        copy_records,
        crc32c,
        decode_columns,
        decode_records,
        encode_columns,
        encode_records,
        joined_crc,
        scan_records,
        span_records,
    )
    from stratalog.record.native.pure_key_kernels import (
        hash_keys,
        key_columns_fault,
        merge_windows,
        murmur2,
        siphash128,
        sort_key_entries,
        translate_key_stream,
        translate_keys,
    )
else:
    from stratalog.record.native._kernels import (
        clear_dropped,
        copy_records,
        crc32c,
        decode_columns,
        decode_records,
        encode_columns,
        encode_records,
        hash_keys,
        joined_crc,
        key_columns_fault,
        merge_windows,
        murmur2,
        scan_records,
        siphash128,
        sort_key_entries,
        span_records,
        translate_key_stream,
        translate_keys,
    )
