"""Kafka's rule for the beginning of a new segment.

A request begins a new segment if the active one would grow beyond `segment.bytes`, if its first batch is
older than `segment.ms` (in a compacted log also `max.compaction.lag.ms`, because the active segment is not
compacted), if one of its indexes is full, or if an offset would be too far from its base for an index. Age is
counted in the time of the records: from the first batch's timestamp to the newest one of the request, so a
segment of old data is as long as one of today's. For records without a time the clock of the process counts.

In Kafka an idle log is not rolled, and the records in its active segment are never compacted. Here the
cleaner rolls it if `max.compaction.lag.ms` bounds that, as if a request came now. A segment that such a roll
has begun is not rolled by another one before it is as old by the clock: if old data trickles in, each new
segment would be too old at once.

Partitions that begin together would roll together, again every `segment.ms`, and their segments would reach
the object store all at once. `segment.jitter.ms` takes a random part of itself off the age limit. The rule
draws a fraction once for each segment, so it stays valid when the keys are altered.
"""

from __future__ import annotations

import random

from stratalog.log.config_key import LONG_MAX
from stratalog.log.log_config import LogConfig
from stratalog.record.header import NO_TIMESTAMP
from stratalog.segment.log_segment import LogSegment


class RollRule:
    """The rule for one log. Guarded by UnifiedLog.lock."""

    def __init__(self, random_source: random.Random) -> None:
        self._random = random_source
        self._base_offset: int | None = None
        self._fraction = 0.0
        self._limit: tuple[LogConfig, int, int] | None = None
        """The last age limit, with the configuration and the base offset that it holds for."""
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
        """Whether the log must be rolled before it takes so many more bytes, up to that offset and
        timestamp."""
        if not active.fits(last_offset):
            return True
        if active.size_bytes == 0:
            return size_bytes > config.segment_bytes
        return (
            active.size_bytes + size_bytes > config.segment_bytes
            or _waited_ms(active, max_timestamp_ms, now_ms) > self._limit_ms(active, config)
            or active.is_index_full(config.segment_index_bytes)
        )

    def must_roll_idle(self, active: LogSegment, config: LogConfig, now_ms: int) -> bool:
        """Whether the log must be rolled now without a request; the caller does so then."""
        if active.size_bytes == 0 or not config.is_compacted or config.max_compaction_lag_ms == LONG_MAX:
            return False
        limit_ms = self._limit_ms(active, config)
        is_new = (
            active.base_offset == self._idle_base_offset and 0 <= now_ms - self._idle_rolled_ms <= limit_ms
        )
        if is_new or _waited_ms(active, now_ms, now_ms) <= limit_ms:
            return False
        self._idle_base_offset, self._idle_rolled_ms = active.end_offset, now_ms
        return True

    def _limit_ms(self, active: LogSegment, config: LogConfig) -> int:
        """The age limit of the segment."""
        limit = self._limit
        if limit is None or limit[0] is not config or limit[1] != active.base_offset:
            limit_ms = config.max_segment_ms - self._jitter_ms(active, config)
            self._limit = limit = (config, active.base_offset, limit_ms)
        return limit[2]

    def _jitter_ms(self, active: LogSegment, config: LogConfig) -> int:
        """A part of the age limit in [0, segment.jitter.ms), the same for the whole life of the segment."""
        if config.segment_jitter_ms == 0:
            return 0
        if self._base_offset != active.base_offset:
            self._base_offset, self._fraction = active.base_offset, self._random.random()
        return int(self._fraction * min(config.segment_jitter_ms, config.max_segment_ms))


def _waited_ms(active: LogSegment, max_timestamp_ms: int, now_ms: int) -> int:
    """The age of the segment: in the time of its records if they have one, else by the clock."""
    if NO_TIMESTAMP not in (active.first_timestamp_ms, max_timestamp_ms):
        return max_timestamp_ms - active.first_timestamp_ms
    return now_ms - active.created_ms
