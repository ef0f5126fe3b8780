"""The batch kernels in plain Python: the reference of the native ones and their stand-in.

Each function has a twin of the same name in the compiled module ``_kernels``; ``batch_kernels`` says what
they promise.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from stratalog.base.errors import CorruptRecordError, InvalidRequestError
from stratalog.base.filesystem import Buffer
from stratalog.record.batch import crc_matches, records_payload, verify
from stratalog.record.builder import rebuild_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import DELETE_HORIZON_BIT, HEADER_SIZE, BatchHeader, parse_header
from stratalog.record.key_block import (
    BLOCK_CRC_POSITION,
    BLOCK_HEADER,
    HASH_BYTES,
    MAX_BLOCK_ENTRY_COUNT,
    ORDINAL_BYTES,
    aligned,
    block_size_bytes,
)
from stratalog.record.native.batch_filter import BatchFilter, FilteredBatches
from stratalog.record.native.batch_row import MAX_ROW_COUNT, BatchRow
from stratalog.record.native.copied_records import CopiedRecords
from stratalog.record.native.index_rows import IndexProgress, IndexRows
from stratalog.record.native.key_entries import KeyEntries, KeyWindow
from stratalog.record.native.pure_kernels import copy_records, scan_records
from stratalog.record.native.pure_key_kernels import hash_keys, key_columns_fault, merge_windows
from stratalog.record.native.scanned_batches import ScannedBatches
from stratalog.record.records_summary import RecordsSummary

_BATCH_MARK = struct.Struct("<qIi")
_HASH_HALF = struct.Struct("<Q")
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_NO_BATCHES = ScannedBatches(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, None, 0)


def whole_batches(data: Buffer) -> tuple[int, int]:
    """See ``batch_kernels.whole_batches``."""
    position = records_count = 0
    while (header := _whole_batch(data, position)) is not None:
        position += header.size_in_bytes
        records_count += header.records_count
    return position, records_count


def sound_batches(
    data: Buffer, end_offset: int, first_offset: int = 0, leader_epoch: int = -1
) -> tuple[int, int]:
    """See ``batch_kernels.sound_batches``."""
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
    """See ``batch_kernels.skip_batches``."""
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
    """See ``batch_kernels.walk_batches``."""
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
                data_position + position,
                header.size_in_bytes,
                header.last_offset,
                header.max_timestamp,
                is_noted,
            )
        )
        position += header.size_in_bytes
        next_offset, leader_epoch = header.next_offset, header.leader_epoch
    return rows


def index_rows(
    rows: Sequence[BatchRow], interval_bytes: int, segment_base_offset: int, progress: IndexProgress
) -> IndexRows:
    """See ``batch_kernels.index_rows``."""
    bytes_since_entry, newest_ms, newest_offset, entered_ms = progress
    offset_entries, time_entries = bytearray(), bytearray()
    for position, size_bytes, last_offset, max_timestamp_ms, _ in rows:
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
    after = IndexProgress(bytes_since_entry, newest_ms, newest_offset, entered_ms)
    return IndexRows(bytes(offset_entries), bytes(time_entries), after)


def rank_entries(data: Buffer, entry_size: int, key_position: int, key_size: int, limit: int) -> int:
    """See ``batch_kernels.rank_entries``."""
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


def scan_batches(data: Buffer, position: int, begin_limit: int, fingerprint: int) -> ScannedBatches:
    """See ``batch_kernels.scan_batches``."""
    assert position <= begin_limit <= len(data), "positions lie in the data"
    scanned = _NO_BATCHES._replace(end_position=position, fingerprint=fingerprint)
    while scanned.end_position < begin_limit:
        header = _plain_batch(data, scanned.end_position)
        if header is None:
            break
        if scanned.records_count and (
            header.leader_epoch != scanned.leader_epoch or header.base_offset < scanned.next_offset
        ):
            break
        try:
            summary = verify(data, scanned.end_position, header)
        except CorruptRecordError:
            break
        scanned = _with_batch(scanned, header, summary)
    return scanned


def filter_batches(
    data: Buffer,
    position: int,
    survivors: Buffer | None,
    first_ordinal: int,
    rule: BatchFilter,
    fingerprint: int,
) -> FilteredBatches:
    """See ``batch_kernels.filter_batches``."""
    assert position <= len(data), "positions lie in the data"
    assert survivors is None or first_ordinal <= 8 * len(survivors), "the first record has a bit"
    kept = _Kept(fingerprint)
    ordinal = first_ordinal
    while (header := _plain_batch(data, position)) is not None:
        end_ordinal = ordinal + header.records_count
        if header.next_offset > rule.end_offset or (
            survivors is not None and end_ordinal > 8 * len(survivors)
        ):
            break
        try:
            if header.next_offset > rule.first_offset:
                _filter(data, position, header, survivors, ordinal, rule, kept)
        except (CorruptRecordError, InvalidRequestError, struct.error):
            break
        position += header.size_in_bytes
        ordinal = end_ordinal
    return FilteredBatches(
        b"".join(kept.parts),
        position,
        ordinal,
        kept.records_count,
        kept.first_offset,
        kept.last_offset,
        kept.dropped_tombstone_count,
        kept.fingerprint,
    )


def hash_batches(data: Buffer, hash_key16: Buffer, first_ordinal: int, entries: KeyEntries) -> None:
    """See ``batch_kernels.hash_batches``."""
    found = KeyEntries()
    position = 0
    while position < len(data):
        header = _plain_batch(data, position)
        if header is None:
            raise CorruptRecordError("a batch is not plain or not whole", position=position)
        payload = records_payload(data, position, header)
        hash_keys(payload, header.records_count, hash_key16, first_ordinal, found)
        first_ordinal += header.records_count
        position += header.size_in_bytes
    entries.hash_high.extend(found.hash_high)
    entries.hash_low.extend(found.hash_low)
    entries.ordinal.extend(found.ordinal)
    entries.tombstone.extend(found.tombstone)


def merge_key_streams(streams: Sequence[tuple[Buffer, int, int, int]]) -> list[bytearray] | None:
    """See ``batch_kernels.merge_key_streams``."""
    windows: list[KeyWindow] = []
    bitmaps: list[bytearray] = []
    survivors = [bytearray((record_count + 7) // 8) for *_, record_count in streams]
    for (data, entry_count, crc, record_count), bitmap in zip(streams, survivors, strict=True):
        blocks = _blocks(memoryview(data), record_count)
        if blocks is None or crc32c(data) != crc or sum(block.count for block in blocks) != entry_count:
            return None
        windows += blocks
        bitmaps += [bitmap] * len(blocks)
    merge_windows(windows, None, bitmaps)
    return survivors


class _Kept:
    """What one call of `filter_batches` keeps. Not thread-safe."""

    def __init__(self, fingerprint: int) -> None:
        self.parts: list[Buffer] = []
        self.records_count = 0
        self.first_offset = self.last_offset = -1
        self.dropped_tombstone_count = 0
        self.fingerprint = fingerprint

    def add(self, batch: Buffer, records_count: int, first_delta: int, last_delta: int) -> None:
        header = parse_header(batch)
        if self.records_count == 0:
            self.first_offset = header.base_offset + first_delta
        self.last_offset = header.base_offset + last_delta
        self.records_count += records_count
        self.fingerprint = _with_mark(self.fingerprint, header)
        self.parts.append(batch)


def _filter(
    data: Buffer,
    position: int,
    header: BatchHeader,
    survivors: Buffer | None,
    ordinal: int,
    rule: BatchFilter,
    kept: _Kept,
) -> None:
    batch = memoryview(data)[position : position + header.size_in_bytes]
    horizon_ms = header.delete_horizon_ms
    drops = rule.drop_until_ms is not None and horizon_ms is not None and horizon_ms <= rule.drop_until_ms
    stamps = rule.stamp_ms is not None and horizon_ms is None
    first_delta = max(0, rule.first_offset - header.base_offset)
    if survivors is None:
        _keep(batch, header, kept)
        return
    ordinals = range(ordinal, ordinal + header.records_count)
    planned_count = sum(survivors[one >> 3] >> (one & 7) & 1 for one in ordinals)
    if planned_count == 0:
        return
    must_look = rule.has_tombstones and (drops or stamps)
    if planned_count == header.records_count and first_delta == 0 and not must_look:
        _keep(batch, header, kept)
        return

    def copied_with(timestamp_shift: int) -> CopiedRecords:
        return copy_records(
            batch[HEADER_SIZE:],
            header.records_count,
            survivors,
            ordinal,
            first_offset_delta=first_delta,
            end_offset_delta=header.last_offset_delta + 1,
            drop_tombstones=drops,
            timestamp_shift=timestamp_shift,
        )

    copied = copied_with(0)
    seen_count = copied.count + copied.dropped_tombstone_count
    if seen_count > planned_count or (seen_count < planned_count and first_delta == 0):
        raise CorruptRecordError("a batch gave other records than planned", base_offset=header.base_offset)
    if copied.tombstone_count and stamps:
        assert rule.stamp_ms is not None
        shift = header.base_timestamp - rule.stamp_ms
        if not -(2**63) <= shift < 2**63:
            raise CorruptRecordError("a timestamp is out of range", base_offset=header.base_offset)
        _add_rebuilt(header, copied_with(shift), rule.stamp_ms, kept)
    elif copied.count > 0 and drops:
        without_horizon = header._replace(attributes=header.attributes & ~DELETE_HORIZON_BIT)
        _add_rebuilt(without_horizon, copied, None, kept)
    elif copied.count == header.records_count:
        _keep(batch, header, kept)
    elif copied.count > 0:
        _add_rebuilt(header, copied, None, kept)
    kept.dropped_tombstone_count += copied.dropped_tombstone_count


def _keep(batch: memoryview, header: BatchHeader, kept: _Kept) -> None:
    first_delta, last_delta = 0, header.last_offset_delta
    if header.records_count <= header.last_offset_delta:
        summary = _framing(batch, header)
        first_delta, last_delta = summary.first_offset_delta, summary.last_offset_delta
    kept.add(batch, header.records_count, first_delta, last_delta)


def _framing(batch: memoryview, header: BatchHeader) -> RecordsSummary:
    return scan_records(batch[HEADER_SIZE:], header.records_count, header.last_offset_delta)


def _add_rebuilt(header: BatchHeader, copied: CopiedRecords, stamp_ms: int | None, kept: _Kept) -> None:
    base_timestamp = header.base_timestamp if stamp_ms is None else stamp_ms
    latest = base_timestamp + copied.max_timestamp_delta
    batch = rebuild_batch(
        header,
        copied.payload,
        records_count=copied.count,
        max_timestamp=latest if header.append_time_ms is None else header.append_time_ms,
        delete_horizon_ms=stamp_ms,
    )
    kept.add(batch, copied.count, copied.first_delta, copied.last_delta)


def _header(data: Buffer, position: int) -> BatchHeader | None:
    try:
        return parse_header(data, position)
    except CorruptRecordError:
        return None


def _whole_batch(data: Buffer, position: int) -> BatchHeader | None:
    header = _header(data, position)
    return None if header is None or header.size_in_bytes > len(data) - position else header


def _plain_batch(data: Buffer, position: int) -> BatchHeader | None:
    header = _whole_batch(data, position)
    if header is None or header.codec is not Codec.NONE or header.records_count == 0:
        return None
    return None if header.is_control or header.is_transactional else header


def _with_batch(scanned: ScannedBatches, header: BatchHeader, summary: RecordsSummary) -> ScannedBatches:
    """What is known with one more batch, which was proved."""
    earliest = header.base_timestamp + summary.min_timestamp_delta
    latest = header.base_timestamp + summary.max_timestamp_delta
    latest_offset = header.base_offset + summary.max_timestamp_offset_delta
    if header.append_time_ms is not None:
        earliest = latest = header.append_time_ms
        latest_offset = header.base_offset + summary.first_offset_delta
    if scanned.records_count == 0:
        scanned = scanned._replace(
            first_base_offset=header.base_offset,
            leader_epoch=header.leader_epoch,
            first_offset=header.base_offset + summary.first_offset_delta,
            min_timestamp=earliest,
            max_timestamp=latest,
            max_timestamp_offset=latest_offset,
        )
    if latest > scanned.max_timestamp:
        scanned = scanned._replace(max_timestamp=latest, max_timestamp_offset=latest_offset)
    horizons = [one for one in (scanned.delete_horizon_ms, header.delete_horizon_ms) if one is not None]
    return scanned._replace(
        end_position=scanned.end_position + header.size_in_bytes,
        records_count=scanned.records_count + header.records_count,
        tombstone_count=scanned.tombstone_count + summary.tombstone_count,
        null_key_count=scanned.null_key_count + summary.null_key_count,
        last_base_offset=header.base_offset,
        last_crc=header.crc,
        next_offset=header.next_offset,
        last_offset=header.base_offset + summary.last_offset_delta,
        min_timestamp=min(scanned.min_timestamp, earliest),
        delete_horizon_ms=min(horizons, default=None),
        fingerprint=_with_mark(scanned.fingerprint, header),
    )


def _with_mark(fingerprint: int, header: BatchHeader) -> int:
    return crc32c(_BATCH_MARK.pack(header.base_offset, header.crc, header.records_count), fingerprint)


def _blocks(data: memoryview, record_count: int) -> list[KeyWindow] | None:
    """The blocks of a key stream; None where it is not sound."""
    windows: list[KeyWindow] = []
    last_hash: tuple[int, int] | None = None
    while len(data):
        if len(data) < BLOCK_HEADER.size:
            return None
        count, flags, block_bytes, block_crc = BLOCK_HEADER.unpack_from(data)
        if flags != 0 or not 0 < count <= MAX_BLOCK_ENTRY_COUNT or block_bytes > len(data):
            return None
        if block_bytes != block_size_bytes(count, has_version=False):
            return None
        body, data = data[BLOCK_HEADER.size : block_bytes], data[block_bytes:]
        header = BLOCK_HEADER.pack(count, flags, block_bytes, 0)[:BLOCK_CRC_POSITION]
        if crc32c(body, crc32c(header)) != block_crc:
            return None
        window = _window(body, count, record_count)
        if window is None:
            return None
        if last_hash is not None and _hash_at(window, 0) <= last_hash:
            return None
        last_hash = _hash_at(window, count - 1)
        windows.append(window)
    return windows


def _window(body: memoryview, count: int, record_count: int) -> KeyWindow | None:
    low, ordinal = count * HASH_BYTES, 2 * count * HASH_BYTES
    ordinal_end = ordinal + count * ORDINAL_BYTES
    tombstone = ordinal + aligned(count * ORDINAL_BYTES)
    if any(body[ordinal_end:tombstone]) or any(body[tombstone + count :]):
        return None
    columns = body[:low], body[low:ordinal], body[ordinal:ordinal_end], body[tombstone : tombstone + count]
    return None if key_columns_fault(*columns, record_count) else KeyWindow(*columns, 0, count)


def _hash_at(window: KeyWindow, index: int) -> tuple[int, int]:
    place = index * HASH_BYTES
    high: int = _HASH_HALF.unpack_from(memoryview(window.hash_high), place)[0]
    low: int = _HASH_HALF.unpack_from(memoryview(window.hash_low), place)[0]
    return high, low
