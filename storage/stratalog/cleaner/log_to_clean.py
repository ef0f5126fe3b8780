"""Finds the cleanable part of a log, and how much a clean would gain. docs/cleaning.md describes the parts
of a log.

Whole segments are cleaned: the first segment with an uncleanable record ends the cleanable part. As in
Kafka, a segment is as young as its newest record; if records have no time, as its file. The first dirty
offset is the cleaner's checkpoint. A checkpoint below the log's start or above its end means nothing: the
whole log is dirty then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.config_key import LONG_MAX
from stratalog.log.log_config import LogConfig
from stratalog.log.log_segments import LogSegments
from stratalog.log.retention.retention import NewestMs
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.header import HEADER_SIZE, parse_header
from stratalog.segment.log_segment import LogSegment

FirstMs = Callable[[LogSegment], int]
"""Returns the time of a segment's first batch."""


class NextClean(NamedTuple):
    """The next clean of a clean part: it drops tombstones and markers whose delete horizon has passed."""

    at_ms: int
    """NO_HORIZON: never."""
    is_due: bool


class LogToClean(NamedTuple):
    """A log and the range of it that a clean may take: [first_dirty_offset, first_uncleanable_offset)."""

    log: UnifiedLog
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    """Size of the segments that are entirely clean."""
    cleanable_bytes: int
    """Size of the cleanable segments."""
    compaction_delay_ms: int
    """The time by which the oldest dirty segment has passed `max.compaction.lag.ms`; 0 if it has not."""
    next_clean: NextClean | None = None
    """The next clean for tombstones and markers in the clean part; None: not on record."""

    @property
    def partition(self) -> TopicPartition:
        return self.log.topic_partition

    @property
    def cleanable_ratio(self) -> float:
        total_bytes = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total_bytes if total_bytes else 0.0

    @property
    def is_forced(self) -> bool:
        """The log is cleaned even if that gains little."""
        return self.compaction_delay_ms > 0

    @property
    def is_filthy(self) -> bool:
        """The log has enough dirt for a clean."""
        is_dirty_enough = self.cleanable_ratio > self.log.local_log.config.min_cleanable_dirty_ratio
        return self.cleanable_bytes > 0 and (self.is_forced or is_dirty_enough)

    @property
    def is_due(self) -> bool:
        return self.is_filthy or self.is_next_clean_due

    @property
    def is_next_clean_due(self) -> bool:
        """Tombstones or markers of the clean part can go now."""
        return self.next_clean is not None and self.next_clean.is_due

    def gets_further(self, next_clean_ms: int | None) -> bool:
        """Return whether a clean for tombstones and markers has progressed: the next one is later."""
        former = self.next_clean
        if former is None or next_clean_ms is None:
            return False
        return former.is_due and next_clean_ms > former.at_ms

    def without_dirt(self) -> LogToClean:
        """The same log without its dirty part, for a clean that only drops tombstones and markers."""
        return self._replace(first_uncleanable_offset=self.first_dirty_offset)


def is_cleaned_here(config: LogConfig) -> bool:
    """Return whether the local cleaner compacts such a log and applies its retention. Tiered logs are
    compacted in the object store."""
    return config.is_compacted and not config.remote_storage_enable


def first_ms_on(filesystem: FileSystem) -> FirstMs:
    """Return a function for the time of a segment's first batch: that of its newest record, or that of the
    file if records have no time. The function raises CorruptRecordError, OSError."""

    def first_ms(segment: LogSegment) -> int:
        timestamp_ms = parse_header(segment.read_bytes(0, HEADER_SIZE)).max_timestamp
        return timestamp_ms if timestamp_ms >= 0 else filesystem.modified_ms(segment.path)

    return first_ms


def first_dirty_offset(log: UnifiedLog, checkpoint_offset: int | None) -> int:
    """The checkpoint, or the log's start if the checkpoint is outside the log."""
    # The start of a log that was tiered once may lie before its first local segment.
    start_offset = max(log.offsets.log_start_offset, log.local_log.segments.start_offset)
    if checkpoint_offset is None or not start_offset <= checkpoint_offset <= log.offsets.log_end_offset:
        return start_offset
    return checkpoint_offset


def has_clean_part(log: UnifiedLog, dirty_offset: int) -> bool:
    """Return whether the part below `dirty_offset` is not empty, and decided. A truncation can open a
    transaction again."""
    segments = log.local_log.segments
    start_offset = max(log.offsets.log_start_offset, segments.start_offset)
    return start_offset < dirty_offset <= min(log.offsets.last_stable_offset, segments.active.base_offset)


def log_to_clean(
    log: UnifiedLog,
    dirty_offset: int,
    newest_ms: NewestMs,
    first_ms: FirstMs,
    now_ms: int,
    next_clean_ms: int | None = None,
) -> LogToClean:
    """The cleanable part from `dirty_offset` on, and the next clean of the part below it.

    Raises CorruptRecordError, OSError (FileNotFoundError if a segment was dropped meanwhile).
    """
    segments, config = log.local_log.segments, log.local_log.config
    if not has_clean_part(log, dirty_offset):
        # The time belongs to records that are gone.
        next_clean_ms = None
    undecided_offset = min(log.offsets.last_stable_offset, segments.active.base_offset)
    sealed = [segment for segment in segments.sealed if segment.end_offset <= undecided_offset]
    dirty = [segment for segment in sealed if segment.end_offset > dirty_offset]
    cleanable = _old_enough(dirty, now_ms - config.min_compaction_lag_ms, newest_ms, config)
    behind_offset = _first_behind(segments, cleanable[-1].base_offset) if cleanable else dirty_offset
    return LogToClean(
        log,
        first_dirty_offset=dirty_offset,
        # There may be a hole between segments, in which nothing is decided yet.
        first_uncleanable_offset=max(dirty_offset, min(behind_offset, undecided_offset)),
        clean_bytes=sum(segment.size_bytes for segment in sealed if segment.end_offset <= dirty_offset),
        cleanable_bytes=sum(segment.size_bytes for segment in cleanable),
        compaction_delay_ms=_compaction_delay_ms(dirty, first_ms, now_ms, config),
        next_clean=None if next_clean_ms is None else NextClean(next_clean_ms, next_clean_ms <= now_ms),
    )


def _old_enough(
    dirty: list[LogSegment], newest_allowed_ms: int, newest_ms: NewestMs, config: LogConfig
) -> list[LogSegment]:
    """The segments before the first one with a record that is too young."""
    if config.min_compaction_lag_ms == 0:
        return dirty
    for ordinal, segment in enumerate(dirty):
        if newest_ms(segment) > newest_allowed_ms:
            return dirty[:ordinal]
    return dirty


def _first_behind(segments: LogSegments, base_offset: int) -> int:
    """The base offset of the segment after the one at `base_offset`."""
    return next(segment.base_offset for segment in segments if segment.base_offset > base_offset)


def _compaction_delay_ms(dirty: list[LogSegment], first_ms: FirstMs, now_ms: int, config: LogConfig) -> int:
    waiting = [segment for segment in dirty if segment.size_bytes > 0]
    if config.max_compaction_lag_ms == LONG_MAX or not waiting:
        return 0
    return max(0, now_ms - config.max_compaction_lag_ms - min(first_ms(segment) for segment in waiting))


def dirty_bytes(log: UnifiedLog, dirty_offset: int) -> int:
    """The size of the sealed segments that were not cleaned yet; reads none of them."""
    return sum(s.size_bytes for s in log.local_log.segments.sealed if s.end_offset > dirty_offset)
