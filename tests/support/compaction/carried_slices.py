"""Carries consecutive slices of a partition into one, by a job that no planner has chosen."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.randomness import IdGenerator
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.job_execution import CompactedShard, JobClock, JobExecution
from stratalog.compaction.plan.compaction_job import CompactionJob, JobReason, PartitionRun, RunMode
from stratalog.compaction.plan.job_gathering import JobGathering
from stratalog.compaction.plan.run_slices import RunSlices
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.log.log_config import LogConfig
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.remote.store_identity import StoreIdentity
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.tiered.tiered_logs import TieredLogs


def carry(
    logs: TieredLogs,
    tip: TopicIdPartition,
    slices: Sequence[LiveSlice],
    ids: IdGenerator,
    *,
    covers: bool = False,
    part_counts: tuple[int, ...] = (),
) -> None:
    """Replace the slices, which follow one another, by one with the same records, or by one for so many of
    them each. If it `covers` the partition, the commit says falsely that only the last record of each key is
    left."""
    state = logs.metadata.state()
    topic = logs.catalog.by_id(tip.topic_id)
    identity = StoreIdentity.find(logs.store)
    assert topic is not None
    assert identity is not None
    run = PartitionRun(
        topic_id_partition=tip,
        topic=TopicPolicy.of(topic, LogConfig()),
        mode=RunMode.CARRY,
        covers=False,
        log_start_offset=state.partition(tip).log_start_offset,
        slices=RunSlices(slices),
        part_counts=part_counts,
    )
    found = [state.objects.get(name) for name in sorted(live.object_name for live in slices)]
    gathering = JobGathering(one.ref.name for one in found if one is not None)
    gathering.add(run)
    job = CompactionJob(
        reason=JobReason.MERGE,
        inputs=tuple(one for one in found if one is not None),
        runs=(run,),
        needs=gathering.needs,
    )
    job.check()
    shard = CompactedShard(logs.store, identity.store_id, logs.metadata, logs.catalog)
    settings = CompactionSettings(spool_directory="/compaction", read_chunk_bytes=100)
    now = JobClock(logs.clock.now_ms(), may_drop_tombstones=False)
    result = JobExecution(
        MemoryFileSystem(), logs.clock, ids, logs.store, shard.order(job, settings, now)
    ).execute()
    outcome = logs.metadata.replace(
        {tip: SliceRanges.of(slices)},
        job.input_names,
        result.stored,
        covers={tip: covers},
        catalog_seq=0,
        drops_records=False,
    )
    assert outcome.has_committed
    assert not outcome.refused
