"""Retention rules: functions over the segments of a log, oldest first, that count those to drop.

Every rule counts segments from the beginning: one that must stay keeps all behind it. The rules follow
each other, each over the segments that the one before has left: below the log start, by size, by age, and
those of which the object store has a compacted copy. The guards are Kafka's: no segment at or above the high
watermark goes, nor an empty active segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from stratalog.base.filesystem import FileSystem
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.log.log_segments import LogSegments
from stratalog.segment.log_segment import LogSegment

NewestMs = Callable[[LogSegment], int]
"""The time at which the newest record of a segment was written."""
IsOlder = Callable[[LogSegment, int], bool]
"""Whether all records of a segment were certainly written before that time."""


class RetentionBounds(NamedTuple):
    """The offsets that limit retention."""

    log_start_offset: int
    high_watermark: int
    tiered_end_offset: int
    compacted_upto: int = 0
    """Below this offset the object store has at most one record of each key, as far as is known."""


class ExpiredCounts(NamedTuple):
    """How many of the oldest segments go, rule by rule: each count includes the one before it."""

    below_count: int
    oversize_count: int
    aged_count: int
    compacted_count: int
    """The number of all that go."""


RetentionRule = Callable[[LogSegments, RetentionBounds, LogConfig, IsOlder, int], ExpiredCounts]
"""Counts the oldest segments that go now under a configuration."""


def newest_ms_on(filesystem: FileSystem) -> NewestMs:
    """A function for the highest timestamp of a segment's records, or the time of its file if they have none.

    That function raises CorruptRecordError, OSError.
    """

    def newest_ms(segment: LogSegment) -> int:
        timestamp_ms = segment.max_timestamp().timestamp_ms
        return timestamp_ms if timestamp_ms >= 0 else filesystem.modified_ms(segment.path)

    return newest_ms


def below_log_start(segments: LogSegments, offsets: RetentionBounds) -> int:
    """Segments with deleted records only. They go under any configuration."""
    return below_offset(segments, min(offsets.log_start_offset, offsets.high_watermark))


def tiered(segments: LogSegments, offsets: RetentionBounds) -> int:
    """Segments that are in the object store."""
    return below_offset(segments, min(offsets.tiered_end_offset, offsets.high_watermark))


def all_tiered(
    segments: LogSegments, offsets: RetentionBounds, _config: LogConfig, _is_older: IsOlder, _now_ms: int
) -> ExpiredCounts:
    """`tiered` as a rule that ignores the configuration."""
    below = below_log_start(segments, offsets)
    count = max(below, tiered(segments, offsets))
    return ExpiredCounts(below, count, count, count)


def compacted(segments: LogSegments, offsets: RetentionBounds, config: LogConfig) -> int:
    """Sealed segments that hide a compacted copy in the object store, if the log keeps none of these.

    The active one stays: appends go on in it, and it would be rolled for each compaction.
    """
    if not config.drops_compacted:
        return 0
    end_offset = min(offsets.compacted_upto, offsets.tiered_end_offset, offsets.high_watermark)
    return leading_count(segments, lambda one: not one.is_active and one.end_offset <= end_offset)


def beyond_local_retention(
    segments: LogSegments, offsets: RetentionBounds, config: LogConfig, is_older: IsOlder, now_ms: int
) -> ExpiredCounts:
    """Segments of a tiered log that are in the object store and beyond the local retention, or hide a
    compacted copy there.

    The size includes local segments that are not in the object store yet. Raises as `is_older` does.
    """
    count, below = tiered(segments, offsets), below_log_start(segments, offsets)
    by_size = beyond_size(segments, config.effective_local_retention_bytes)
    gone = max(below, min(count, by_size))
    retention_ms = config.effective_local_retention_ms
    aged_count = gone + beyond_age(segments[gone:count], retention_ms, is_older, now_ms)
    return ExpiredCounts(below, gone, aged_count, max(aged_count, compacted(segments, offsets, config)))


def beyond_retention(
    segments: LogSegments, offsets: RetentionBounds, config: LogConfig, is_older: IsOlder, now_ms: int
) -> ExpiredCounts:
    """Segments beyond the retention of a log without another tier; of any other log those below its start.

    Raises as `is_older` does.
    """
    below = below_log_start(segments, offsets)
    if not config.is_deleted or config.remote_storage_enable:
        return ExpiredCounts(below, below, below, below)
    count = below_offset(segments, offsets.high_watermark)
    by_size = beyond_size(segments, config.retention_bytes)
    gone = max(below, min(count, by_size))
    aged_count = gone + beyond_age(segments[gone:count], config.retention_ms, is_older, now_ms)
    return ExpiredCounts(below, gone, aged_count, aged_count)


def leading_count(segments: Sequence[LogSegment], is_dropped: Callable[[LogSegment], bool]) -> int:
    """The number of segments from the beginning on that are dropped."""
    return sum(1 for _ in takewhile(is_dropped, segments))


def below_offset(segments: Sequence[LogSegment], end_offset: int) -> int:
    """Segments that end at or below `end_offset`, but never an empty active one."""
    return leading_count(
        segments, lambda segment: _is_droppable(segment) and segment.end_offset <= end_offset
    )


def _is_droppable(segment: LogSegment) -> bool:
    # A broker's cleaner leaves sealed segments empty.
    return not segment.is_active or segment.size_bytes > 0


def beyond_size(segments: Sequence[LogSegment], retention_bytes: int) -> int:
    """Segments that the log can lose and still have at least `retention_bytes`."""
    if retention_bytes == UNLIMITED:
        return 0
    excess_bytes = sum(segment.size_bytes for segment in segments) - retention_bytes
    count = 0
    for segment in segments:
        excess_bytes -= segment.size_bytes
        if excess_bytes < 0:
            break
        count += 1
    return count


def beyond_age(segments: Sequence[LogSegment], retention_ms: int, is_older: IsOlder, now_ms: int) -> int:
    """Segments whose newest record is older than `retention_ms`. A segment with records of the future
    stays."""
    if retention_ms == UNLIMITED:
        return 0
    return leading_count(segments, lambda segment: is_older(segment, now_ms - retention_ms))
