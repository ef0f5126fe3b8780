"""Retention over all tiers: moves the log start of each partition, by time and by size.

Retention looks at a partition as a row of units, oldest first: its live slices, then the local segments that
reach beyond the tiered end. A segment that is tiered in part stands in the row with its rest, so the row has
no holes. `retention.ms` takes units from the front while their newest record is too old. `retention.bytes`
takes them while the remaining units are at least as large as the limit, so at least that much always stays.
Both stop at the first unit that stays. The active segment stays while uploads roll it. Where they are
switched off or paused it goes like the others, as in a log without tiers. The log start never passes the high
watermark. A slice that is wider than the topic's bound, and is the first to stay, stands in the row with its
parts (see `wide_slices`).

All records of a unit may be without a timestamp. Such a slice is as old as its upload. Such a segment is
taken to be as old as the next unit that has a time, because it was appended before that unit; if there is
none it does not expire before it is uploaded. A gap is as old as its record. One that retention has left
itself (`expired`) lost nothing that it would have kept, and goes with the unit before it.

A unit with a record of the future keeps everything behind it from expiring by time, until that time has come:
then it is counted and reported, see `RetentionReport.future_count`.

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
no disk grows with those. A partition that begins behind its tiered end waits for that upload. Without uploads
it goes on: what is missing between both lies below the log start once all slices have expired.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from stratalog.base.disk_calls import DIRECT_DISK_CALLS, DiskCalls, Result, WorkSteps
from stratalog.base.errors import LogStoreError, StoreError
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
    utc_text,
)
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.header import NO_TIMESTAMP
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.slice_span import SliceSpan, slice_extent
from stratalog.remote.retention.retention_units import (
    RetentionUnit,
    expired_rules,
    future_units,
    is_old,
    is_time_refused,
    is_worth_a_look,
    local_units,
    newest_times_ms,
    slice_units,
    tiered_unit,
)
from stratalog.remote.retention.wide_slices import ReadIndex, WideSlices


class _Look(NamedTuple):
    """A look at a log, and at its slices behind it."""

    segments: tuple[SegmentInfo, ...]
    begin_offset: int
    """The first local offset."""
    state: ShardState
    partition: TieredPartition
    behind: tuple[RetentionUnit, ...]
    """The local segments behind the tiered end."""


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
    future_count: int = 0
    """Slices and segments that do not expire by time, because their newest record is of the future."""


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
    is_clock_refused: bool = False
    """It has a retention by time and does not expire by it, because the clock is wrong."""
    clock_skew_ms: int = 0
    """Own clock minus the store's clock."""


class RemoteRetention:
    """Moves the log starts of tiered partitions by retention. Thread-safe: its parts are."""

    def __init__(
        self,
        metadata: MetadataLog,
        read_index: ReadIndex | None = None,
        disk: DiskCalls = DIRECT_DISK_CALLS,
    ) -> None:
        """Without `read_index` wide slices go as a whole only. `disk` does all work on the logs: a log whose
        disk does not answer fails, and the others go on."""
        self._metadata = metadata
        self._disk = disk
        self._wide_slices = None if read_index is None else WideSlices(read_index)

    def run(self, logs: Sequence[UnifiedLog], *, epoch: int, catalog_seq: int) -> RetentionReport:
        """Move the log start of tiered partitions as their configuration says, in one commit.

        `catalog_seq` is the number of the catalog from which the logs have their configurations, or an older
        one. A partition that begins behind its tiered end stays as it is until the next upload, if any is to
        come. When this returns, the moves are committed and the logs know them; the caller deletes local
        segments next. A log that fails, or whose disk does not answer, is reported and does not hold up the
        others; it follows with the next call. Raises NotOwnerError, StoreError, PreconditionFailedError (a
        newer configuration was used before: read the catalog and try again).
        """
        now_ms = self._trusted_now_ms()
        starts: dict[TopicIdPartition, int] = {}
        moved: dict[TopicIdPartition, UnifiedLog] = {}
        late: dict[TopicIdPartition, UnifiedLog] = {}
        failed: list[FailedRetention] = []
        clock_refused_count = future_count = 0
        for log in logs:
            config = log.local_log.config
            if not config.remote_storage_enable:
                continue
            clock_refused_count += is_time_refused(config, now_ms)
            tip = TopicIdPartition(log.topic_id, log.topic_partition.partition)
            try:
                judged = self._judge(log, tip, config, now_ms)
            except LogStoreError as error:
                failed.append(FailedRetention(log.topic_partition, error))
                continue
            if judged.damage is not None:
                failed.append(FailedRetention(log.topic_partition, judged.damage))
            future_count += len(future_units(judged.units, config, now_ms))
            if judged.log_start_offset is not None:
                starts[tip] = judged.log_start_offset
                moved[tip] = log
            elif log.offsets.log_start_offset < _start_of(log, judged.state):
                # A former move is committed, and the log was busy then.
                late[tip] = log
        if starts:
            self._metadata.advance_log_start(starts, epoch=epoch, catalog_seq=catalog_seq)
        advanced: list[AdvancedLogStart] = []
        for tip, log in (*moved.items(), *late.items()):
            partition = self._metadata.state().partition(tip)
            try:
                # What was given up may still come to the log: the metadata have the start for good.
                self._in_log(log, partial(self._follow, log, tip, _start_of(log, partition)))
            except LogStoreError as error:
                failed.append(FailedRetention(log.topic_partition, error))
                if tip in late:
                    continue
            advanced.append(AdvancedLogStart(log.topic_partition, partition.log_start_offset))
        return RetentionReport(
            tuple(advanced),
            tuple(failed),
            self._metadata.clock_skew_ms,
            clock_refused_count,
            future_count,
        )

    def _in_log(
        self, log: UnifiedLog, work: Callable[[], Result], progress: Callable[[], int] | None = None
    ) -> Result:
        """The result of work on the log. Also raises DataDirectoryError if the disk does not answer, or an
        fsync of the log takes long."""
        return self._disk.run(log.local_log.log_dir, work, progress, lock=log.flush_lock)

    def _follow(self, log: UnifiedLog, tip: TopicIdPartition, log_start_offset: int) -> None:
        log.follow_tiered_end(partial(self._tiered_end_of, tip))
        log.increment_log_start_offset(log_start_offset)

    def _tiered_end_of(self, tip: TopicIdPartition) -> int:
        return self._metadata.state().partition(tip).tiered_end_offset

    def run_unreachable(self, logs: Sequence[UnifiedLog]) -> RetentionReport:
        """Move the log start of those partitions that have local segments behind the tiered end which
        expire, while the store does not answer or takes no commits. Sends no request.

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
                self._in_log(log, partial(log.increment_log_start_offset, offset, is_committed=False))
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
        explain = partial(log.retention.explain, compacted_upto=state.compacted_upto)
        if offset is not None:
            explain = partial(
                explain,
                log_start_offset=max(offset, log.offsets.log_start_offset),
                tiered_end_offset=max(offset, state.tiered_end_offset, log.offsets.tiered_end_offset),
            )
        local = self._in_log(log, explain, lambda: log.retention.look_count)
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
        config = log.local_log.config
        return ExplainedPartition(
            log_start_offset=old_offset,
            new_log_start_offset=new_offset,
            tiered=_tiered_outlook(judged, config, now_ms),
            local=local._replace(expired=expired, next=_local_next(judged, local.next, config, now_ms)),
            is_clock_refused=is_time_refused(config, now_ms),
            clock_skew_ms=self._metadata.clock_skew_ms,
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
        `is_unreachable` or no upload is to come. With `may_skip`, the slices are not looked at (and not among
        the units) where nothing can expire and no record is of the future. Raises LogStoreError."""
        steps = WorkSteps()
        look = partial(self._look_at, log, tip, steps)
        segments, begin_offset, state, partition, behind = self._in_log(log, look, lambda: steps.count)
        if may_skip and not is_worth_a_look(partition.row, behind, config, now_ms):
            return JudgedPartition(None, None, behind, (), partition)
        tiered_units = (
            tiered_unit(partition.row, state.time_ms)
            if is_unreachable
            else tuple(slice_units(partition, state.objects))
        )
        units = (*tiered_units, *behind)
        waits = config.is_uploading and not is_unreachable
        if waits and begin_offset > partition.tiered_end_offset:
            return JudgedPartition(None, None, units, (), partition)
        rules = expired_rules(units, config, now_ms)
        damage: LogStoreError | None = None
        if not is_unreachable and len(rules) < len(tiered_units):
            try:
                parts = self._parts(partition, units, len(rules), config, now_ms)
            except StoreError as error:
                # The slice stays whole, and whole slices go.
                damage, parts = error, units[len(rules) : len(rules) + 1]
            tiered_units = (*tiered_units[: len(rules)], *parts, *tiered_units[len(rules) + 1 :])
            units = (*tiered_units, *units[len(partition.slices) :])
            rules = expired_rules(units, config, now_ms)
        if rules and units[len(rules) - 1].end_offset > partition.tiered_end_offset:
            # These records are in no other place. A segment deleted meanwhile is in the store, or below the
            # start.
            end_offset = units[len(rules) - 1].end_offset
            prove = partial(log.reader.segments, end_offset, on_segment=steps.note)
            found = self._in_log(log, prove, lambda: steps.count)
            proven = {segment.base_offset: segment for segment in found}
            segments = tuple(proven.get(segment.base_offset, segment) for segment in segments)
            damage = next((segment.damage for segment in segments if segment.damage is not None), damage)
            behind = self._in_log(log, lambda: tuple(local_units(log, segments, partition.tiered_end_offset)))
            units = (*tiered_units, *behind)
            rules = expired_rules(units, config, now_ms)
        offset = units[len(rules) - 1].end_offset if rules else None
        if offset is not None:
            offset = min(offset, log.offsets.high_watermark)
            offset = offset if offset > partition.log_start_offset else None
        return JudgedPartition(offset, damage, units, rules, partition)

    def _look_at(self, log: UnifiedLog, tip: TopicIdPartition, steps: WorkSteps) -> _Look:
        """Read the log before the shard. A segment that is uploaded and deleted locally in between is then in
        both; in the other order it would be in neither and leave a hole in the row. Raises
        CorruptRecordError, DataDirectoryError."""
        segments = log.reader.segments(on_segment=steps.note)
        begin_offset = max(log.offsets.log_start_offset, segments[0].base_offset)
        state = self._metadata.state()
        partition = state.partition(tip)
        behind = tuple(local_units(log, segments, partition.tiered_end_offset))
        return _Look(segments, begin_offset, state, partition, behind)

    def _parts(
        self,
        partition: TieredPartition,
        units: Sequence[RetentionUnit],
        index: int,
        config: LogConfig,
        now_ms: int | None,
    ) -> Sequence[RetentionUnit]:
        """The parts of the slice with this index, if it is wide and some of them may go; else the slice.
        Raises StoreError."""
        live, unit = partition.slices[index], units[index]
        span = SliceSpan.of(config)
        if self._wide_slices is None or live.gap is not None or span.holds(slice_extent(live.entry, 0)):
            return (unit,)
        later_bytes = sum(later.size_bytes for later in units[index:])
        is_over_size = config.retention_bytes != UNLIMITED and later_bytes > config.retention_bytes
        oldest = unit._replace(max_timestamp=live.entry.min_timestamp)
        if not is_over_size and not is_old(oldest, oldest.max_timestamp, config, now_ms):
            return (unit,)
        is_undated = live.newest_ms == NO_TIMESTAMP
        return [
            RetentionUnit(
                part.end_offset, part.size_bytes, unit.max_timestamp if is_undated else part.newest_ms
            )
            for part in self._wide_slices.parts(live, span, partition.log_start_offset)
        ]


def _start_of(log: UnifiedLog, partition: TieredPartition) -> int:
    """The log start of the metadata, as far as the log can follow."""
    return min(partition.log_start_offset, log.offsets.high_watermark)


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
    if not kept:
        return RetentionOutlook(expired)
    ends = [unit.end_offset for unit in judged.units]
    # The parts of a wide slice that go stay in the store with it.
    index = max(len(gone), bisect.bisect_right(ends, new_log_start_offset))
    base_offset = kept[0].base_offset
    if index > len(gone):
        parts, new_base_offset = judged.units[len(gone) : index], ends[index - 1]
        rule = rules.get(index - 1, ExpiryRule.LOG_START)
        size_bytes = sum(part.size_bytes for part in parts)
        expired += (ExpiredUnit(rule, base_offset, new_base_offset, size_bytes),)
        base_offset = new_base_offset
    return RetentionOutlook(
        expired,
        sum(live.entry.data_bytes for live in kept),
        _next_of(judged, index, base_offset, config, now_ms),
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
        exemption = "appends still go to it, until an upload rolls it"
    limits = RetentionLimits(config.retention_ms, config.retention_bytes)
    expiry = next_expiry(unit, limits, now_ms, exemption)
    future = future_units(units[index + 1 :], config, now_ms)
    if not future:
        return expiry
    last_ms = max(one.max_timestamp for one in future)
    return expiry._replace(
        reason=f"{expiry.reason}; behind it records are in the future, up to {utc_text(last_ms)}, and keep"
        " all that follows from going by time"
    )
