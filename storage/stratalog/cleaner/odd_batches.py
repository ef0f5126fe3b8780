"""Batches that the cleaning kernels leave to Python: compressed ones, markers, and those that begin below the
log's start. Functions from a batch to what is left of it.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record import kernels
from stratalog.record.batch import records_payload
from stratalog.record.builder import rebuild_batch
from stratalog.record.header import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    NO_TIMESTAMP,
    BatchHeader,
)
from stratalog.record.offset_map import CleanedRecords, CleanRule, OffsetMap, clean_records

NOTHING = b""


class CleanedBatch(NamedTuple):
    """What is left of a compressed batch."""

    batch: Buffer
    """Nothing where no record is left."""
    records: CleanedRecords
    horizon_ms: int | None = None
    """From when on its tombstones may go, unless nobody knows yet."""


def is_compressed(header: BatchHeader) -> bool:
    """The kernels take it only where its data was aborted."""
    return header.attributes & CODEC_MASK != 0 and header.records_count > 0


def clean_compressed(
    batch: Buffer, header: BatchHeader, offset_map: OffsetMap, rule: CleanRule, level: int | None
) -> CleanedBatch:
    """What `clean_batches` would leave of it, compressed by the same codec. Raises CorruptRecordError."""
    payload = records_payload(batch, 0, header)
    horizon_ms = header.delete_horizon_ms

    def cleaned_with(timestamp_shift: int) -> CleanedRecords:
        return clean_records(
            payload,
            header.records_count,
            header.base_offset,
            offset_map,
            drop_tombstones=horizon_ms is not None and horizon_ms <= rule.now_ms,
            timestamp_shift=timestamp_shift,
        )

    records = cleaned_with(0)
    new_horizon_ms = None
    if records.tombstone_count and horizon_ms is None and header.last_offset <= offset_map.latest_offset:
        new_horizon_ms = rule.horizon_ms
        records = cleaned_with(header.base_timestamp - new_horizon_ms)
    elif records.records_kept == header.records_count:
        return CleanedBatch(batch, records, horizon_ms)
    if records.records_kept == 0:
        return CleanedBatch(NOTHING, records)
    base_timestamp = header.base_timestamp if new_horizon_ms is None else new_horizon_ms
    append_time_ms = header.append_time_ms
    rebuilt = rebuild_batch(
        header,
        records.payload,
        records_count=records.records_kept,
        max_timestamp=(
            base_timestamp + records.max_timestamp_delta if append_time_ms is None else append_time_ms
        ),
        delete_horizon_ms=new_horizon_ms,
        level=level,
    )
    return CleanedBatch(rebuilt, records, horizon_ms if new_horizon_ms is None else new_horizon_ms)


def emptied(header: BatchHeader) -> bytes:
    """The header alone: the offsets and the producer's numbers of a batch whose records are gone. It has
    neither a codec nor a horizon, as Kafka leaves it."""
    without = header._replace(
        attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT), base_timestamp=NO_TIMESTAMP
    )
    return rebuild_batch(without, NOTHING, records_count=0, max_timestamp=header.max_timestamp)


def with_horizon(batch: Buffer, header: BatchHeader, horizon_ms: int) -> bytes:
    """The control batch with the time from which it may go. Raises CorruptRecordError."""
    copied = _copied(batch, header, 0, header.base_timestamp - horizon_ms)
    return rebuild_batch(
        header,
        copied.payload,
        records_count=copied.count,
        max_timestamp=header.max_timestamp,
        delete_horizon_ms=horizon_ms,
    )


def since_offset(batch: Buffer, header: BatchHeader, start_offset: int, level: int | None) -> bytes:
    """The batch, which begins below `start_offset`, without the records that do; nothing where none is left.
    Raises CorruptRecordError."""
    if header.next_offset <= start_offset or header.records_count == 0:
        return NOTHING
    copied = _copied(batch, header, start_offset - header.base_offset, 0)
    if copied.count == 0:
        return NOTHING
    append_time_ms = header.append_time_ms
    return rebuild_batch(
        header,
        copied.payload,
        records_count=copied.count,
        max_timestamp=(
            header.base_timestamp + copied.max_timestamp_delta if append_time_ms is None else append_time_ms
        ),
        level=level,
    )


def _copied(
    batch: Buffer, header: BatchHeader, first_offset_delta: int, timestamp_shift: int
) -> kernels.CopiedRecords:
    payload = records_payload(batch, 0, header)
    copied = kernels.copy_records(
        payload,
        header.records_count,
        b"\xff" * (header.records_count // 8 + 1),
        0,
        first_offset_delta=first_offset_delta,
        end_offset_delta=header.last_offset_delta + 1,
        drop_tombstones=False,
        timestamp_shift=timestamp_shift,
    )
    if first_offset_delta == 0 and copied.count != header.records_count:
        raise CorruptRecordError(
            "a record lies behind the last offset of its batch", base_offset=header.base_offset
        )
    return copied
