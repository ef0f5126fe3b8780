"""Retention over all tiers: moves the log start of each partition, by time and by size.

Retention looks at a partition as a row of units, oldest first: its live slices, then the local segments that
reach beyond the tiered end. A segment that is tiered in part stands in the row with its rest, so the row has
no holes. `retention.ms` takes units from the front while their newest record is too old. `retention.bytes`
takes them while the remaining units are at least as large as the limit, so at least that much always stays.
Both stop at the first unit that stays. The active segment never goes, and the log start never passes the high
watermark.

A record without a timestamp has no known age, and all records of a unit may be so. Such a unit is taken to be
as old as the next unit that has a timestamp, because it was appended before that unit. If no later unit has a
timestamp it does not expire: a topic without any timestamps is bounded by `retention.bytes` only.

The logs' own configuration decides; the caller has just compared it with the catalog's. The new log start is
committed first, with the seq of that catalog; the shard refuses a configuration older than one that was used
before. Local segments are deleted afterwards, objects when a collector finds them dropped. Only committed
slices count; an upload without a commit has no size.

Segments that were never uploaded expire, too: a disk must not grow without end because a bucket is away.
While the store does not answer, `run_unreachable` moves the log start past such segments on this disk alone,
by the configuration that the logs have and by the state that is at hand. The store's time is the time of its
last answer and what the monotonic clock has counted since. Such a start is durable before it counts, and
survives a restart. That configuration may be outdated, so it deletes on this disk only: once the store
answers again, the next upload puts the loss on record (see `local_beginnings`), and the log start is the
committed one again, until `run` moves it. Log starts inside of the slices wait for the store anyway, because
no disk grows with those. A partition that begins behind its tiered end waits for that upload.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.log.read.segment_info import SegmentInfo
from stratalog.log.retention.retention_outlook import (
    ExpiredUnit,
    ExpiryRule,
    KeptUnit,
    NextExpiry,
    RetentionLimits,
    RetentionOutlook,
    next_expiry,
)
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.header import NO_TIMESTAMP
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition


class RetentionUnit(NamedTuple):
    """A slice or a local segment, which goes or stays as a whole."""

    end_offset: int
    size_bytes: int
    max_timestamp: int
    """Milliseconds; `NO_TIMESTAMP` where no record has a timestamp."""
    is_empty: bool = False
    """It has no records left, and is as old as the unit before it."""
    is_active: bool = False
    """Appends still go to it: it counts by size, and stays."""
    is_doubtful: bool = False
    """It is damaged and its age is unknown: it goes by size only."""


class AdvancedLogStart(NamedTuple):
    """A partition whose log start moved."""

    topic_partition: TopicPartition
    log_start_offset: int


class FailedRetention(NamedTuple):
    """A partition whose local log failed; the next pass tries again."""

    topic_partition: TopicPartition
    error: LogStoreError


class RetentionReport(NamedTuple):
    """The result of one pass."""

    advanced: tuple[AdvancedLogStart, ...] = ()
    failed: tuple[FailedRetention, ...] = ()
    clock_skew_ms: int = 0
    """Own clock minus the store's clock; if it is too large nothing was expired by time."""
    clock_refused_count: int = 0
    """Partitions with a retention by time that did not expire by it, because the clock is wrong."""


def expired_rules(
    units: Sequence[RetentionUnit], config: LogConfig, now_ms: int | None
) -> tuple[ExpiryRule, ...]:
    """The rule by which each of the oldest units goes, for as many units as go. Pure.

    `now_ms` is None if the clock is not trusted: then nothing expires by time.
    """
    if not config.is_deleted:
        return ()
    left_bytes = sum(unit.size_bytes for unit in units)
    rules: list[ExpiryRule] = []
    for unit, newest_ms in zip(units, newest_times_ms(units), strict=True):
        left_bytes -= unit.size_bytes
        is_over_size = config.retention_bytes != UNLIMITED and left_bytes >= config.retention_bytes
        if unit.is_active or not (is_over_size or _is_old(unit, newest_ms, config, now_ms)):
            break
        rules.append(ExpiryRule.RETENTION_BYTES if is_over_size else ExpiryRule.RETENTION_MS)
    return tuple(rules)


def log_start_after(units: Sequence[RetentionUnit], config: LogConfig, now_ms: int | None) -> int | None:
    """The log start after applying `config` to `units`; None if it does not move. Pure."""
    count = len(expired_rules(units, config, now_ms))
    return units[count - 1].end_offset if count else None


class JudgedPartition(NamedTuple):
    """The decision of retention about a tiered partition."""

    log_start_offset: int | None
    """The new log start; None if it does not move."""
    damage: LogStoreError | None
    """The damage that keeps an old segment."""
    units: tuple[RetentionUnit, ...]
    """The live slices, then the local segments behind them."""
    rules: tuple[ExpiryRule, ...]
    """The rules by which the first of these go."""
    state: TieredPartition
    """The slices before the decision takes effect."""


class ExplainedPartition(NamedTuple):
    """The effect that retention would have on a tiered partition now."""

    log_start_offset: int
    """The first readable offset before."""
    new_log_start_offset: int
    tiered: RetentionOutlook
    local: RetentionOutlook


class RemoteRetention:
    """Moves the log starts of tiered partitions by retention. Thread-safe: it keeps nothing between calls."""

    def __init__(self, metadata: MetadataLog) -> None:
        self._metadata = metadata

    def run(self, logs: Sequence[UnifiedLog], *, epoch: int, catalog_seq: int) -> RetentionReport:
        """Move the log start of tiered partitions as their configuration says, in one commit.

        `catalog_seq` is the number of the catalog from which the logs have their configurations, or an older
        one. A partition that begins behind its tiered end stays as it is until the next upload. When this
        returns, the moves are committed and the logs know them; the caller deletes local
        segments next. A log that fails is reported and does not hold up the others. Raises NotOwnerError,
        PreconditionFailedError (a newer configuration was used before: read the catalog and try again),
        StoreError.
        """
        now_ms = self._trusted_now_ms()
        starts: dict[TopicIdPartition, int] = {}
        moved: dict[TopicIdPartition, UnifiedLog] = {}
        failed: list[FailedRetention] = []
        clock_refused_count = 0
        for log in logs:
            config = log.local_log.config
            if not config.remote_storage_enable:
                continue
            if now_ms is None and config.is_deleted and config.retention_ms != UNLIMITED:
                clock_refused_count += 1
            tip = TopicIdPartition(log.topic_id, log.topic_partition.partition)
            try:
                judged = self._judge(log, tip, config, now_ms)
            except LogStoreError as error:
                failed.append(FailedRetention(log.topic_partition, error))
                continue
            if judged.damage is not None:
                failed.append(FailedRetention(log.topic_partition, judged.damage))
            if judged.log_start_offset is not None:
                starts[tip] = judged.log_start_offset
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
        return RetentionReport(
            tuple(advanced), tuple(failed), self._metadata.clock_skew_ms, clock_refused_count
        )

    def run_unreachable(self, logs: Sequence[UnifiedLog]) -> RetentionReport:
        """Move the log start of those partitions that have local segments behind the tiered end which
        expire, while the store does not answer. Sends no request.

        The logs have a configuration that was followed, and this process owns the shard as far as it knows.
        When this returns, the moves are durable on the disk. A log that fails is reported.
        """
        now_ms = self._metadata.expected_date_ms
        advanced: list[AdvancedLogStart] = []
        failed: list[FailedRetention] = []
        for log in logs:
            config = log.local_log.config
            if not config.remote_storage_enable:
                continue
            tip = TopicIdPartition(log.topic_id, log.topic_partition.partition)
            try:
                judged = self._judge(log, tip, config, now_ms, is_unreachable=True)
                offset = judged.log_start_offset
                if judged.damage is not None:
                    failed.append(FailedRetention(log.topic_partition, judged.damage))
                if offset is None or offset <= max(
                    judged.state.tiered_end_offset,
                    log.offsets.tiered_end_offset,
                    log.offsets.log_start_offset,
                ):
                    continue
                log.increment_log_start_offset(offset, is_committed=False)
            except LogStoreError as error:
                failed.append(FailedRetention(log.topic_partition, error))
            else:
                advanced.append(AdvancedLogStart(log.topic_partition, offset))
        return RetentionReport(tuple(advanced), tuple(failed), self._metadata.clock_skew_ms)

    def explain(self, logs: Sequence[UnifiedLog]) -> Iterator[ExplainedPartition | LogStoreError]:
        """Explain, for each log, what `run` and the deletion of local segments behind it would do now; an
        error for a log that fails. Changes nothing. Raises StoreError.
        """
        now_ms = self._trusted_now_ms()
        for log in logs:
            tip = TopicIdPartition(log.topic_id, log.topic_partition.partition)
            try:
                judged = self._judge(log, tip, log.local_log.config, now_ms, may_skip=False)
                explained = self._explained(log, judged, now_ms)
            except LogStoreError as error:
                yield error
            else:
                yield explained

    def _trusted_now_ms(self) -> int | None:
        """The store's time now; None if the clocks differ too much. Raises StoreError."""
        self._metadata.refresh(dated=True)
        return self._metadata.store_date_ms if self._metadata.is_clock_trusted else None

    def _explained(self, log: UnifiedLog, judged: JudgedPartition, now_ms: int | None) -> ExplainedPartition:
        offset, state = judged.log_start_offset, judged.state
        if offset is None:
            local = log.retention.explain()
        else:
            local = log.retention.explain(
                log_start_offset=max(offset, log.offsets.log_start_offset),
                tiered_end_offset=max(offset, state.tiered_end_offset, log.offsets.tiered_end_offset),
            )
        rules = {unit.end_offset: rule for unit, rule in zip(judged.units, judged.rules, strict=False)}
        # A segment that no upload has reached goes by the rules of all tiers.
        expired = tuple(
            unit._replace(rule=rules[unit.end_offset])
            if unit.rule is ExpiryRule.LOG_START and unit.end_offset in rules
            else unit
            for unit in local.expired
        )
        old_offset = state.log_start_beside(log.offsets.log_start_offset)
        new_offset = old_offset if offset is None else offset
        return ExplainedPartition(
            old_offset,
            new_offset,
            _tiered_outlook(judged, log.local_log.config, now_ms),
            local._replace(
                expired=expired, next=_local_next(judged, local.next, log.local_log.config, now_ms)
            ),
        )

    def _judge(
        self,
        log: UnifiedLog,
        tip: TopicIdPartition,
        config: LogConfig,
        now_ms: int | None,
        *,
        is_unreachable: bool = False,
        may_skip: bool = True,
    ) -> JudgedPartition:
        """The new log start of a partition. One that begins behind its tiered end has none, unless the store
        `is_unreachable`. With `may_skip`, the slices are not looked at (and not among the units) where
        nothing can expire. Raises LogStoreError."""
        # Read the log before the shard. A segment that is uploaded and deleted locally in between is then in
        # both; in the other order it would be in neither and leave a hole in the row.
        segments = log.reader.segments()
        begin_offset = max(log.offsets.log_start_offset, segments[0].base_offset)
        partition = self._metadata.state().partition(tip)
        local_units = tuple(_local_units(log, segments, partition.tiered_end_offset))
        if may_skip and not may_expire(partition, local_units, config, now_ms):
            return JudgedPartition(None, None, local_units, (), partition)
        slice_units = tuple(_slice_units(partition))
        units = (*slice_units, *local_units)
        if begin_offset > partition.tiered_end_offset and not is_unreachable:
            return JudgedPartition(None, None, units, (), partition)
        rules = expired_rules(units, config, now_ms)
        damage: LogStoreError | None = None
        if rules and units[len(rules) - 1].end_offset > partition.tiered_end_offset:
            # These records are in no other place. A segment deleted meanwhile is in the store, or below the
            # start.
            end_offset = units[len(rules) - 1].end_offset
            proven = {segment.base_offset: segment for segment in log.reader.segments(end_offset)}
            segments = tuple(proven.get(segment.base_offset, segment) for segment in segments)
            damage = next((segment.damage for segment in segments if segment.damage is not None), None)
            units = (*slice_units, *_local_units(log, segments, partition.tiered_end_offset))
            rules = expired_rules(units, config, now_ms)
        offset = units[len(rules) - 1].end_offset if rules else None
        if offset is not None:
            offset = min(offset, log.offsets.high_watermark)
            offset = offset if offset > partition.log_start_offset else None
        return JudgedPartition(offset, damage, units, rules, partition)


def _tiered_outlook(judged: JudgedPartition, config: LogConfig, now_ms: int | None) -> RetentionOutlook:
    """The slices that go with the new log start, and the one that goes next."""
    slices = judged.state.slices
    new_log_start_offset = judged.log_start_offset or judged.state.log_start_offset
    rules = dict(enumerate(judged.rules))
    gone = [live for live in slices if live.end_offset <= new_log_start_offset]
    expired = tuple(
        ExpiredUnit(
            rules.get(index, ExpiryRule.LOG_START), live.base_offset, live.end_offset, live.entry.data_bytes
        )
        for index, live in enumerate(gone)
    )
    kept = slices[len(gone) :]
    return RetentionOutlook(
        expired,
        sum(live.entry.data_bytes for live in kept),
        _next_of(judged, len(gone), kept[0].base_offset, config, now_ms) if kept else None,
    )


def _local_next(
    judged: JudgedPartition, local: NextExpiry | None, config: LogConfig, now_ms: int | None
) -> NextExpiry | None:
    """The local segment that goes next. One that is not in the object store yet goes by the rules of all
    tiers."""
    if local is None or local.end_offset <= judged.state.tiered_end_offset:
        return local
    ends = [unit.end_offset for unit in judged.units]
    if local.end_offset not in ends:
        return local
    return _next_of(judged, ends.index(local.end_offset), local.base_offset, config, now_ms)


def _next_of(
    judged: JudgedPartition, index: int, base_offset: int, config: LogConfig, now_ms: int | None
) -> NextExpiry:
    """When the unit with this index goes, behind all units before it."""
    units = judged.units
    newest_ms = newest_times_ms(units)[len(judged.rules) : index + 1]
    unit = KeptUnit(
        base_offset,
        units[index].end_offset,
        units[index].size_bytes,
        # It waits for those before it. Without a known age none of them goes.
        max(newest_ms) if newest_ms and NO_TIMESTAMP not in newest_ms else NO_TIMESTAMP,
        sum(later.size_bytes for later in units[index + 1 :]),
    )
    exemption = ""
    if not config.is_deleted:
        exemption = "cleanup.policy is compact, so only compaction removes records"
    elif units[index].is_active:
        exemption = "appends still go to it"
    limits = RetentionLimits(config.retention_ms if now_ms is not None else UNLIMITED, config.retention_bytes)
    return next_expiry(unit, limits, now_ms, exemption)


def may_expire(
    partition: TieredPartition, local_units: Sequence[RetentionUnit], config: LogConfig, now_ms: int | None
) -> bool:
    """Whether the first slice may expire, as far as the partition's row tells, without a page. Slices expire
    in order."""
    row = partition.row
    if not row.pieces:
        return True
    if not config.is_deleted:
        return False
    is_young = (
        config.retention_ms == UNLIMITED
        or now_ms is None
        or (row.oldest_newest_ms > NO_TIMESTAMP and row.oldest_newest_ms >= now_ms - config.retention_ms)
    )
    # The first slice goes by size where all others are large enough, and it may be empty.
    all_bytes = row.tiered_bytes + sum(unit.size_bytes for unit in local_units)
    is_small = config.retention_bytes == UNLIMITED or all_bytes < config.retention_bytes
    return not (is_young and is_small)


def _slice_units(partition: TieredPartition) -> Iterator[RetentionUnit]:
    for live in partition.slices:
        entry = live.entry
        is_empty = entry.record_count == 0 and live.gap is None
        yield RetentionUnit(live.end_offset, entry.data_bytes, live.newest_ms, is_empty)


def _local_units(
    log: UnifiedLog, segments: Sequence[SegmentInfo], tiered_end_offset: int
) -> Iterator[RetentionUnit]:
    """The local segments at or above the tiered end. A segment that lies on both sides of it is as young as
    its newest record on either side.
    """
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

    0 where it may not be uploaded yet: with too small a size `retention.bytes` deletes too little.
    """
    for source in log.reader.upload_candidates(tiered_end_offset):
        if source.segment_base_offset == segment.base_offset:
            return source.size_bytes
    return 0


def newest_times_ms(units: Sequence[RetentionUnit]) -> list[int]:
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
