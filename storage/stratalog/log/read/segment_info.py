"""Descriptions of a segment: for listings, and as a source of bytes for the object store."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Whole batches in one sealed, fsynced segment, which may be uploaded.

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


def describe_segment(segment: LogSegment, *, is_proven: bool) -> SegmentInfo:
    """Describe a segment. `is_proven`: compare the checksum of the batch with its highest timestamp. Raises
    OSError."""
    max_timestamp_ms, damage = NO_TIMESTAMP, None
    try:
        if is_proven:
            segment.prove_max_timestamp()
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


def _source(segment: LogSegment, first_offset: int) -> SegmentSource:
    position = 0
    if first_offset > segment.base_offset:
        found = segment.position_of(first_offset)
        # If only a hole at the segment's end follows, nothing is left.
        position = segment.size_bytes if found is None else found
    return SegmentSource(
        base_offset=max(segment.base_offset, first_offset),
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes - position,
        first_position=position,
        segment_base_offset=segment.base_offset,
        since_ms=segment.first_append_ms,
    )
