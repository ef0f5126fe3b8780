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
from stratalog.record.record_frame import section_fault

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
    filling = _Filling()
    try:
        yield from _full_portions(buffer, reading, is_wanted, max_bytes, filling)
    except CorruptRecordError as error:
        if filling.records:
            yield filling.take(has_more=True)
        raise placed_error(error, reading) from None
    if filling.records:
        yield filling.take(has_more=False)


def batch_records(
    buffer: Buffer, position: int = 0, *, max_bytes: int = DEFAULT_MAX_DECOMPRESSED
) -> Iterator[Record]:
    """Yield the records of the batch at `position`. The records of a control batch are markers. Raises
    CorruptRecordError."""
    header = parse_header(buffer, position)
    payload = checked_payload(buffer, position, header, max_bytes)
    for records, _ in section_portions(payload, header.records_count, header):
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


class _Filling:
    """A portion that is being filled. Not thread-safe: belongs to one walk over batches."""

    def __init__(self) -> None:
        self.records: list[ConsumerRecord] = []
        self.size_bytes = 0
        self.last_epoch = -1

    def take(self, *, has_more: bool) -> RecordPortion:
        """The records so far; begins anew."""
        taken = RecordPortion(self.records, self.last_epoch, has_more)
        self.records, self.size_bytes = [], 0
        return taken

    def fits(self, header: BatchHeader, size_bytes: int) -> bool:
        """Whether there is room for the batch, whose records section has this size."""
        return (
            self.size_bytes + size_bytes <= PORTION_BYTES
            and len(self.records) + header.records_count <= CONSUMED_COUNT
        )


def _full_portions(
    buffer: Buffer,
    reading: RecordReading,
    is_wanted: Callable[[BatchHeader], bool],
    max_bytes: int,
    filling: _Filling,
) -> Iterator[RecordPortion]:
    """Yield all portions but the last one, which is left in `filling`."""
    position = 0
    while position < len(buffer):
        position, taken_bytes, epoch = decode_consumer_batches(
            buffer, position, CONSUMED_COUNT, PORTION_BYTES - filling.size_bytes, reading, filling.records
        )
        if taken_bytes:
            filling.size_bytes += taken_bytes
            filling.last_epoch = epoch
        if position == len(buffer):
            return
        header = whole_header(buffer, position)
        if filling.records and not filling.fits(header, header.size_in_bytes):
            yield filling.take(has_more=True)
            continue
        payload = wanted_payload(buffer, position, header, reading, is_wanted, max_bytes=max_bytes)
        if payload is not None and filling.fits(header, len(payload)):
            filling.size_bytes += len(payload)
            filling.records += _consumed(payload, header.records_count, header, reading)
            filling.last_epoch = header.leader_epoch
        elif payload is not None:
            for records, size_bytes in _consumed_portions(payload, header, reading):
                if filling.records:
                    yield filling.take(has_more=True)
                filling.records, filling.size_bytes = records, size_bytes
                filling.last_epoch = header.leader_epoch
                # Otherwise a large record would stay in memory beside the following ones.
                del records
        # Before the next batch is decompressed.
        del payload
        position += header.size_in_bytes
        if filling.records and filling.size_bytes >= PORTION_BYTES:
            yield filling.take(has_more=position < len(buffer))


def wanted_payload(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    reading: RecordReading,
    is_wanted: Callable[[BatchHeader], bool],
    *,
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED,
) -> Buffer | None:
    """The records section of a batch, decompressed, after comparing its checksum; None if the reader wants
    none of its records. Asks `is_wanted` only about control batches and transactional ones. Raises
    CorruptRecordError."""
    require_crc_as_read(buffer, position, header)
    if (header.is_transactional or header.is_control) and not is_wanted(header):
        return None
    if header.last_offset < reading.first_offset or header.base_offset >= reading.end_offset:
        return None
    return records_payload(buffer, position, header, max_bytes=max_bytes)


def placed_error(error: CorruptRecordError, reading: RecordReading) -> CorruptRecordError:
    """The error with the topic and the partition among its fields."""
    place: dict[str, object] = {"topic": reading.topic, "partition": reading.partition}
    return CorruptRecordError(error.message, **{**place, **error.fields})


def section_portions(
    section: Buffer, records_count: int, header: BatchHeader
) -> Iterator[tuple[list[Record], int]]:
    """Yield the records of a section of whole records, portion by portion, and their size in the batch.
    Raises CorruptRecordError."""
    last_offset = header.base_offset - 1
    for span, count in payload_spans(section, records_count):
        records = _decoded(span, count, header)
        if records:
            last_offset = _require_ascending(header, last_offset, records[0].offset, records[-1].offset)
        yield records, len(span)
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
        raise section_fault(failure, section, header) from None


def _decoded(section: Buffer, count: int, header: BatchHeader) -> list[Record]:
    return kernels.decode_records(
        section, count, header.base_offset, header.base_timestamp, header.append_time_ms
    )
