"""Converts plans, exclusions, explanations and caches of the tiers to messages."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.job_history import Exclusion
from stratalog.compaction.plan.compaction_job import CompactionJob, PartitionRun, RunMode
from stratalog.compaction.plan.job_cost import JobCost
from stratalog.log.retention.retention_outlook import RetentionOutlook
from stratalog.remote.loading_cache import CacheStats
from stratalog.remote.read.object_reads import ReaderCaches
from stratalog.remote.retention.remote_retention import ExplainedPartition
from stratalog.server.background.tier_compaction import IdleTopic
from stratalog.server.background.tier_upkeep import FinalizedHead
from stratalog.server.rpc.access.shown_topics import IsShown
from stratalog.server.rpc.admin.admin_convert import UNKNOWN
from stratalog.server.rpc.status import bounded_reason
from stratalog.v1 import tier_pb2

_LOCAL, _STORED = tier_pb2.RETENTION_TIER_LOCAL, tier_pb2.RETENTION_TIER_OBJECT_STORE

_ALL_SHARDS = -1


def idle_topic_message(idle: IdleTopic) -> tier_pb2.IdleTopic:
    """The name of a topic without a job, and the reasons."""
    return tier_pb2.IdleTopic(topic=idle.topic, reasons=map(bounded_reason, idle.reasons))


def planned_job_message(job: CompactionJob, cost: JobCost, is_shown: IsShown) -> tier_pb2.PlannedJob:
    """A job of a plan, with its runs in topics that are shown."""
    return tier_pb2.PlannedJob(
        reason=tier_pb2.CompactionReason.Value(f"COMPACTION_REASON_{job.reason.name}"),
        input_names=job.input_names,
        input_bytes=sum(live.ref.size_bytes for live in job.inputs),
        runs=[_run_message(run) for run in job.runs if is_shown(run.topic.name)],
        cost=tier_pb2.CompactionCost(
            get_request_count=cost.get_count,
            put_request_count=cost.put_count,
            read_bytes=cost.read_bytes,
            written_bytes=cost.written_bytes,
            freed_bytes=cost.freed_bytes,
        ),
    )


def prices_message(settings: CompactionSettings) -> tier_pb2.StorePrices:
    """The prices of a plan."""
    return tier_pb2.StorePrices(
        get_dollars=settings.get_price,
        put_dollars=settings.put_price,
        storage_dollars=settings.storage_price,
    )


def _run_message(run: PartitionRun) -> tier_pb2.PlannedRun:
    return tier_pb2.PlannedRun(
        topic=run.topic.name,
        partition=run.topic_id_partition.partition,
        base_offset=run.base_offset,
        end_offset=run.end_offset,
        slice_count=len(run.slices),
        size_bytes=run.data_bytes,
        compacted=run.mode is RunMode.COMPACT,
    )


def excluded_message(tip: TopicIdPartition, one: Exclusion, topic: str) -> tier_pb2.ExcludedPartition:
    """A partition that compaction leaves alone. `topic` is empty if the topic does not exist any more."""
    return tier_pb2.ExcludedPartition(
        topic=topic,
        topic_id=str(tip.topic_id),
        partition=tip.partition,
        reason=bounded_reason(one.reason),
        since_ms=one.since_ms,
        until_ms=UNKNOWN if one.until_ms is None else one.until_ms,
        failure_count=one.failure_count,
    )


def explained_message(
    name: TopicPartition, explained: ExplainedPartition | LogStoreError | str
) -> tier_pb2.ExplainedPartition:
    """The effect that retention would have on a partition, or why it has none."""
    message = tier_pb2.ExplainedPartition(topic=name.topic, partition=name.partition)
    if not isinstance(explained, ExplainedPartition):
        message.reason = bounded_reason(str(explained))
        return message
    message.log_start_offset = explained.log_start_offset
    message.new_log_start_offset = explained.new_log_start_offset
    message.kept_local_bytes = explained.local.kept_bytes
    message.kept_tiered_bytes = explained.tiered.kept_bytes
    message.clock_refused = explained.is_clock_refused
    message.clock_skew_ms = explained.clock_skew_ms
    for tier, outlook in ((_LOCAL, explained.local), (_STORED, explained.tiered)):
        message.expired.extend(_expired_messages(tier, outlook))
        if outlook.next is not None:
            message.next.add(tier=tier, **outlook.next._asdict())
    return message


def _expired_messages(
    tier: tier_pb2.RetentionTier.ValueType, outlook: RetentionOutlook
) -> Iterable[tier_pb2.ExpiredRange]:
    """One range for each row of units that go by one rule."""
    for rule, row in groupby(outlook.expired, key=lambda unit: unit.rule):
        units = tuple(row)
        yield tier_pb2.ExpiredRange(
            tier=tier,
            rule=tier_pb2.RetentionRule.Value(f"RETENTION_RULE_{rule.name}"),
            base_offset=units[0].base_offset,
            end_offset=units[-1].end_offset,
            unit_count=len(units),
            size_bytes=sum(unit.size_bytes for unit in units),
        )


def caches_message(caches: ReaderCaches) -> tier_pb2.DescribeCachesResponse:
    """The caches of tiered data."""
    found = [
        _cache_message(tier_pb2.CACHE_CONTENTS_DATA, caches.data),
        _cache_message(tier_pb2.CACHE_CONTENTS_INDEX, caches.indexes),
    ]
    if caches.disk is not None and caches.disk.capacity_bytes:
        found.append(_cache_message(tier_pb2.CACHE_CONTENTS_DISK, caches.disk))
    return tier_pb2.DescribeCachesResponse(caches=found)


def _cache_message(contents: tier_pb2.CacheContents.ValueType, stats: CacheStats) -> tier_pb2.CacheStatus:
    return tier_pb2.CacheStatus(shard=_ALL_SHARDS, contents=contents, **stats._asdict())


def finalized_head_message(head: FinalizedHead) -> tier_pb2.FinalizedHead:
    """The metadata versions of a head."""
    return tier_pb2.FinalizedHead(
        shard=UNKNOWN if head.shard is None else head.shard,
        old_metadata_version=head.old_version,
        new_metadata_version=head.new_version,
        reason=bounded_reason(head.reason),
    )
