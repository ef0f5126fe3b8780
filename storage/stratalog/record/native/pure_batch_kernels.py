"""The kernels for rows of batches in plain Python.

Twins of the compiled functions that look at headers and indexes. The functions that look at records take no
batch: their callers then work batch by batch. ``batch_kernels`` documents the functions.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence

from crc32c import crc32c

from stratalog.base.errors import CorruptRecordError, InvalidRequestError
from stratalog.base.filesystem import Buffer
from stratalog.record.batch import batches, crc_matches
from stratalog.record.columns import ColumnBuffers
from stratalog.record.header import MAGIC_POSITION, BatchHeader, parse_header
from stratalog.record.keep_rules import VersionRule
from stratalog.record.native.batch_filter import (
    BatchFilter,
    CompactedSlices,
    FilteredBatches,
    RunColumns,
    RunRule,
)
from stratalog.record.native.batch_row import MAX_ROW_COUNT, AppendedBatch, BatchRow, IndexProgress, IndexRows
from stratalog.record.native.cleaned_batches import CleanedBatches, CleanRule
from stratalog.record.native.key_entries import KeyEntries
from stratalog.record.native.pure_clean_kernels import OpenTransactions
from stratalog.record.native.pure_offset_map import OffsetMap
from stratalog.record.native.scanned_batches import ScannedBatches
from stratalog.record.pure_number_columns import NUMBER_TOO_LARGE

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_HEADER = struct.Struct(">qi")
_PREFIX = struct.Struct(">qii")
assert _PREFIX.size == MAGIC_POSITION


def whole_batches(data: Buffer) -> tuple[int, int]:
    """The plain-Python form of ``batch_kernels.whole_batches``."""
    position = records_count = 0
    while (header := _whole_batch(data, position)) is not None:
        position += header.size_in_bytes
        records_count += header.records_count
    return position, records_count


def sound_batches(
    data: Buffer, end_offset: int, first_offset: int = 0, leader_epoch: int = -1
) -> tuple[int, int]:
    """The plain-Python form of ``batch_kernels.sound_batches``."""
    position, next_offset = 0, -1
    while (header := _whole_batch(data, position)) is not None:
        if header.base_offset < first_offset or header.next_offset > end_offset:
            break
        if leader_epoch >= 0 and header.leader_epoch != leader_epoch:
            break
        if not crc_matches(data, position, header):
            break
        position += header.size_in_bytes
        next_offset = first_offset = header.next_offset
    return position, next_offset


def skip_batches(data: Buffer, offset: int, next_offset: int, leader_epoch: int) -> tuple[int, int, int]:
    """The plain-Python form of ``batch_kernels.skip_batches``."""
    position = 0
    while (header := _header(data, position)) is not None and header.next_offset <= offset:
        if header.base_offset < next_offset or header.leader_epoch < leader_epoch:
            break
        position += header.size_in_bytes
        next_offset, leader_epoch = header.next_offset, header.leader_epoch
    return position, next_offset, leader_epoch


def walk_batches(
    data: Buffer, position: int, data_position: int, next_offset: int, leader_epoch: int
) -> list[BatchRow]:
    """The plain-Python form of ``batch_kernels.walk_batches``."""
    assert position <= len(data), "positions lie in the data"
    rows: list[BatchRow] = []
    while len(rows) < MAX_ROW_COUNT and (header := _whole_batch(data, position)) is not None:
        if header.base_offset < next_offset or header.leader_epoch < leader_epoch:
            break
        if not crc_matches(data, position, header):
            break
        is_noted = (
            header.producer_id >= 0
            or header.is_transactional
            or header.is_control
            or header.leader_epoch != leader_epoch
        )
        rows.append(
            BatchRow(
                position=data_position + position,
                size_bytes=header.size_in_bytes,
                base_offset=header.base_offset,
                last_offset=header.last_offset,
                max_timestamp_ms=header.max_timestamp,
                leader_epoch=header.leader_epoch,
                is_noted=is_noted,
            )
        )
        position += header.size_in_bytes
        next_offset, leader_epoch = header.next_offset, header.leader_epoch
    return rows


def index_rows(
    rows: Sequence[BatchRow], interval_bytes: int, segment_base_offset: int, progress: IndexProgress
) -> IndexRows:
    """The plain-Python form of ``batch_kernels.index_rows``."""
    bytes_since_entry, newest_ms, newest_offset, entered_ms, crc = progress
    offset_entries, time_entries = bytearray(), bytearray()
    for position, size_bytes, base_offset, last_offset, max_timestamp_ms, leader_epoch, _ in rows:
        crc = crc32c(_HEADER.pack(base_offset, leader_epoch), crc)
        if max_timestamp_ms > newest_ms:
            newest_ms, newest_offset = max_timestamp_ms, last_offset
        if bytes_since_entry > interval_bytes:
            relative_offset = last_offset - segment_base_offset
            assert 0 <= relative_offset < 1 << 31 and 0 <= position < 1 << 31, "fits"  # noqa: PT018
            offset_entries += _OFFSET_ENTRY.pack(relative_offset, position)
            bytes_since_entry = 0
            if newest_ms > entered_ms:
                assert newest_offset >= segment_base_offset, "fits"
                entered_ms = newest_ms
                time_entries += _TIME_ENTRY.pack(newest_ms, newest_offset - segment_base_offset)
        bytes_since_entry += size_bytes
    after = IndexProgress(bytes_since_entry, newest_ms, newest_offset, entered_ms, crc)
    return IndexRows(bytes(offset_entries), bytes(time_entries), after)


def headers_crc(data: Buffer, crc: int) -> int:
    """The plain-Python form of ``batch_kernels.headers_crc``."""
    position = 0
    while (header := _whole_batch(data, position)) is not None:
        crc = crc32c(_HEADER.pack(header.base_offset, header.leader_epoch), crc)
        position += header.size_in_bytes
    return crc


def batches_crc(data: Buffer, crc: int = 0) -> int:
    """The plain-Python form of ``batch_kernels.batches_crc``."""
    return crc32c(data, crc)


def rank_entries(data: Buffer, entry_size: int, key_position: int, key_size: int, limit: int) -> int:
    """The plain-Python form of ``batch_kernels.rank_entries``."""
    assert key_size in (4, 8)
    assert key_position + key_size <= entry_size, "a key of an entry"
    if limit < 0:
        return 0
    low, high = 0, len(data) // entry_size
    while low < high:
        middle = (low + high) // 2
        begin = middle * entry_size + key_position
        if int.from_bytes(data[begin : begin + key_size], "big") <= limit:
            low = middle + 1
        else:
            high = middle
    return low


def accept_append(
    _data: Buffer, _max_batch_bytes: int, _earliest_ms: int, _latest_ms: int, _must_have_keys: bool
) -> tuple[int, int, bool] | None:
    """Accept no request: the caller looks at it batch by batch."""
    return None


def stamp_batches(
    data: Buffer, base_offset: int, leader_epoch: int
) -> tuple[list[Buffer], list[AppendedBatch]]:
    """The plain-Python form of ``batch_kernels.stamp_batches``."""
    view = memoryview(data)
    parts: list[Buffer] = []
    appended: list[AppendedBatch] = []
    for position, header in batches(data):
        parts.append(_PREFIX.pack(base_offset, header.batch_length, leader_epoch))
        parts.append(view[position + MAGIC_POSITION : position + header.size_in_bytes])
        last_offset = base_offset + header.last_offset_delta
        appended.append(
            AppendedBatch(header.size_in_bytes, base_offset, last_offset, header.max_timestamp, leader_epoch)
        )
        base_offset = last_offset + 1
    return parts, appended


def scan_batches(_data: Buffer, position: int, _begin_limit: int, fingerprint: int) -> ScannedBatches:
    """Take no batch: the caller works batch by batch."""
    return ScannedBatches(end_position=position, fingerprint=fingerprint)


def filter_batches(
    _data: Buffer,
    position: int,
    _survivors: Buffer | None,
    first_ordinal: int,
    _rule: BatchFilter,
    fingerprint: int,
    _transactions: OpenTransactions | None = None,
) -> FilteredBatches:
    """Take no batch: the caller works batch by batch."""
    return FilteredBatches(
        data=b"", end_position=position, next_ordinal=first_ordinal, fingerprint=fingerprint
    )


def decode_column_batches(
    data: Buffer, position: int, max_bytes: int, first_offset: int, end_offset: int, columns: ColumnBuffers
) -> tuple[int, int]:
    """The plain-Python form of ``batch_kernels.decode_column_batches``, which takes no batch."""
    del data, max_bytes, first_offset, end_offset, columns
    return position, -1


def hash_batches(
    data: Buffer,
    _hash_key16: Buffer,
    _first_ordinal: int,
    _entries: KeyEntries,
    _rule: VersionRule | None = None,
) -> None:
    """Hash nothing: no scan took a batch."""
    assert len(data) == 0, "no scan took these batches"


def merge_key_streams(_streams: Sequence[tuple[Buffer, int, int, int]]) -> list[bytearray] | None:
    """Merge nothing: the caller merges window by window."""
    return None


def run_ranges(
    runs: Sequence[RunColumns], places: tuple[int, ...], survivors: Sequence[Buffer] | None = None
) -> dict[str, tuple[int, int]]:
    """The plain-Python form of ``batch_kernels.run_ranges``."""
    ranges: dict[str, tuple[int, int]] = {}
    for number, (all_names, _, _, first, end) in enumerate(runs):
        bits_end = 0
        names, rows = all_names[first:end], zip(*_columns_of(runs[number], places), strict=True)
        for name, (position, size, record_count) in zip(names, rows, strict=True):
            bits_begin, bits_end = bits_end, bits_end + (record_count + 7) // 8
            if size > 0 and (survivors is None or any(survivors[number][bits_begin:bits_end])):
                begin, stop = ranges.get(name, (position, position + size))
                ranges[name] = min(begin, position), max(stop, position + size)
    return ranges


def run_sums(runs: Sequence[RunColumns], places: tuple[int, ...]) -> array[int]:
    """The plain-Python form of ``batch_kernels.run_sums``."""
    try:
        return array("q", [sum(column) for run in runs for column in _columns_of(run, places)])
    except OverflowError as error:
        raise InvalidRequestError(NUMBER_TOO_LARGE) from error


def _columns_of(run: RunColumns, places: tuple[int, ...]) -> list[array[int]]:
    names, _, numbers, first, end = run
    return [numbers[place * len(names) + first : place * len(names) + end] for place in places]


def decide_runs(
    runs: Sequence[RunColumns],
    _places: tuple[int, ...],
    _hash_key_id: int,
    _max_bytes: int,
    _keys: Mapping[str, tuple[int, Buffer]],
) -> list[bytearray | None]:
    """Decide nothing: the caller merges window by window."""
    return [None] * len(runs)


def compact_runs(
    runs: Sequence[RunColumns],
    _places: tuple[int, ...],
    _survivors: Sequence[Buffer],
    _data: Mapping[str, tuple[int, Buffer]],
    _keys: Mapping[str, tuple[int, Buffer]],
    _rules: Sequence[RunRule],
    _interval_bytes: int,
) -> tuple[bytes, CompactedSlices]:
    """Take no run: the caller compacts them batch by batch."""
    return bytes(len(runs)), CompactedSlices(b"", b"", b"", array("q"))


def prove_slices(_data: Buffer, _sizes: array[int]) -> tuple[array[int], int]:
    """Prove no slice: the caller proves them batch by batch."""
    return array("q"), 0


def clean_batches(
    _data: Buffer, position: int, _offset_map: OffsetMap, _rule: CleanRule, _transactions: OpenTransactions
) -> CleanedBatches:
    """Take no batch: the caller works batch by batch."""
    return CleanedBatches(b"", position, -1)


def _header(data: Buffer, position: int) -> BatchHeader | None:
    try:
        return parse_header(data, position)
    except CorruptRecordError:
        return None


def _whole_batch(data: Buffer, position: int) -> BatchHeader | None:
    header = _header(data, position)
    return None if header is None or header.size_in_bytes > len(data) - position else header
