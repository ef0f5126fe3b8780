"""The kernels of a log cleaner's second pass in plain Python: the native ones' reference and stand-in.

See ``offset_map``.
"""

from __future__ import annotations

import struct
from array import array
from typing import Protocol

from stratalog.base.errors import CorruptRecordError, InvalidRequestError
from stratalog.base.filesystem import Buffer
from stratalog.record.builder import rebuild_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    MAX_OFFSET,
    NO_TIMESTAMP,
    BatchHeader,
)
from stratalog.record.native.aborted_spans import ordered
from stratalog.record.native.batch_row import MAX_ROW_COUNT, BatchRow
from stratalog.record.native.clean_rule import CleanRule, is_kept_epoch
from stratalog.record.native.clean_walk import BatchKind, taken_batch
from stratalog.record.native.cleaned_batches import NO_HORIZON, CleanedBatches, CleanedRecords
from stratalog.record.native.pure_kernels import append_shifted
from stratalog.record.native.pure_open_transactions import OpenTransactions
from stratalog.record.record_frame import RecordFrame, record_frames, require_room

# Version, producer, first and last offset, last stable offset.
_ABORTED = struct.Struct(">hqqqq")

_MAX_DELTA = 2**31 - 1
_INT64 = range(-(2**63), 2**63)
# Both versions of a marker's record are 0.
_VERSION = b"\0\0"
_ABORT_KEY, _COMMIT_KEY = b"\0\0\0\0", b"\0\0\0\1"
_MARKER_VALUE_BYTES = 6


class KnownOffsets(Protocol):
    """What the second pass asks of an offset map."""

    @property
    def latest_offset(self) -> int: ...

    def get(self, key: Buffer) -> int | None: ...


def aborted_spans_in(entries: Buffer, start_offset: int, end_offset: int) -> array[int]:
    """See ``offset_map.aborted_spans_in``."""
    return ordered(
        (producer_id, first_offset, last_offset)
        for _, producer_id, first_offset, last_offset, _ in _ABORTED.iter_unpack(entries)
        if first_offset < end_offset and last_offset >= start_offset
    )


def clean_records(
    payload: Buffer,
    records_count: int,
    base_offset: int,
    offset_map: KnownOffsets,
    *,
    drop_tombstones: bool,
    timestamp_shift: int,
) -> CleanedRecords:
    """See ``offset_map.clean_records``."""
    assert base_offset >= 0, "offsets are not negative"
    return _clean_records(
        bytes(payload),
        records_count,
        base_offset,
        offset_map,
        last_offset_delta=_MAX_DELTA,
        drop_tombstones=drop_tombstones,
        timestamp_shift=timestamp_shift,
    )


def clean_batches(
    data: Buffer,
    position: int,
    offset_map: KnownOffsets,
    rule: CleanRule,
    transactions: OpenTransactions,
    output_position: int = 0,
) -> CleanedBatches:
    """See ``offset_map.clean_batches``."""
    assert 0 <= position <= len(data), "positions lie in the data"
    cleaned = _Cleaned(output_position)
    begin, next_offset = position, -1
    while len(cleaned.rows) < MAX_ROW_COUNT:
        taken = taken_batch(data, position, rule.stop_offset, rule.aborted)
        if taken is None:
            break
        header, kind = taken
        end_position = position + header.size_in_bytes
        batch = memoryview(data)[position:end_position]
        rows_count = len(cleaned.rows)
        try:
            if kind is BatchKind.CONTROL:
                if not _clean_marker(batch, header, rule, transactions, cleaned):
                    break
            elif kind is BatchKind.ABORTED:
                _drop(header, rule, cleaned)
                cleaned.aborted_count += header.records_count
            else:
                _clean(batch, header, offset_map, rule, cleaned)
        except (CorruptRecordError, InvalidRequestError, struct.error):
            break
        if header.is_transactional and kind is not BatchKind.CONTROL:
            transactions.on_data(header.producer_id, is_kept=len(cleaned.rows) > rows_count)
        position, next_offset = end_position, header.next_offset
    return CleanedBatches(
        b"".join(cleaned.parts),
        position,
        next_offset,
        cleaned.rows,
        cleaned.records_in,
        cleaned.records_kept,
        cleaned.null_key_count,
        cleaned.dropped_tombstone_count,
        cleaned.aborted_count,
        cleaned.dropped_marker_count,
        cleaned.dropped_aborts,
        cleaned.has_waiting_marker,
        cleaned.max_timestamp_ms,
        cleaned.max_timestamp_offset,
        cleaned.last_offset,
        position - begin,
        cleaned.earliest_horizon_ms,
        cleaned.latest_horizon_ms,
    )


class _Cleaned:
    """What one call of `clean_batches` keeps. Not thread-safe."""

    def __init__(self, output_position: int) -> None:
        self.parts: list[Buffer] = []
        self.rows: list[BatchRow] = []
        self.records_in = self.records_kept = self.null_key_count = self.dropped_tombstone_count = 0
        self.aborted_count = self.dropped_marker_count = 0
        self.dropped_aborts: list[int] = []
        self.has_waiting_marker = False
        self.max_timestamp_ms = self.max_timestamp_offset = self.last_offset = -1
        self.earliest_horizon_ms, self.latest_horizon_ms = NO_HORIZON, -1
        self._position = output_position

    def add(self, batch: Buffer, header: BatchHeader, max_timestamp: int) -> None:
        """A batch that stays. `header` is what it was before; the timestamp and the records may be others."""
        is_noted = header.producer_id >= 0 or header.is_transactional
        self.rows.append(BatchRow(self._position, len(batch), header.last_offset, max_timestamp, is_noted))
        self.parts.append(batch)
        self._position += len(batch)
        if self.last_offset < 0 or max_timestamp > self.max_timestamp_ms:
            self.max_timestamp_ms, self.max_timestamp_offset = max_timestamp, header.last_offset
        self.last_offset = header.last_offset

    def note_horizon(self, horizon_ms: int) -> None:
        """Something stays that goes at that time."""
        self.earliest_horizon_ms = min(self.earliest_horizon_ms, horizon_ms)
        self.latest_horizon_ms = max(self.latest_horizon_ms, horizon_ms)

    def count(self, header: BatchHeader, records: CleanedRecords) -> None:
        self.records_in += header.records_count
        self.records_kept += records.records_kept
        self.null_key_count += records.null_key_count
        self.dropped_tombstone_count += records.dropped_tombstone_count


def _clean(
    batch: memoryview, header: BatchHeader, offset_map: KnownOffsets, rule: CleanRule, cleaned: _Cleaned
) -> None:
    if header.base_offset > offset_map.latest_offset or header.records_count == 0:
        require_room(batch[HEADER_SIZE:], header.records_count)
        if header.records_count > 0 or header.last_offset in rule.kept_empty:
            cleaned.add(batch, header, header.max_timestamp)
        cleaned.count(header, CleanedRecords(b"", header.records_count, 0, 0, 0, 0))
        return
    horizon_ms = header.delete_horizon_ms
    payload = bytes(batch[HEADER_SIZE:])

    def cleaned_with(timestamp_shift: int) -> CleanedRecords:
        return _clean_records(
            payload,
            header.records_count,
            header.base_offset,
            offset_map,
            last_offset_delta=header.last_offset_delta,
            drop_tombstones=horizon_ms is not None and horizon_ms <= rule.now_ms,
            timestamp_shift=timestamp_shift,
        )

    records = cleaned_with(0)
    is_due = horizon_ms is None and header.last_offset <= offset_map.latest_offset
    if is_due and records.tombstone_count:
        shifted = cleaned_with(_shift(header, rule.horizon_ms))
        _add_rebuilt(header, shifted, rule.horizon_ms, cleaned)
        cleaned.note_horizon(rule.horizon_ms)
    elif records.records_kept == header.records_count:
        cleaned.add(batch, header, header.max_timestamp)
    elif records.records_kept:
        _add_rebuilt(header, records, None, cleaned)
    else:
        _drop(header, rule, cleaned)
    if records.tombstone_count and horizon_ms is not None and horizon_ms > rule.now_ms:
        cleaned.note_horizon(horizon_ms)
    cleaned.count(header, records)


def _drop(header: BatchHeader, rule: CleanRule, cleaned: _Cleaned) -> None:
    """The batch goes, or stays for what its header says."""
    if header.last_offset in rule.kept_empty:
        cleaned.add(_emptied(header), header, header.max_timestamp)


def _clean_marker(
    batch: memoryview,
    header: BatchHeader,
    rule: CleanRule,
    transactions: OpenTransactions,
    cleaned: _Cleaned,
) -> bool:
    """Whether the batch is a marker as everybody writes it. Raises CorruptRecordError."""
    if header.codec is not Codec.NONE or not header.is_transactional or header.records_count != 1:
        return False
    payload, horizon_ms = bytes(batch[HEADER_SIZE:]), header.delete_horizon_ms
    (frame,) = record_frames(payload, 1)
    key = payload[frame.key_position : frame.key_position + max(0, frame.key_size)]
    value = payload[frame.value_position : frame.value_position + max(0, frame.value_size)]
    is_abort = key.startswith(_ABORT_KEY)
    if not (is_abort or key.startswith(_COMMIT_KEY)) or len(value) < _MARKER_VALUE_BYTES:
        return False
    if not value.startswith(_VERSION) or frame.offset_delta > header.last_offset_delta:
        return False
    # Nothing is forgotten of a transaction of which nothing is known, should the rest fail.
    is_kept = transactions.on_marker(header.producer_id)
    tells_epoch = is_kept_epoch(rule.kept_epochs, header)
    if is_kept is not None or tells_epoch:
        cleaned.add(batch, header, header.max_timestamp)
        cleaned.has_waiting_marker |= is_kept is False and not tells_epoch
    elif horizon_ms is None:
        cleaned.add(_with_horizon(payload, header, frame, rule), header, header.max_timestamp)
        cleaned.note_horizon(rule.horizon_ms)
    elif horizon_ms > rule.now_ms:
        cleaned.add(batch, header, header.max_timestamp)
        cleaned.note_horizon(horizon_ms)
    else:
        _drop(header, rule, cleaned)
        cleaned.dropped_marker_count += 1
        if is_abort:
            cleaned.dropped_aborts.append(header.last_offset)
    return True


def _with_horizon(payload: bytes, header: BatchHeader, frame: RecordFrame, rule: CleanRule) -> bytes:
    records = bytearray()
    append_shifted(records, payload, frame, _shift(header, rule.horizon_ms))
    return rebuild_batch(
        header,
        bytes(records),
        records_count=1,
        max_timestamp=header.max_timestamp,
        delete_horizon_ms=rule.horizon_ms,
    )


def _shift(header: BatchHeader, base_timestamp: int) -> int:
    """What is added to timestamp deltas with another base. Raises CorruptRecordError."""
    shift = header.base_timestamp - base_timestamp
    if shift not in _INT64:
        raise CorruptRecordError("a timestamp is out of range", base_offset=header.base_offset)
    return shift


def _add_rebuilt(
    header: BatchHeader, records: CleanedRecords, horizon_ms: int | None, cleaned: _Cleaned
) -> None:
    base_timestamp = header.base_timestamp if horizon_ms is None else horizon_ms
    max_timestamp = header.append_time_ms
    if max_timestamp is None:
        max_timestamp = base_timestamp + records.max_timestamp_delta
    batch = rebuild_batch(
        header,
        records.payload,
        records_count=records.records_kept,
        max_timestamp=max_timestamp,
        delete_horizon_ms=horizon_ms,
    )
    cleaned.add(batch, header, max_timestamp)


def _emptied(header: BatchHeader) -> bytes:
    """The header alone, as Kafka leaves it: neither a codec nor a horizon, but when its records were."""
    emptied = header._replace(
        attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT), base_timestamp=NO_TIMESTAMP
    )
    return rebuild_batch(emptied, b"", records_count=0, max_timestamp=header.max_timestamp)


def _clean_records(
    payload: bytes,
    records_count: int,
    base_offset: int,
    offset_map: KnownOffsets,
    *,
    last_offset_delta: int,
    drop_tombstones: bool,
    timestamp_shift: int,
) -> CleanedRecords:
    kept = bytearray()
    timestamp_deltas: list[int] = []
    tombstone_count = dropped_tombstone_count = null_key_count = 0
    for frame in record_frames(payload, records_count):
        offset = base_offset + frame.offset_delta
        if frame.offset_delta > last_offset_delta or offset > MAX_OFFSET:
            raise CorruptRecordError(
                "a record lies behind the last offset of its batch", base_offset=base_offset
            )
        if offset <= offset_map.latest_offset:
            if frame.key_size < 0:
                null_key_count += 1
                continue
            newest = offset_map.get(payload[frame.key_position : frame.key_position + frame.key_size])
            if newest is not None and newest > offset:
                continue
            if frame.value_size < 0 and drop_tombstones:
                dropped_tombstone_count += 1
                continue
        tombstone_count += frame.value_size < 0
        timestamp_deltas.append(frame.timestamp_delta + timestamp_shift)
        append_shifted(kept, payload, frame, timestamp_shift)
    return CleanedRecords(
        bytes(kept),
        len(timestamp_deltas),
        max(timestamp_deltas, default=0),
        tombstone_count,
        dropped_tombstone_count,
        null_key_count,
    )
