"""What of a log there is to clean, and how much it would gain: functions over a log and its checkpoint.

::

    log start        first dirty             first uncleanable            log end
        |  clean          |  cleanable               |  uncleanable          |

What is clean went through a clean before. What is uncleanable is not decided (at or above the last stable
offset), still written to (the active segment), or too young (`min.compaction.lag.ms`). Whole segments are
cleaned: the first one of which anything must not be cleaned bounds the rest. Young is, as in Kafka, a segment
whose newest record is; where records have no time, that of the file counts.

The first dirty offset is the cleaner's checkpoint, unless the log does not reach it: where it lies below the
log's start or above its end it says nothing, and everything is dirty.

A log with little dirt, or none, is due as well when the time of tombstones or markers has come that its last
clean has kept, see `kept_horizons`. Then nothing dirty is cleaned.
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
"""When the first batch of a segment was written."""


class LogToClean(NamedTuple):
    """A log and the range of it that a clean may take: [first_dirty_offset, first_uncleanable_offset)."""

    log: UnifiedLog
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    """Segments all of which was cleaned before."""
    cleanable_bytes: int
    """Segments that a clean would look at for the first time, or look at again."""
    compaction_delay_ms: int
    """How long the oldest dirty segment is over `max.compaction.lag.ms`; 0 where it is not."""
    horizon_ms: int | None = None
    """From when on a clean has something to drop of what is clean; NO_HORIZON: never. None where nobody
    knows."""
    is_horizon_past: bool = False
    """That time has come."""

    @property
    def partition(self) -> TopicPartition:
        return self.log.topic_partition

    @property
    def cleanable_ratio(self) -> float:
        total_bytes = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total_bytes if total_bytes else 0.0

    @property
    def is_forced(self) -> bool:
        """It is cleaned however little there is to gain."""
        return self.compaction_delay_ms > 0

    @property
    def is_filthy(self) -> bool:
        """There is enough dirt for a clean."""
        is_dirty_enough = self.cleanable_ratio > self.log.config.min_cleanable_dirty_ratio
        return self.cleanable_bytes > 0 and (self.is_forced or is_dirty_enough)

    @property
    def is_due(self) -> bool:
        """A worker may take it now."""
        return self.is_filthy or self.is_horizon_past

    def gets_further(self, horizon_ms: int | None) -> bool:
        """A clean because of the horizon has dropped something, where what it has left is to go only then."""
        former_ms = self.horizon_ms
        return self.is_horizon_past and horizon_ms is not None and horizon_ms > (former_ms or 0)

    def without_dirt(self) -> LogToClean:
        """The same for a clean of what is clean already."""
        return self._replace(first_uncleanable_offset=self.first_dirty_offset)


def is_cleaned_here(config: LogConfig) -> bool:
    """The local cleaner compacts such logs, and applies their retention. Tiered ones are compacted in the
    object store."""
    return config.is_compacted and not config.remote_storage_enable


def first_ms_on(filesystem: FileSystem) -> FirstMs:
    """The time of the first batch of a segment that has one, which is that of its newest record; where it has
    none, that of the file.

    What is returned raises CorruptRecordError, OSError.
    """

    def first_ms(segment: LogSegment) -> int:
        timestamp_ms = parse_header(segment.read_bytes(0, HEADER_SIZE)).max_timestamp
        return timestamp_ms if timestamp_ms >= 0 else filesystem.modified_ms(segment.path)

    return first_ms


def first_dirty_offset(log: UnifiedLog, checkpoint_offset: int | None) -> int:
    """The checkpoint, or the log's start where the log does not reach it."""
    # Of a log that was tiered once, the start may lie before the first segment that is left here.
    start_offset = max(log.log_start_offset, log.local_segments.start_offset)
    if checkpoint_offset is None or not start_offset <= checkpoint_offset <= log.log_end_offset:
        return start_offset
    return checkpoint_offset


def has_clean_part(log: UnifiedLog, dirty_offset: int) -> bool:
    """There is something below `dirty_offset`, and it is all decided. It is not where a truncation has opened
    a transaction again."""
    segments = log.local_segments
    start_offset = max(log.log_start_offset, segments.start_offset)
    return start_offset < dirty_offset <= min(log.last_stable_offset, segments.active.base_offset)


def log_to_clean(
    log: UnifiedLog,
    dirty_offset: int,
    newest_ms: NewestMs,
    first_ms: FirstMs,
    now_ms: int,
    horizon_ms: int | None = None,
) -> LogToClean:
    """What there is to clean from `dirty_offset` on, and from `horizon_ms` on below it.

    Raises CorruptRecordError, OSError (FileNotFoundError where a segment went meanwhile).
    """
    segments, config = log.local_segments, log.config
    if not has_clean_part(log, dirty_offset):
        # It was of what is not there any more.
        horizon_ms = None
    undecided_offset = min(log.last_stable_offset, segments.active.base_offset)
    sealed = [segment for segment in segments.sealed if segment.end_offset <= undecided_offset]
    dirty = [segment for segment in sealed if segment.end_offset > dirty_offset]
    cleanable = _old_enough(dirty, now_ms - config.min_compaction_lag_ms, newest_ms, config)
    behind_offset = _first_behind(segments, cleanable[-1].base_offset) if cleanable else dirty_offset
    return LogToClean(
        log,
        first_dirty_offset=dirty_offset,
        # Between segments there may be a hole, in which nothing is decided yet.
        first_uncleanable_offset=max(dirty_offset, min(behind_offset, undecided_offset)),
        clean_bytes=sum(segment.size_bytes for segment in sealed if segment.end_offset <= dirty_offset),
        cleanable_bytes=sum(segment.size_bytes for segment in cleanable),
        compaction_delay_ms=_compaction_delay_ms(dirty, first_ms, now_ms, config),
        horizon_ms=horizon_ms,
        is_horizon_past=horizon_ms is not None and horizon_ms <= now_ms,
    )


def _old_enough(
    dirty: list[LogSegment], newest_allowed_ms: int, newest_ms: NewestMs, config: LogConfig
) -> list[LogSegment]:
    """Those up to the first one that has a record which is too young."""
    if config.min_compaction_lag_ms == 0:
        return dirty
    for ordinal, segment in enumerate(dirty):
        if newest_ms(segment) > newest_allowed_ms:
            return dirty[:ordinal]
    return dirty


def _first_behind(segments: LogSegments, base_offset: int) -> int:
    """Where the segment begins that follows on the one at `base_offset`."""
    return next(segment.base_offset for segment in segments if segment.base_offset > base_offset)


def _compaction_delay_ms(dirty: list[LogSegment], first_ms: FirstMs, now_ms: int, config: LogConfig) -> int:
    waiting = [segment for segment in dirty if segment.size_bytes > 0]
    if config.max_compaction_lag_ms == LONG_MAX or not waiting:
        return 0
    return max(0, now_ms - config.max_compaction_lag_ms - min(first_ms(segment) for segment in waiting))


def dirty_bytes(log: UnifiedLog, dirty_offset: int) -> int:
    """Bytes of the sealed segments that were not cleaned yet, without a look into them."""
    return sum(s.size_bytes for s in log.local_segments.sealed if s.end_offset > dirty_offset)
