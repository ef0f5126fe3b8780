"""Yields the records of a range of offsets piece by piece, in memory that no batch decides about.

A batch that decompresses to more than `WHOLE_BYTES` is decompressed a section at a time, so a few kilobytes
that hold a gigabyte take some megabytes. A record that is larger than a section is in memory as a whole; the
caller hears of it first.

Thread-safe; the buffer must not change until the iterator ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from stratalog.base.filesystem import Buffer
from stratalog.record.batch import batches, require_crc_as_read
from stratalog.record.header import BatchHeader
from stratalog.record.reading.record_portions import section_portions
from stratalog.record.reading.record_sections import RecordSections
from stratalog.record.record import Record


class RecordPiece(NamedTuple):
    """Some of the records of one batch, or a batch without records for the reader."""

    records: list[Record]
    """In order. May be empty."""
    next_offset: int
    """All records of the range below this offset have been yielded."""
    leader_epoch: int
    """The leader epoch of the batch."""
    held_bytes: int
    """About the bytes that decompression and this piece take until the next one."""


def record_stream(
    buffer: Buffer,
    is_readable: Callable[[BatchHeader], bool],
    start_offset: int,
    end_offset: int,
    on_large_record: Callable[[int], None],
) -> Iterator[RecordPiece]:
    """Yield the records in [start_offset, end_offset) of the readable batches in a buffer of whole batches.

    A piece has a bounded part of one batch, so a walk over many records outside the range yields many empty
    pieces. `on_large_record` is called with the size of a record before that is decompressed as a whole; it
    may raise. Raises CorruptRecordError, after the records of all batches before the damaged one.
    """
    for position, header in batches(buffer):
        require_crc_as_read(buffer, position, header)
        if header.last_offset < start_offset:
            continue
        if header.base_offset >= end_offset:
            return
        if is_readable(header) and not header.is_bare:
            whole = memoryview(buffer)[position : position + header.size_in_bytes]
            yield from _pieces(whole, header, start_offset, end_offset, on_large_record)
        yield RecordPiece([], min(header.next_offset, end_offset), header.leader_epoch, 0)


def _pieces(
    batch: Buffer,
    header: BatchHeader,
    start_offset: int,
    end_offset: int,
    on_large_record: Callable[[int], None],
) -> Iterator[RecordPiece]:
    sections = RecordSections(batch, header, on_large_record)
    for section, count in sections:
        for records, size_bytes in section_portions(section, count, header):
            if not records:
                continue
            last_offset = records[-1].offset
            # Almost always all records are wanted, and the list is not copied.
            kept = records
            if records[0].offset < start_offset or last_offset >= end_offset:
                kept = [one for one in records if start_offset <= one.offset < end_offset]
            next_offset = min(max(last_offset + 1, start_offset), end_offset)
            yield RecordPiece(kept, next_offset, header.leader_epoch, sections.held_bytes + 2 * size_bytes)
            if last_offset >= end_offset:
                return
            # Otherwise a large record would stay in memory beside the following ones.
            del records, kept
