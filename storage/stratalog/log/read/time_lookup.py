"""Finds records by time in the segments of a log.

The time index narrows a search down to a few batches. The header of a batch shows if it has a record that is
new enough, and only the records of that batch are decoded. Records are not ordered by time: "the first at or
behind T" is the first in offset order, however old its neighbours are. As in Kafka, the marker of a
transaction is a record like any other.

The search skips a segment only if its time index and the headers agree that it is too old. Within a segment
it skips a batch only by a header whose checksum was compared. It reads records as a fetch does, so their
offsets, which the checksum leaves out, are compared with the batches behind.

So the newest record costs a look into one segment, the one with the highest claim. If no record in the range
has that time, the next segment is tried. If a damaged batch has part in a claim, the answer is refused. A
segment that claims too little would be missed, but no single damage does that: it takes one in the time
index, and another one in a header that agrees with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from stratalog.log.log_segments import LogSegments
from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.record.header import HEADER_SIZE, MAX_OFFSET, NO_TIMESTAMP, parse_header
from stratalog.record.native.batch_row import BatchRow
from stratalog.record.reading.record_portions import batch_records
from stratalog.record.record import Record
from stratalog.segment.batch_read import EpochSpan, ReadBounds
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.timestamp_offset import NO_TIMESTAMP_OFFSET, TimestampOffset


def first_at_or_after(
    segments: LogSegments, timestamp_ms: int, start_offset: int, end_offset: int
) -> TimestampOffset | None:
    """The first record in [start_offset, end_offset) with that timestamp or a later one.

    Raises CorruptRecordError, OSError (FileNotFoundError if a segment was dropped meanwhile).
    """
    # Segments below the start that were not dropped yet are not asked for their times.
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
    """The first record in [start_offset, end_offset) with the highest timestamp; None if none has one.

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
            # The record with this timestamp lies outside of the range, or a clean has dropped it.
            others.append((highest_ms, segment))
    for highest_ms, segment in others:
        least_ms = best.timestamp_ms + (segment.base_offset > best.offset)
        # The newest record is probably at the end of the range: then no other one is read.
        for since_ms in dict.fromkeys((max(least_ms, _end_ms(segment, end_offset)), least_ms)):
            found = _newest_since(segment, since_ms, highest_ms, start_offset, end_offset)
            if found.timestamp_ms >= since_ms:
                best = found
                break
    return None if best == NO_TIMESTAMP_OFFSET else best


def _newest_since(
    segment: LogSegment, since_ms: int, highest_ms: int, start_offset: int, end_offset: int
) -> TimestampOffset:
    """The first record in the range with the highest timestamp, if that is at least `since_ms`. No record of
    the segment has one above `highest_ms`."""
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
    """The unproven time of the last batch below, from its header."""
    position = segment.position_of(min(end_offset, segment.end_offset) - 1)
    if position is None:
        return NO_TIMESTAMP
    return parse_header(segment.read_bytes(position, HEADER_SIZE)).max_timestamp


def _records(segment: LogSegment, row: BatchRow) -> Iterator[Record]:
    """The records of a batch; none while the append of the batch goes on."""
    limit_offset = segment.end_offset
    if row.last_offset >= limit_offset:
        return iter(())
    bounds = ReadBounds(segment.base_offset, limit_offset, limit_offset, _any_epoch)
    return batch_records(segment.read(row.position, row.size_bytes, bounds, min_one=True).data)


def _any_epoch(_: int) -> EpochSpan:
    return EpochSpan(NO_LEADER_EPOCH, MAX_OFFSET)


def _within(record: Record, end_offset: int) -> TimestampOffset | None:
    return TimestampOffset(record.timestamp_ms, record.offset) if record.offset < end_offset else None
