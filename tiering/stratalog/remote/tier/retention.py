"""Retention over all tiers: how far the log start of each partition moves, by time and by size.

A partition is looked at as a row of units, oldest first: its live slices, then the local segments that reach
beyond the tiered end. The row has no holes, for a unit that is left out is one that keeps nothing: a segment
of which only a part is tiered stands in it with its rest. `retention.ms` takes units from the front while
each one's newest record is too old; `retention.bytes` takes them while what is left is at least the limit, so
at least that much always stays. Both stop at the first unit that stays. The active segment never goes, and
the log start never passes the high watermark.

A record without a timestamp says nothing about its age, and a unit may hold no others. It is taken to be as
old as the next unit that has a timestamp, because it was appended before that one; so it goes together with
what is behind it, as it would if both were in one unit, and does not hold it up. While nothing behind it has
a timestamp it does not expire: a topic of which no record has one is bounded by `retention.bytes` only.

What decides is the configuration that the logs go by, which the caller has just compared with the catalog's.
The new log start is committed first, with the seq of that catalog; a configuration older than one that was
used before is refused there. Local segments go afterwards, objects once a collector finds them dropped. Only
what is committed counts: an upload that never was has no size.

Segments that were never uploaded are taken too. A disk must not grow without end because a bucket is away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.log.read.segment_info import SegmentInfo
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.header import NO_TIMESTAMP
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.partition_state import PartitionState
from stratalog.remote.store_clock import MAX_CLOCK_SKEW_MS, clock_skew_ms


class RetentionUnit(NamedTuple):
    """What goes or stays as a whole."""

    end_offset: int
    size_bytes: int
    max_timestamp: int
    """Milliseconds; `NO_TIMESTAMP` where no record says."""
    is_empty: bool = False
    """No records are left in it: it is as old as what precedes it."""
    is_active: bool = False
    """Still written to: it has a size, and stays."""
    is_doubtful: bool = False
    """Nobody knows how old it is, because it is damaged: it goes by size only."""


class AdvancedLogStart(NamedTuple):
    """A partition whose log start moved."""

    topic_partition: TopicPartition
    log_start_offset: int


class FailedRetention(NamedTuple):
    """A partition whose local log could not be looked at or told; the next pass tries again."""

    topic_partition: TopicPartition
    error: LogStoreError


class RetentionReport(NamedTuple):
    """What a pass did."""

    advanced: tuple[AdvancedLogStart, ...] = ()
    failed: tuple[FailedRetention, ...] = ()
    clock_skew_ms: int = 0
    """Own clock minus the store's; beyond the bound nothing was expired by time."""


def log_start_after(units: Sequence[RetentionUnit], config: LogConfig, now_ms: int | None) -> int | None:
    """Where the log would start if `config` were applied to `units`; None where it does not move. Pure.

    `now_ms` is None where the time is not known well enough to expire anything by it.
    """
    if not config.is_deleted:
        return None
    left_bytes = sum(unit.size_bytes for unit in units)
    offset: int | None = None
    for unit, newest_ms in zip(units, _newest_ms(units), strict=True):
        left_bytes -= unit.size_bytes
        is_over_size = config.retention_bytes != UNLIMITED and left_bytes >= config.retention_bytes
        if unit.is_active or not (is_over_size or _is_old(unit, newest_ms, config, now_ms)):
            break
        offset = unit.end_offset
    return offset


class RemoteRetention:
    """Thread-safe: it keeps nothing between calls."""

    def __init__(self, clock: Clock, metadata: MetadataLog) -> None:
        self._clock = clock
        self._metadata = metadata

    def run(self, logs: Sequence[UnifiedLog], *, epoch: int, catalog_seq: int) -> RetentionReport:
        """Move the log start of tiered partitions as their configuration says, in one commit.

        `catalog_seq` is that of the catalog from which the logs have their configurations, or of an older
        one. When this returns the moves are committed and the logs know them; deleting local segments is the
        caller's next step. A log that fails is reported and does not hold up the others. Raises FencedError,
        PreconditionFailedError (the configuration is not the newest that was used: read the catalog, try
        again), StoreError.
        """
        self._metadata.refresh(dated=True)
        skew_ms = clock_skew_ms(self._clock, self._metadata)
        now_ms = self._metadata.store_date_ms if abs(skew_ms) <= MAX_CLOCK_SKEW_MS else None
        starts: dict[TopicIdPartition, int] = {}
        moved: dict[TopicIdPartition, UnifiedLog] = {}
        failed: list[FailedRetention] = []
        for log in logs:
            config = log.config
            if not config.remote_storage_enable:
                continue
            tip = TopicIdPartition(log.topic_id, log.topic_partition.partition)
            try:
                offset, damage = self._new_start(log, tip, config, now_ms)
            except LogStoreError as error:
                failed.append(FailedRetention(log.topic_partition, error))
                continue
            if damage is not None:
                failed.append(FailedRetention(log.topic_partition, damage))
            if offset is not None:
                starts[tip] = offset
                moved[tip] = log
        if starts:
            self._metadata.advance_log_start(starts, epoch=epoch, catalog_seq=catalog_seq)
        advanced: list[AdvancedLogStart] = []
        for tip, log in moved.items():
            partition = self._metadata.state().partition(tip)
            try:
                log.update_tiered_end_offset(partition.tiered_end_offset)
                log.increment_log_start_offset(partition.log_start_offset)
            except LogStoreError as error:
                failed.append(FailedRetention(log.topic_partition, error))
            advanced.append(AdvancedLogStart(log.topic_partition, partition.log_start_offset))
        return RetentionReport(tuple(advanced), tuple(failed), skew_ms)

    def _new_start(
        self, log: UnifiedLog, tip: TopicIdPartition, config: LogConfig, now_ms: int | None
    ) -> tuple[int | None, LogStoreError | None]:
        """And what keeps a segment that may be old enough. Raises LogStoreError."""
        # The log is looked at before the shard. Meanwhile segments may be uploaded and then dropped here;
        # the other way round such a one would be in neither, and a hole in the row keeps nothing.
        local_log_start_offset = log.local_log_start_offset
        segments = log.segments()
        partition = self._metadata.state().partition(tip)
        slice_units = list(_slice_units(partition))
        offset = log_start_after(
            [*slice_units, *_local_units(log, segments, partition.tiered_end_offset)], config, now_ms
        )
        damage: LogStoreError | None = None
        if offset is not None and offset > partition.tiered_end_offset:
            # These are in no other place. A segment that went meanwhile is in the store, or below the start.
            proven = {segment.base_offset: segment for segment in log.segments(offset)}
            segments = tuple(proven.get(segment.base_offset, segment) for segment in segments)
            damage = next((segment.damage for segment in segments if segment.damage is not None), None)
            offset = log_start_after(
                [*slice_units, *_local_units(log, segments, partition.tiered_end_offset)], config, now_ms
            )
        if not partition.slices and local_log_start_offset > partition.tiered_end_offset:
            # Tiering was switched on after the log had been cut: nothing was ever committed below its start.
            offset = max(offset or 0, local_log_start_offset)
        if offset is None:
            return None, damage
        offset = min(offset, log.high_watermark)
        return (offset if offset > partition.log_start_offset else None), damage


def _slice_units(partition: PartitionState) -> Iterator[RetentionUnit]:
    for live in partition.slices:
        entry = live.entry
        yield RetentionUnit(live.end_offset, entry.data_bytes, entry.max_timestamp, entry.record_count == 0)


def _local_units(
    log: UnifiedLog, segments: Sequence[SegmentInfo], tiered_end_offset: int
) -> Iterator[RetentionUnit]:
    """What the local segments have at or above the tiered end. One that it cuts in two is as young as its
    newest record, on whichever side that is."""
    for segment in segments:
        if segment.end_offset <= tiered_end_offset:
            continue
        size_bytes = segment.size_bytes
        if segment.base_offset < tiered_end_offset:
            size_bytes = _pending_bytes(log, segment, tiered_end_offset)
        yield RetentionUnit(
            segment.end_offset,
            size_bytes,
            segment.max_timestamp_ms,
            is_active=segment.is_active,
            is_doubtful=segment.damage is not None,
        )


def _pending_bytes(log: UnifiedLog, segment: SegmentInfo, tiered_end_offset: int) -> int:
    """Bytes that the segment holds behind the tiered end, as an upload would find them.

    0 where it may not be uploaded yet: counting too little, `retention.bytes` deletes too little.
    """
    for source in log.upload_candidates(tiered_end_offset):
        if source.segment_base_offset == segment.base_offset:
            return source.size_bytes
    return 0


def _newest_ms(units: Sequence[RetentionUnit]) -> list[int]:
    """The newest timestamp of each unit, or of the next one that has any; `NO_TIMESTAMP` where none has."""
    newest_ms: list[int] = []
    next_ms = NO_TIMESTAMP
    for unit in reversed(units):
        next_ms = unit.max_timestamp if unit.max_timestamp > NO_TIMESTAMP else next_ms
        newest_ms.append(next_ms)
    return newest_ms[::-1]


def _is_old(unit: RetentionUnit, newest_ms: int, config: LogConfig, now_ms: int | None) -> bool:
    if config.retention_ms == UNLIMITED or now_ms is None or unit.is_doubtful:
        return False
    return unit.is_empty or NO_TIMESTAMP < newest_ms < now_ms - config.retention_ms
