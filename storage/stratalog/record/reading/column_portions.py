"""Yields the rows of batches in column buffers of bounded size, so that a reader's memory stays bounded.

The twin of ``record_portions`` for columns, with the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.batch import whole_header
from stratalog.record.columns import ColumnBuffers, ColumnLimits
from stratalog.record.header import BatchHeader
from stratalog.record.native import kernels
from stratalog.record.native.batch_kernels import decode_column_batches
from stratalog.record.reading.record_portions import (
    RecordReading,
    payload_spans,
    placed_error,
    wanted_payload,
)
from stratalog.record.record_frame import section_fault

COLUMN_LIMITS = ColumnLimits(data_bytes=4 << 20, row_count=1 << 17)
"""The most in the buffers before the next section of a batch is added."""


class ColumnPortion(NamedTuple):
    """Consecutive rows, at least one."""

    rows: ColumnBuffers
    last_epoch: int
    """The leader epoch of the batch of the last row."""


def column_portions(
    buffer: Buffer,
    reading: RecordReading,
    is_wanted: Callable[[BatchHeader], bool],
    new_columns: Callable[[], ColumnBuffers],
) -> Iterator[ColumnPortion]:
    """Yield the wanted records in a buffer of whole batches as rows, keys and values as bytes.

    `is_wanted` as for `record_portions`; `new_columns` makes the buffers. Raises CorruptRecordError at an
    invalid batch, after the rows of all batches before it.
    """
    rows, position, last_epoch = new_columns(), 0, -1
    try:
        while position < len(buffer):
            if rows.is_full(COLUMN_LIMITS):
                yield ColumnPortion(rows, last_epoch)
                rows = new_columns()
            end_position, epoch = decode_column_batches(
                buffer, position, COLUMN_LIMITS.data_bytes, reading.first_offset, reading.end_offset, rows
            )
            if end_position > position:
                position, last_epoch = end_position, epoch
                continue
            header = whole_header(buffer, position)
            payload = wanted_payload(buffer, position, header, reading, is_wanted)
            if payload is not None:
                for section, count in payload_spans(payload, header.records_count):
                    if rows.is_full(COLUMN_LIMITS):
                        yield ColumnPortion(rows, last_epoch)
                        rows = new_columns()
                    append_columns(section, count, header, reading.first_offset, reading.end_offset, rows)
                    last_epoch = header.leader_epoch
                    del section
            # Before the next batch is decompressed.
            del payload
            position += header.size_in_bytes
    except CorruptRecordError as error:
        if rows.row_count:
            yield ColumnPortion(rows, last_epoch)
        raise placed_error(error, reading) from None
    if rows.row_count:
        yield ColumnPortion(rows, last_epoch)


def append_columns(
    section: Buffer, count: int, header: BatchHeader, first_offset: int, end_offset: int, rows: ColumnBuffers
) -> None:
    """Append the records of a section with offsets in [first_offset, end_offset) to the columns. Raises
    CorruptRecordError with the base offset of the batch."""
    try:
        kernels.decode_columns(
            section,
            count,
            header.base_offset,
            header.base_timestamp,
            header.append_time_ms,
            first_offset,
            end_offset,
            rows,
        )
    except CorruptRecordError as failure:
        raise section_fault(failure, section, header) from None
