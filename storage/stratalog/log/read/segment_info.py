"""Descriptions of a segment: for listings, and as a source of bytes for the object store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.record.header import NO_TIMESTAMP
from stratalog.segment.log_segment import LogSegment


class SegmentInfo(NamedTuple):
    """A local segment with offsets in [base_offset, end_offset). `max_timestamp_ms` is -1 if no record has a
    time, or if `damage` hides it."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int
    is_active: bool
    damage: CorruptRecordError | None = None


class SegmentSource(NamedTuple):
    """Whole batches in one segment, sealed or active, which are fsynced and may be uploaded.

    It stands for the offsets in [base_offset, end_offset). Its bytes are [first_position, first_position +
    size_bytes) of the segment's file. The first batch may begin below `base_offset`, where an
    earlier upload ended inside of that batch.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    first_position: int
    segment_base_offset: int
    since_ms: int
    """Wall time since which its oldest records have waited; see `LogSegment.first_append_ms`."""


def describe_segment(
    segment: LogSegment, *, is_proven: bool, on_read: Callable[[], None] = lambda: None
) -> SegmentInfo:
    """Describe a segment. `is_proven`: compare the checksum of the batch with its highest timestamp, and call
    `on_read` as `LogSegment.prove_max_timestamp` does. Raises OSError."""
    max_timestamp_ms, damage = NO_TIMESTAMP, None
    try:
        if is_proven:
            segment.prove_max_timestamp(on_read)
        max_timestamp_ms = segment.max_timestamp().timestamp_ms
    except CorruptRecordError as found:
        damage = found
    return SegmentInfo(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        max_timestamp_ms=max_timestamp_ms,
        is_active=segment.is_active,
        damage=damage,
    )


def upload_sources(
    sealed: Sequence[LogSegment], first_offset: int, end_offset: int
) -> tuple[SegmentSource, ...]:
    """The batches of the sealed segments in [first_offset, end_offset): whole segments, except for the first.

    Raises CorruptRecordError, OSError.
    """
    return tuple(
        _source(segment, first_offset)
        for segment in sealed
        if first_offset < segment.end_offset <= end_offset and segment.size_bytes > 0
    )


def tail_sources(
    segments: Sequence[LogSegment], first_offset: int, end_offset: int
) -> tuple[SegmentSource, ...]:
    """The batches of the segments in [first_offset, end_offset), the active one included. `end_offset` was
    the end of the log once, and was read before the segments.

    Raises CorruptRecordError, OSError.
    """
    if first_offset >= end_offset:
        return ()
    return tuple(
        _source(segment, first_offset)
        if segment.end_offset <= end_offset and not segment.is_active
        else _cut_source(segment, first_offset, end_offset)
        for segment in segments
        if segment.base_offset < end_offset and first_offset < segment.end_offset and segment.size_bytes > 0
    )


def _cut_source(segment: LogSegment, first_offset: int, end_offset: int) -> SegmentSource:
    """The batches of a segment below `end_offset`. Appends may go on meanwhile: what lies behind the size
    that is read here ends above."""
    size_bytes = segment.size_bytes
    end_position = segment.position_of(end_offset)
    size_bytes = size_bytes if end_position is None else end_position
    source = _source(segment, first_offset)
    return source._replace(end_offset=end_offset, size_bytes=max(0, size_bytes - source.first_position))


def _source(segment: LogSegment, first_offset: int) -> SegmentSource:
    position, size_bytes = 0, segment.size_bytes
    if first_offset > segment.base_offset:
        found = segment.position_of(first_offset)
        # If only a hole at the segment's end follows, nothing is left.
        position = size_bytes if found is None else found
    return SegmentSource(
        base_offset=max(segment.base_offset, first_offset),
        end_offset=segment.end_offset,
        size_bytes=size_bytes - position,
        first_position=position,
        segment_base_offset=segment.base_offset,
        since_ms=segment.first_append_ms,
    )
