"""Finding records by time in the segments of a log.

The time index narrows a search down to a few batches, a batch's header tells whether it holds a record that
is new enough, and only the records of that batch are decoded. Records are not ordered by time: "the first at
or behind T" is the first in offset order, however old its neighbours are. As in Kafka, a marker of a
transaction is a record like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.record.batch import decode
from stratalog.record.record import Record
from stratalog.segment.batch_walk import LocatedBatch
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.timestamp_offset import NO_TIMESTAMP_OFFSET, TimestampOffset


def first_at_or_after(
    segments: Sequence[LogSegment], timestamp_ms: int, start_offset: int, end_offset: int
) -> TimestampOffset | None:
    """The first record in [start_offset, end_offset) with that timestamp or a later one.

    Raises CorruptRecordError, OSError (FileNotFoundError where a segment was dropped meanwhile).
    """
    for segment in segments:
        if segment.end_offset <= start_offset or segment.max_timestamp().timestamp_ms < timestamp_ms:
            continue
        if segment.base_offset >= end_offset:
            return None
        for located in segment.batches_since(timestamp_ms):
            header = located.header
            if header.base_offset >= end_offset:
                return None
            if header.max_timestamp < timestamp_ms or header.last_offset < start_offset:
                continue
            for record in _records(segment, located):
                if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
                    return _within(record, end_offset)
    return None


def newest(segments: Sequence[LogSegment], start_offset: int, end_offset: int) -> TimestampOffset | None:
    """The first of the records in [start_offset, end_offset) that have the highest timestamp; None where none
    has one.

    Raises as `first_at_or_after` does.
    """
    best = NO_TIMESTAMP_OFFSET
    for segment in segments:
        if segment.end_offset <= start_offset or segment.base_offset >= end_offset:
            continue
        # The index names the batch with the segment's highest timestamp; usually one of its records is the
        # answer. It is not where the batch lies outside of the range, in part or in whole: then all are
        # asked.
        highest_ms = segment.max_timestamp().timestamp_ms
        for since_ms in (highest_ms, best.timestamp_ms + 1) if highest_ms > best.timestamp_ms else ():
            better = _newest_since(segment, since_ms, start_offset, end_offset)
            if better.timestamp_ms >= since_ms:
                best = better
                break
    return None if best == NO_TIMESTAMP_OFFSET else best


def _newest_since(segment: LogSegment, since_ms: int, start_offset: int, end_offset: int) -> TimestampOffset:
    """The first record in the range with the highest timestamp of `since_ms` or more."""
    best = NO_TIMESTAMP_OFFSET
    for located in segment.batches_since(since_ms):
        header = located.header
        if header.base_offset >= end_offset:
            break
        if header.max_timestamp < max(since_ms, best.timestamp_ms + 1) or header.last_offset < start_offset:
            continue
        for record in _records(segment, located):
            if start_offset <= record.offset < end_offset and record.timestamp_ms > best.timestamp_ms:
                best = TimestampOffset(record.timestamp_ms, record.offset)
    return best


def _records(segment: LogSegment, located: LocatedBatch) -> list[Record]:
    return decode(segment.read_bytes(located.position, located.header.size_in_bytes))


def _within(record: Record, end_offset: int) -> TimestampOffset | None:
    return TimestampOffset(record.timestamp_ms, record.offset) if record.offset < end_offset else None
