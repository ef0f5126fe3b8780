"""When a log begins a new segment: Kafka's rule.

A segment takes no more where the next request would make it larger than `segment.bytes`, where its first
batch is older than `segment.ms` (or, where the log is compacted, than `max.compaction.lag.ms`: nothing of the
active segment is), where an index of it is full, or where an offset would be too far from its base to be
written into an index. Age is counted in the time of the records: from the first batch's timestamp to the
newest of the request that comes, so that a segment of old data is as long as one of today's; records without
a time go by ours.

In Kafka an idle log is not rolled, and the records in its active segment are never compacted. Here whoever
compacts it has it rolled where `max.compaction.lag.ms` bounds that: as if a request came now. A segment that
such a roll has begun is not rolled by another one before it is as old by our own time: where old data
trickles in, each of them is old at once.

Partitions that begin together would roll together, every `segment.ms` again, and their segments would reach
the object store all at once. `segment.jitter.ms` takes a random part of itself off the age limit, drawn once
for each segment. What is drawn is a fraction: it goes on to mean something when the keys are altered.
"""

from __future__ import annotations

import random

from stratalog.log.config_key import LONG_MAX
from stratalog.log.log_config import LogConfig
from stratalog.record.header import NO_TIMESTAMP
from stratalog.segment.log_segment import LogSegment


class RollRule:
    """Of one log. Guarded by UnifiedLog.lock."""

    def __init__(self, random_source: random.Random) -> None:
        self._random = random_source
        self._base_offset: int | None = None
        self._fraction = 0.0
        self._idle_base_offset = -1
        self._idle_rolled_ms = 0

    def must_roll(
        self,
        active: LogSegment,
        config: LogConfig,
        *,
        size_bytes: int,
        last_offset: int,
        max_timestamp_ms: int,
        now_ms: int,
    ) -> bool:
        """The log must be rolled before its active segment takes so many bytes more, up to that offset and
        timestamp."""
        if not active.fits(last_offset):
            return True
        if active.size_bytes == 0:
            return size_bytes > config.segment_bytes
        return (
            active.size_bytes + size_bytes > config.segment_bytes
            or _waited_ms(active, max_timestamp_ms, now_ms)
            > config.max_segment_ms - self._jitter_ms(active, config)
            or active.is_index_full(config.segment_index_bytes)
        )

    def must_roll_idle(self, active: LogSegment, config: LogConfig, now_ms: int) -> bool:
        """The log must be rolled now, though nothing comes; the caller does so."""
        if active.size_bytes == 0 or not config.is_compacted or config.max_compaction_lag_ms == LONG_MAX:
            return False
        limit_ms = config.max_segment_ms - self._jitter_ms(active, config)
        is_new = (
            active.base_offset == self._idle_base_offset and 0 <= now_ms - self._idle_rolled_ms <= limit_ms
        )
        if is_new or _waited_ms(active, now_ms, now_ms) <= limit_ms:
            return False
        self._idle_base_offset, self._idle_rolled_ms = active.end_offset, now_ms
        return True

    def _jitter_ms(self, active: LogSegment, config: LogConfig) -> int:
        """In [0, segment.jitter.ms), and below the age limit in any case."""
        if config.segment_jitter_ms == 0:
            return 0
        if self._base_offset != active.base_offset:
            self._base_offset, self._fraction = active.base_offset, self._random.random()
        return int(self._fraction * min(config.segment_jitter_ms, config.max_segment_ms))


def _waited_ms(active: LogSegment, max_timestamp_ms: int, now_ms: int) -> int:
    """How long the segment has been filled: in the time of its records where they have one, else in ours."""
    if NO_TIMESTAMP not in (active.first_timestamp_ms, max_timestamp_ms):
        return max_timestamp_ms - active.first_timestamp_ms
    return now_ms - active.created_ms
