"""Finding records by time in the segments of a log.

The time index narrows a search down to a few batches, a batch's header tells whether it holds a record that
is new enough, and only the records of that batch are decoded. Records are not ordered by time: "the first at
or behind T" is the first in offset order, however old its neighbours are. As in Kafka, a marker of a
transaction is a record like any other.

A segment is passed over where its time index and the headers agree that it is too old; within one, no batch
is passed over but by a header whose checksum was compared, and what is found was read as a fetch reads it:
its offset, which the checksum leaves out, is held against what lies behind.

So the newest record costs a look into one segment, the one whose claim is the highest. Where nothing in the
range bears that out, the next one is tried; but a claim that a damaged batch has part in is neither believed
nor passed over, and the answer is refused. A segment that claims too little would be missed. No single damage
does that: it takes one in the time index, and another one, in a header, that agrees with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from stratalog.log.log_segments import LogSegments
from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.record.header import HEADER_SIZE, MAX_OFFSET, NO_TIMESTAMP, parse_header
from stratalog.record.native.batch_row import BatchRow
from stratalog.record.record import Record
from stratalog.record.record_runs import batch_records
from stratalog.segment.batch_read import EpochSpan, ReadBounds
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.timestamp_offset import NO_TIMESTAMP_OFFSET, TimestampOffset


def first_at_or_after(
    segments: LogSegments, timestamp_ms: int, start_offset: int, end_offset: int
) -> TimestampOffset | None:
    """The first record in [start_offset, end_offset) with that timestamp or a later one.

    Raises CorruptRecordError, OSError (FileNotFoundError where a segment was dropped meanwhile).
    """
    # What lies below the start, and was not dropped yet, is not asked for its times.
    is_all_live = start_offset < segments[0].end_offset
    for segment in segments.since_time(timestamp_ms) if is_all_live else segments:
        if segment.end_offset <= start_offset or segment.max_timestamp().timestamp_ms < timestamp_ms:
            continue
        if segment.base_offset >= end_offset:
            return None
        for row in segment.rows_since(timestamp_ms):
            if row.max_timestamp_ms >= timestamp_ms and row.last_offset >= start_offset:
                for record in _records(segment, row):
                    if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
                        return _within(record, end_offset)
    return None


def newest(segments: LogSegments, start_offset: int, end_offset: int) -> TimestampOffset | None:
    """The first of the records in [start_offset, end_offset) that have the highest timestamp; None where none
    has one.

    Raises as `first_at_or_after` does.
    """
    claims = [
        (segment.max_timestamp().timestamp_ms, segment)
        for segment in segments
        if segment.end_offset > start_offset and segment.base_offset < end_offset
    ]
    # The highest first; among equal ones the oldest, as they were.
    claims.sort(key=itemgetter(0), reverse=True)
    best, others = NO_TIMESTAMP_OFFSET, list[tuple[int, LogSegment]]()
    for highest_ms, segment in claims:
        if highest_ms <= best.timestamp_ms:
            break
        found = _newest_since(segment, highest_ms, highest_ms, start_offset, end_offset)
        if found.timestamp_ms >= highest_ms:
            best = found
        else:
            # The batch with this timestamp lies outside of the range, in part or in whole, or a clean took
            # the record that had it.
            others.append((highest_ms, segment))
    for highest_ms, segment in others:
        least_ms = best.timestamp_ms + (segment.base_offset > best.offset)
        # Where the range ends may well be the newest: then no more than that is read.
        for since_ms in dict.fromkeys((max(least_ms, _end_ms(segment, end_offset)), least_ms)):
            found = _newest_since(segment, since_ms, highest_ms, start_offset, end_offset)
            if found.timestamp_ms >= since_ms:
                best = found
                break
    return None if best == NO_TIMESTAMP_OFFSET else best


def _newest_since(
    segment: LogSegment, since_ms: int, highest_ms: int, start_offset: int, end_offset: int
) -> TimestampOffset:
    """The first record in the range with the highest timestamp of `since_ms` or more; none in the segment has
    one above `highest_ms`."""
    best, next_offset = NO_TIMESTAMP_OFFSET, segment.base_offset
    for row in segment.rows_since(since_ms):
        if next_offset >= end_offset:
            break
        next_offset = row.last_offset + 1
        if row.max_timestamp_ms >= max(since_ms, best.timestamp_ms + 1) and row.last_offset >= start_offset:
            for record in _records(segment, row):
                if start_offset <= record.offset < end_offset and record.timestamp_ms > best.timestamp_ms:
                    best = TimestampOffset(record.timestamp_ms, record.offset)
        if best.timestamp_ms == highest_ms:
            break
    return best


def _end_ms(segment: LogSegment, end_offset: int) -> int:
    """The time of the last batch below, as its header says: nobody has proven it."""
    position = segment.position_of(min(end_offset, segment.end_offset) - 1)
    if position is None:
        return NO_TIMESTAMP
    return parse_header(segment.read_bytes(position, HEADER_SIZE)).max_timestamp


def _records(segment: LogSegment, row: BatchRow) -> Iterator[Record]:
    """None of a batch that is just being appended, and belongs to nobody yet."""
    limit_offset = segment.end_offset
    if row.last_offset >= limit_offset:
        return iter(())
    bounds = ReadBounds(segment.base_offset, limit_offset, limit_offset, _any_epoch)
    return batch_records(segment.read(row.position, row.size_bytes, bounds, min_one=True).data)


def _any_epoch(_: int) -> EpochSpan:
    return EpochSpan(NO_LEADER_EPOCH, MAX_OFFSET)


def _within(record: Record, end_offset: int) -> TimestampOffset | None:
    return TimestampOffset(record.timestamp_ms, record.offset) if record.offset < end_offset else None
