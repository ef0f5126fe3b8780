"""Finding records by time in the segments of a log.

The time index narrows a search down to a few batches, a batch's header tells whether it holds a record that
is new enough, and only the records of that batch are decoded. Records are not ordered by time: "the first at
or behind T" is the first in offset order, however old its neighbours are.
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
        if segment.max_timestamp().timestamp_ms <= best.timestamp_ms:
            continue
        is_inside = segment.base_offset >= start_offset and segment.end_offset <= end_offset
        # All of it counts: jump to the batch that the index names. Else look at every batch that might beat
        # the best.
        since_ms = segment.max_timestamp().timestamp_ms if is_inside else best.timestamp_ms + 1
        for located in segment.batches_since(since_ms):
            header = located.header
            if header.base_offset >= end_offset:
                break
            if header.max_timestamp <= best.timestamp_ms or header.last_offset < start_offset:
                continue
            for record in _records(segment, located):
                if start_offset <= record.offset < end_offset and record.timestamp_ms > best.timestamp_ms:
                    best = TimestampOffset(record.timestamp_ms, record.offset)
    return None if best == NO_TIMESTAMP_OFFSET else best


def _records(segment: LogSegment, located: LocatedBatch) -> list[Record]:
    if located.header.is_control:
        return []
    return decode(segment.read_bytes(located.position, located.header.size_in_bytes))


def _within(record: Record, end_offset: int) -> TimestampOffset | None:
    return TimestampOffset(record.timestamp_ms, record.offset) if record.offset < end_offset else None
