"""The kernels for rows of batches, compiled if possible.

In Python one batch costs more than its records cost in C, and a small slice is one batch. So these functions
take many batches with one call. The first eight look at headers and index entries, and have twins in plain
Python. The others look at records of *plain* batches: whole, sound, with records, neither compressed nor part
of a transaction. Scan and filter also take *bare* ones: uncompressed data of transactions, and their markers.
They stop before the first other batch, and the caller handles it by itself (``batch``, ``kernels``): one
place handles rare batches and errors. Without compiled kernels they take no batch at all,
so that their callers work batch by batch, with the same result; tests compare both ways.

All take bytes-like objects and are safe on any bytes, as ``kernels`` says; only `hash_batches` raises
CorruptRecordError.

whole_batches(data) -> (size_bytes, records_count)
    The whole batches at the beginning of `data`, of any kind, up to a torn one or an invalid header. Looks
    at headers only.
sound_batches(data, end_offset, first_offset=0, leader_epoch=-1) -> (size_bytes, next_offset)
    The whole batches at the beginning of `data`, of any kind, with true checksums, ascending offsets in
    [first_offset, end_offset), and that leader epoch unless it is -1. `next_offset` is the exclusive end of
    their offsets, -1 without batches. Does not look at records.
skip_batches(data, offset, next_offset, leader_epoch) -> (size_bytes, next_offset, leader_epoch)
    The size of the batches at the beginning of `data`, of any kind, that end below `offset`; the offset and
    leader epoch after them. Offsets ascend from `next_offset` on, and leader epochs do not descend from
    `leader_epoch` on. Looks at headers only: the last batch may end beyond `data`.
walk_batches(data, position, data_position, next_offset, leader_epoch) -> list[BatchRow]
    The rows that indexes need for the batches from `position` on, of any kind: whole, with true checksums,
    offsets that ascend from `next_offset` on and leader epochs that do not descend from `leader_epoch` on;
    at most MAX_ROW_COUNT at once. `data_position` is the position of `data` in the file.
index_rows(rows, interval_bytes, segment_base_offset, progress) -> IndexRows
    The index entries of batches that follow those of `progress`, by Kafka's rule, which ``segment_indexes``
    explains. Offsets and positions must fit an entry.
headers_crc(data, crc) -> int
    Continues the CRC-32C of base offset and leader epoch of the whole batches at the beginning of `data`, see
    ``segment_seal``. Looks at headers only.
batches_crc(data, crc=0) -> int
    Continues the CRC-32C of `data`, whole batches of any kind whose own checksums were proved: those tell
    that of the records, which are not summed again.
rank_entries(data, entry_size, key_position, key_size, limit) -> int
    The number of the ascending entries of an index whose key is at most `limit`. Keys are big-endian, not
    negative, of 4 or 8 bytes.
stamp_batches(data, base_offset, leader_epoch) -> (parts, list[AppendedBatch])
    The whole batches of `data` with offsets from `base_offset` on and this leader epoch: bytes in one or
    many parts, and the facts of each batch. Small batches are copied; of larger ones the first bytes are new,
    and the rest are views of `data`. Looks at headers only.
scan_batches(data, position, begin_limit, fingerprint) -> ScannedBatches
    Proves bare batches from `position` on like ``batch.verify`` (checksum, framing of all records,
    timestamps), as long as they begin before `begin_limit`, have the leader epoch of the first, and ascend.
    `fingerprint` is continued with the base offset, checksum and record count of each.
accept_append(data, max_batch_bytes, earliest_ms, latest_ms, must_have_keys)
        -> (offset_count, max_timestamp_ms, has_producer) | None
    Proves `data` as a client's request that a log may store as it is: whole batches, uncompressed and of no
    transaction, each at most `max_batch_bytes`, with a true checksum, a sound record for each offset, the
    highest timestamp of the records in the header, and all of them in [earliest_ms, latest_ms] or without
    a time. A batch with a producer is alone. None for any other request: ``log_validator`` knows which of
    its rules it breaks, or that it breaks none.
filter_batches(data, position, survivors, first_ordinal, rule, fingerprint, transactions=None)
        -> FilteredBatches
    Copies the kept part of plain batches from `position` on: the records with a bit in `survivors` (the
    first record has the bit `first_ordinal`; None keeps each batch that reaches `rule.first_offset`) that
    `rule` keeps. A batch that loses no record is copied unchanged, another is rebuilt. Stops before a batch
    that reaches beyond `rule.end_offset` or has other records than its bits say. Does not look at
    checksums: the caller proves that of the slice. With `transactions` (`offset_map.OpenTransactions`) it
    also takes data of transactions, notes whether it stays, and takes the markers of commits that stay, whose
    bits it sets. It stops before any other marker.
hash_batches(data, hash_key16, first_ordinal, entries, rule=None) -> None
    `kernels.hash_keys` over `data`, which consists of plain batches, with versions by a `VersionRule`.
decode_column_batches(data, position, max_bytes, first_offset, end_offset, columns)
        -> (end_position, last_epoch)
    Appends to `columns` the rows of plain batches from `position` on with offsets in [first_offset,
    end_offset), as `kernels.decode_columns` does. Compares checksums. Takes one batch at least, and then at
    most `max_bytes` of batches. Raises InvalidRequestError if a column would exceed 2 GiB.
merge_key_streams(streams) -> list[bytearray] | None
    Whole key streams, oldest slice first, each as (data, entry_count, crc, record_count). Proves them
    (``key_block`` has their format) and returns a bitmap of survivors for each, as `kernels.merge_windows`
    sets it. None if one is not sound, or has versions.
run_ranges(runs, places, survivors=None) -> dict[str, tuple[int, int]]
    For each object, by name, the bytes [begin, end) that hold parts of slices of the runs, each a
    `RunColumns`. `places` has the places of the columns with the position and the size of these parts and
    the number of records. Empty parts do not count, and with `survivors` only slices that have a bit: each
    run has a bitmap, in which those of each slice begin with a byte.
run_sums(runs, places) -> array
    For each run the sums of these columns over its slices, behind those of the one before.
decide_runs(runs, places, hash_key_id, max_bytes, keys) -> list[bytearray | None]
    For each run a bitmap of survivors, in this form, by the key streams of its slices, as
    `merge_key_streams`. `places` has the columns: whether there is a key stream, its position, size, number
    of entries, CRC-32C and hash key, and the number of records. `keys` has a piece of each object, by name:
    its first position and its bytes. None where a slice is without a key stream of that hashing, with
    a key stream of more than `max_bytes` or outside of the pieces, or with one that is not sound or has
    versions.
compact_runs(runs, places, survivors, data, keys, rules, interval_bytes) -> tuple[bytes, CompactedSlices]
    Compacts each run of slices of plain batches, oldest first, into one slice, as `filter_batches` does with
    each slice; makes its index, with intervals of so many bytes, and merges its key stream. `places` has the
    columns: position, size and CRC-32C of the data, number of records, end offset, tombstones and codecs,
    and position, size and CRC-32C of the key stream, which was proved before. `data` and `keys` are pieces
    of objects as above, and `rules` has a `RunRule` for each run. Compares the checksums of each slice, and
    proves the batches of the output. Returns a byte for each run, 1 if it was taken, and the slices of those
    that were. None is taken where a slice with survivors is not sound, outside of the pieces or has another
    batch, where a record that stays has no key, or where the bits, the records and the key streams contradict
    each other.
prove_slices(data, sizes) -> tuple[array, int]
    Proves whole slices of plain batches, of these sizes one behind the other, as `scan_batches` does, up to
    the first one that is not sound or has another batch. Returns `PROVED_COLUMNS` of each slice, one slice
    behind the other, and the CRC-32C of all their bytes. The data have as many bytes as the sizes together at
    the least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.record.native.kernels import NATIVE

__all__ = (
    "accept_append",
    "batches_crc",
    "compact_runs",
    "decide_runs",
    "decode_column_batches",
    "filter_batches",
    "hash_batches",
    "headers_crc",
    "index_rows",
    "merge_key_streams",
    "prove_slices",
    "rank_entries",
    "run_ranges",
    "run_sums",
    "scan_batches",
    "skip_batches",
    "sound_batches",
    "stamp_batches",
    "walk_batches",
    "whole_batches",
)

if TYPE_CHECKING or not NATIVE:
    from stratalog.record.native.pure_batch_kernels import (
        accept_append,
        batches_crc,
        compact_runs,
        decide_runs,
        decode_column_batches,
        filter_batches,
        hash_batches,
        headers_crc,
        index_rows,
        merge_key_streams,
        prove_slices,
        rank_entries,
        run_ranges,
        run_sums,
        scan_batches,
        skip_batches,
        sound_batches,
        stamp_batches,
        walk_batches,
        whole_batches,
    )
else:
    from stratalog.record.native._kernels import (
        accept_append,
        batches_crc,
        compact_runs,
        decide_runs,
        decode_column_batches,
        filter_batches,
        hash_batches,
        headers_crc,
        index_rows,
        merge_key_streams,
        prove_slices,
        rank_entries,
        run_ranges,
        run_sums,
        scan_batches,
        skip_batches,
        sound_batches,
        stamp_batches,
        walk_batches,
        whole_batches,
    )
