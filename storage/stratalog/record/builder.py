"""Makes record batches: from records, or from the records that a compaction kept of a batch.

A batch is made whole: header, records, compression, checksum. All functions are thread-safe and
deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.errors import CorruptRecordError, InvalidRequestError
from stratalog.base.filesystem import Buffer
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.codecs.compression import Codec, compress
from stratalog.record.header import (
    ATTRIBUTES_POSITION,
    BATCH_LENGTH_POSITION,
    CONTROL_BIT,
    CRC_POSITION,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LEADER_EPOCH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    MAX_OFFSET,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from stratalog.record.native import kernels
from stratalog.record.record import RecordLike
from stratalog.record.records_summary import CopiedRecords

NO_LEADER_EPOCH = -1
NO_PRODUCER = BatchProducer()
MAX_BATCH_LENGTH = 2**31 - 1
_MIN_INT64, _MAX_INT64 = -(2**63), 2**63 - 1


def encode_batch(
    records: Sequence[RecordLike],
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer: BatchProducer = NO_PRODUCER,
    is_control: bool = False,
    append_time_ms: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """Make a batch of the records, with the offsets `base_offset`, +1, +2 and so on.

    `append_time_ms`, unless None, is the time of all records (`LogAppendTime`). `delete_horizon_ms` is the
    time from which compaction may drop tombstones and markers. Raises InvalidRequestError if there is no
    record, if they are too large for one batch, or if the codec does not know the level.
    """
    if not records:
        raise InvalidRequestError("a batch needs at least one record")
    assert 0 <= base_offset <= MAX_OFFSET - len(records)
    producer.check()
    base_timestamp = records[0].timestamp_ms if delete_horizon_ms is None else delete_horizon_ms
    payload = kernels.encode_records(records, base_timestamp)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=codec
        | (TIMESTAMP_TYPE_BIT if append_time_ms is not None else 0)
        | (TRANSACTIONAL_BIT if producer.is_transactional else 0)
        | (CONTROL_BIT if is_control else 0)
        | (DELETE_HORIZON_BIT if delete_horizon_ms is not None else 0),
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=(
            max(record.timestamp_ms for record in records) if append_time_ms is None else append_time_ms
        ),
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=producer.base_sequence,
        records_count=len(records),
    )
    return _assemble(header, compress(codec, payload, level))


def head_of_section(
    section: Buffer,
    *,
    codec: Codec,
    records_count: int,
    base_timestamp: int,
    max_timestamp: int,
    producer: BatchProducer = NO_PRODUCER,
) -> bytes:
    """Make the header of a producer's batch, whose bytes lie before those of its records section: the codec
    has compressed the section, and offsets begin at 0. Raises InvalidRequestError if the section is too large
    for one batch.
    """
    assert records_count > 0
    producer.check()
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        leader_epoch=NO_LEADER_EPOCH,
        magic=MAGIC,
        crc=0,
        attributes=codec | (TRANSACTIONAL_BIT if producer.is_transactional else 0),
        last_offset_delta=records_count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=producer.base_sequence,
        records_count=records_count,
    )
    return _head(header, section)


def batch_of_producer(batch: Buffer, header: BatchHeader, producer: BatchProducer) -> bytes:
    """Make the batch of a producer from a plain batch, which has this header. Offsets begin at 0; the records
    section stays as it is. Raises InvalidRequestError as `head_of_section` does."""
    section = memoryview(batch)[HEADER_SIZE:]
    head = head_of_section(
        section,
        codec=header.codec,
        records_count=header.records_count,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer=producer,
    )
    return b"".join((head, section))


def rebuild_batch(
    header: BatchHeader,
    payload: Buffer,
    *,
    records_count: int,
    max_timestamp: int,
    delete_horizon_ms: int | None = None,
    level: int | None = None,
) -> bytes:
    """Make the batch of `header` with other records: the uncompressed `payload` that a compaction kept,
    possibly empty.

    Base offset, last offset delta, leader epoch, codec, producer fields and an existing delete horizon stay.
    `delete_horizon_ms` sets a new horizon; the timestamp deltas in `payload` must then be relative to it.
    """
    section = payload if header.codec is Codec.NONE else compress(header.codec, payload, level)
    return rebuild_compressed(
        header,
        section,
        records_count=records_count,
        max_timestamp=max_timestamp,
        delete_horizon_ms=delete_horizon_ms,
    )


def rebuild_compressed(
    header: BatchHeader,
    section: Buffer,
    *,
    records_count: int,
    max_timestamp: int,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """The same, of records that are compressed already by the codec of `header`."""
    assert 0 <= records_count <= header.last_offset_delta + 1
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if delete_horizon_ms is not None:
        attributes, base_timestamp = attributes | DELETE_HORIZON_BIT, delete_horizon_ms
    rebuilt = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        records_count=records_count,
    )
    return _assemble(rebuilt, section)


def with_horizon(payload: Buffer, header: BatchHeader, horizon_ms: int) -> bytes:
    """Make the batch of `header` with a new delete horizon around all its records: the uncompressed
    `payload`. Raises CorruptRecordError."""
    copied = records_since(payload, header.records_count, header, 0, timestamp_shift(header, horizon_ms))
    return rebuild_batch(
        header,
        copied.payload,
        records_count=copied.count,
        max_timestamp=header.max_timestamp,
        delete_horizon_ms=horizon_ms,
    )


def records_since(
    payload: Buffer, records_count: int, header: BatchHeader, first_offset_delta: int, shift: int = 0
) -> CopiedRecords:
    """Copy the records of a payload from that offset delta on, with shifted timestamp deltas. Raises
    CorruptRecordError."""
    copied = kernels.copy_records(
        payload,
        records_count,
        b"\xff" * (records_count // 8 + 1),
        0,
        first_offset_delta=first_offset_delta,
        end_offset_delta=header.last_offset_delta + 1,
        drop_tombstones=False,
        timestamp_shift=shift,
    )
    if first_offset_delta == 0 and copied.count != records_count:
        raise CorruptRecordError(
            "a record lies behind the last offset of its batch", base_offset=header.base_offset
        )
    return copied


def timestamp_shift(header: BatchHeader, base_timestamp: int) -> int:
    """The number of ms to add to a batch's timestamp deltas if it gets another base timestamp. Raises
    CorruptRecordError if an int64 cannot hold it."""
    shift = header.base_timestamp - base_timestamp
    _require_int64(shift, header)
    return shift


def rebuilt_max_timestamp(
    header: BatchHeader, max_timestamp_delta: int, delete_horizon_ms: int | None
) -> int:
    """The highest timestamp of a rebuilt batch. `max_timestamp_delta` is relative to its new base timestamp,
    which is the new horizon if it gets one. Raises CorruptRecordError if an int64 cannot hold it."""
    if header.append_time_ms is not None:
        return header.append_time_ms
    base_timestamp = header.base_timestamp if delete_horizon_ms is None else delete_horizon_ms
    max_timestamp = base_timestamp + max_timestamp_delta
    _require_int64(max_timestamp, header)
    return max_timestamp


def _require_int64(timestamp: int, header: BatchHeader) -> None:
    if not _MIN_INT64 <= timestamp <= _MAX_INT64:
        raise CorruptRecordError("a timestamp is out of range", base_offset=header.base_offset)


def _assemble(header: BatchHeader, section: Buffer) -> bytes:
    """Join header and records section into a batch, and fill in length and checksum."""
    return b"".join((_head(header, section), section))


def _head(header: BatchHeader, section: Buffer) -> bytes:
    """The header with the length and the checksum of a batch with that records section."""
    batch_length = HEADER_SIZE - LOG_OVERHEAD + len(section)
    if batch_length > MAX_BATCH_LENGTH:
        raise InvalidRequestError("the records are too large for one batch; send fewer at once")
    packed = bytearray(header.pack())
    packed[BATCH_LENGTH_POSITION:LEADER_EPOCH_POSITION] = batch_length.to_bytes(4)
    crc = kernels.crc32c(section, kernels.crc32c(packed[ATTRIBUTES_POSITION:]))
    packed[CRC_POSITION:ATTRIBUTES_POSITION] = crc.to_bytes(4)
    assert len(packed) == HEADER_SIZE
    return bytes(packed)
