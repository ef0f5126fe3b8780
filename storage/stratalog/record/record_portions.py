"""Yields the records of batches in portions of bounded size, so that a reader's memory stays bounded.

A batch of a few kilobytes may hold a gigabyte, and a record of seven bytes takes hundreds as an object. So
one batch at a time is decompressed, and a large one becomes objects portion by portion. Small batches
share a portion: one for each batch would take longer than decoding it.

All functions are thread-safe; the buffers must not change until the iterator ends. They raise
CorruptRecordError at an invalid batch, after the records of all batches before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.batch import (
    DEFAULT_MAX_DECOMPRESSED,
    checked_payload,
    records_payload,
    require_crc_as_read,
    whole_header,
)
from stratalog.record.header import MAX_OFFSET, BatchHeader, parse_header
from stratalog.record.native import kernels
from stratalog.record.native.consumer_records import (
    ConsumerRecord,
    Decoder,
    decode_consumer_batches,
    decode_consumer_records,
)
from stratalog.record.record import Record
from stratalog.record.record_frame import frame_fault

PORTION_COUNT = 16 * 1024
"""The most records of a section that `payload_spans` cuts."""

PORTION_BYTES = 2 * 1024 * 1024
"""The most bytes that the records of a portion have in their batches, except for one larger record."""

CONSUMED_COUNT = 2 * 1024
"""The most records of a portion for a consumer. As objects these fit into a processor's cache, and the memory
of one portion serves the next."""


class RecordReading(NamedTuple):
    """The records of a partition that a reader wants, and their form."""

    topic: str
    partition: int
    first_offset: int = 0
    end_offset: int = MAX_OFFSET
    decode_key: Decoder = None
    decode_value: Decoder = None


class RecordPortion(NamedTuple):
    """Consecutive records, at least one."""

    records: list[ConsumerRecord]
    last_epoch: int
    """The leader epoch of the batch of the last record."""
    has_more: bool
    """More batches follow; they may have no more wanted records."""


def record_portions(
    buffer: Buffer,
    reading: RecordReading,
    is_wanted: Callable[[BatchHeader], bool],
    *,
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED,
) -> Iterator[RecordPortion]:
    """Yield the wanted records in a buffer of whole batches.

    `is_wanted` is called once for each control batch or transactional batch, in order, after its checksum was
    compared, because the fields that it looks at may be damaged too. `max_bytes` bounds each batch. Beside
    the portions that the caller keeps, one decompressed batch and one portion are in memory.
    """
    portion: list[ConsumerRecord] = []
    portion_bytes, position, last_epoch = 0, 0, -1
    try:
        while position < len(buffer):
            position, taken_bytes, epoch = decode_consumer_batches(
                buffer, position, CONSUMED_COUNT, PORTION_BYTES - portion_bytes, reading, portion
            )
            if taken_bytes:
                portion_bytes, last_epoch = portion_bytes + taken_bytes, epoch
            if position == len(buffer):
                break
            header = whole_header(buffer, position)
            if portion and not _fits(header, len(portion), header.size_in_bytes + portion_bytes):
                yield RecordPortion(portion, last_epoch, has_more=True)
                portion, portion_bytes = [], 0
                continue
            require_crc_as_read(buffer, position, header)
            if is_inside(header, reading) and (
                not (header.is_transactional or header.is_control) or is_wanted(header)
            ):
                payload = records_payload(buffer, position, header, max_bytes=max_bytes)
                if _fits(header, len(portion), portion_bytes + len(payload)):
                    portion_bytes += len(payload)
                    portion += _consumed(payload, header.records_count, header, reading)
                else:
                    for records, size_bytes in _consumed_portions(payload, header, reading):
                        if portion:
                            yield RecordPortion(portion, last_epoch, has_more=True)
                        portion, portion_bytes = records, size_bytes
                        # Otherwise a large record would stay in memory beside the following ones.
                        del records
                        last_epoch = header.leader_epoch
                del payload
                last_epoch = header.leader_epoch
            position += header.size_in_bytes
            if portion and portion_bytes >= PORTION_BYTES:
                yield RecordPortion(portion, last_epoch, has_more=position < len(buffer))
                portion, portion_bytes = [], 0
    except CorruptRecordError as error:
        if portion:
            yield RecordPortion(portion, last_epoch, has_more=True)
        raise placed_error(error, reading) from None
    if portion:
        yield RecordPortion(portion, last_epoch, has_more=False)


def batch_records(
    buffer: Buffer, position: int = 0, *, max_bytes: int = DEFAULT_MAX_DECOMPRESSED
) -> Iterator[Record]:
    """Yield the records of the batch at `position`. The records of a control batch are markers. Raises
    CorruptRecordError."""
    header = parse_header(buffer, position)
    payload = checked_payload(buffer, position, header, max_bytes)
    for records in _portions(payload, header):
        yield from records


def payload_spans(
    payload: Buffer, records_count: int, max_count: int | None = None
) -> Iterator[tuple[Buffer, int]]:
    """Cut the records section of a batch, between records, into sections of at most `max_count` records
    (default: PORTION_COUNT) and PORTION_BYTES, and yield each with its record count. The last section has all
    the rest, so that decoding it finds bytes that do not belong there."""
    max_count = max_count or PORTION_COUNT
    if records_count <= max_count and len(payload) <= PORTION_BYTES:
        yield payload, records_count
        return
    view = memoryview(payload)
    position = 0
    while True:
        count, end_position = kernels.span_records(payload, position, max_count, PORTION_BYTES)
        if count >= records_count:
            yield view[position:], records_count
            return
        yield view[position:end_position], count
        position = end_position
        records_count -= count


def _fits(header: BatchHeader, held_count: int, size_bytes: int) -> bool:
    """Whether a portion has room for the batch, with which it would have `size_bytes`."""
    return size_bytes <= PORTION_BYTES and held_count + header.records_count <= CONSUMED_COUNT


def is_inside(header: BatchHeader, reading: RecordReading) -> bool:
    """Whether the batch may have records that the reader wants."""
    return header.last_offset >= reading.first_offset and header.base_offset < reading.end_offset


def placed_error(error: CorruptRecordError, reading: RecordReading) -> CorruptRecordError:
    """The error with the topic and the partition among its fields."""
    place: dict[str, object] = {"topic": reading.topic, "partition": reading.partition}
    return CorruptRecordError(error.message, **{**place, **error.fields})


def _portions(payload: Buffer, header: BatchHeader) -> Iterator[list[Record]]:
    """Yield the records of each section."""
    last_offset = header.base_offset - 1
    for section, count in payload_spans(payload, header.records_count):
        records = kernels.decode_records(
            section, count, header.base_offset, header.base_timestamp, header.append_time_ms
        )
        if records:
            last_offset = _require_ascending(header, last_offset, records[0].offset, records[-1].offset)
        yield records
        del records


def _consumed_portions(
    payload: Buffer, header: BatchHeader, reading: RecordReading
) -> Iterator[tuple[list[ConsumerRecord], int]]:
    """Yield the wanted records of each section, and their size in the batch. Sections without any are left
    out."""
    last_offset = header.base_offset - 1
    for section, count in payload_spans(payload, header.records_count, CONSUMED_COUNT):
        records = _consumed(section, count, header, reading)
        if records:
            last_offset = _require_ascending(header, last_offset, records[0].offset, records[-1].offset)
            yield records, len(section)
        del records


def _require_ascending(header: BatchHeader, before: int, first: int, last: int) -> int:
    """The last offset of a section. Raises CorruptRecordError unless its first one is above `before`; the
    kernels prove the order within a section."""
    if first <= before:
        raise CorruptRecordError(
            "the offsets of the records do not increase", base_offset=header.base_offset, offset=first
        )
    return last


def _consumed(
    section: Buffer, count: int, header: BatchHeader, reading: RecordReading
) -> list[ConsumerRecord]:
    try:
        return decode_consumer_records(section, count, header, reading)
    except CorruptRecordError as failure:
        fault = frame_fault(section, header) or failure
        raise CorruptRecordError(
            fault.message, **{**fault.fields, "base_offset": header.base_offset}
        ) from None
