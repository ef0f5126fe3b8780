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
    batches,
    checked_payload,
    records_payload,
    require_crc_as_read,
)
from stratalog.record.header import BatchHeader, parse_header
from stratalog.record.native import kernels
from stratalog.record.record import Record

PORTION_COUNT = 16 * 1024
"""The most records of a portion."""

PORTION_BYTES = 2 * 1024 * 1024
"""The most bytes that the records of a portion have in their batches, except for one larger record."""


class RecordPortion(NamedTuple):
    """Consecutive records, at least one."""

    records: list[Record]
    has_more: bool
    """Another portion follows."""


def record_portions(
    buffer: Buffer,
    is_wanted: Callable[[BatchHeader], bool],
    *,
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED,
) -> Iterator[RecordPortion]:
    """Yield the records of the wanted batches in a buffer of whole batches.

    `is_wanted` is called once for each batch, in order, after its checksum was compared, because the fields
    that it looks at may be damaged too. `max_bytes` bounds each batch. Beside the portions that the caller
    keeps, one decompressed batch and one portion are in memory.
    """
    portion: list[Record] = []
    portion_bytes = 0
    wanted = (located for located in _proven_batches(buffer) if is_wanted(located[1]))
    try:
        upcoming = next(wanted, None)
        while upcoming is not None:
            position, header = upcoming
            payload = records_payload(buffer, position, header, max_bytes=max_bytes)
            if (
                portion_bytes + len(payload) <= PORTION_BYTES
                and len(portion) + header.records_count <= PORTION_COUNT
            ):
                portion_bytes += len(payload)
                portion += _decoded(payload, header.records_count, header)
            else:
                for records, size_bytes in section_portions(payload, header.records_count, header):
                    if portion:
                        yield RecordPortion(portion, has_more=True)
                    portion, portion_bytes = records, size_bytes
                    # Otherwise a large record would stay in memory beside the following ones.
                    del records
            del payload
            upcoming = next(wanted, None)
            if portion_bytes >= PORTION_BYTES:
                yield RecordPortion(portion, has_more=upcoming is not None)
                portion, portion_bytes = [], 0
    except CorruptRecordError:
        if portion:
            yield RecordPortion(portion, has_more=True)
        raise
    if portion:
        yield RecordPortion(portion, has_more=False)


def batch_records(
    buffer: Buffer, position: int = 0, *, max_bytes: int = DEFAULT_MAX_DECOMPRESSED
) -> Iterator[Record]:
    """Yield the records of the batch at `position`. The records of a control batch are markers. Raises
    CorruptRecordError."""
    header = parse_header(buffer, position)
    payload = checked_payload(buffer, position, header, max_bytes)
    for records, _ in section_portions(payload, header.records_count, header):
        yield from records


def payload_spans(payload: Buffer, records_count: int) -> Iterator[tuple[Buffer, int]]:
    """Cut the records section of a batch, between records, into sections of one portion each, and yield each
    with its record count. The last section has all the rest, so that decoding it finds bytes that do not
    belong there."""
    if records_count <= PORTION_COUNT and len(payload) <= PORTION_BYTES:
        yield payload, records_count
        return
    view = memoryview(payload)
    position = 0
    while True:
        count, end_position = kernels.span_records(payload, position, PORTION_COUNT, PORTION_BYTES)
        if count >= records_count:
            yield view[position:], records_count
            return
        yield view[position:end_position], count
        position = end_position
        records_count -= count


def _proven_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    for position, header in batches(buffer):
        require_crc_as_read(buffer, position, header)
        yield position, header


def section_portions(
    section: Buffer, records_count: int, header: BatchHeader
) -> Iterator[tuple[list[Record], int]]:
    """Yield the records of a section of whole records, portion by portion, and their size in the batch.
    Raises CorruptRecordError."""
    last_offset = header.base_offset - 1
    for span, count in payload_spans(section, records_count):
        records = _decoded(span, count, header)
        # The kernel proves this within a section.
        if records and records[0].offset <= last_offset:
            raise CorruptRecordError(
                "the offsets of the records do not increase",
                base_offset=header.base_offset,
                offset=records[0].offset,
            )
        last_offset = records[-1].offset if records else last_offset
        yield records, len(span)
        del records


def _decoded(section: Buffer, count: int, header: BatchHeader) -> list[Record]:
    return kernels.decode_records(
        section, count, header.base_offset, header.base_timestamp, header.append_time_ms
    )
