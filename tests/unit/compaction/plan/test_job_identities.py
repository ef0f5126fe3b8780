"""The identity of a planned job changes with all that the job would do, and with nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.plan import job_assembly
from stratalog.compaction.plan.planned_jobs import PlannedJobs
from stratalog.compaction.plan.planner import plan
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from stratalog.remote.objects.slice_span import SliceSpan
from tests.support.simulation.planned_shard import NOW_MS, Shard, entry_of, topic

TOPIC = topic(1, is_compacted=True)
FIRST, SECOND = (TopicIdPartition(TOPIC.topic_id, number) for number in range(2))


def shard_of() -> Shard:
    """A shard with three objects, each with a slice of two partitions."""
    shard = Shard()
    shard.partitions = {FIRST: PartitionRow(), SECOND: PartitionRow()}
    for base in range(3):
        name = shard.new_object(2_000)
        for tip, row in shard.partitions.items():
            entry = entry_of(TOPIC, tip.partition, base, base + 1, 1_000)
            shard.partitions[tip] = row.with_slice(LiveSlice(name, base, base + 1, entry))
    return shard


def planned_jobs(
    shard: Shard, policy: TopicPolicy = TOPIC, carried: Mapping[TopicIdPartition, str] | None = None
) -> PlannedJobs:
    settings = CompactionSettings(spool_directory="/spool")
    planned = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings, carried=carried or {})
    assert len(planned.jobs) == 1
    return planned.jobs


@pytest.mark.parametrize("kept_runs", [0, 10])
def test_the_same_plan_has_the_same_identities(kept_runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (before,) = planned_jobs(shard_of()).identities()
    monkeypatch.setattr(job_assembly, "_KEPT_RUNS", kept_runs)
    (after,) = planned_jobs(shard_of()).identities()
    assert after == before


def test_a_job_that_does_something_else_to_the_same_objects_has_another_identity() -> None:
    shard = shard_of()
    moved = shard_of()
    moved.partitions[FIRST] = moved.partitions[FIRST]._replace(log_start_offset=1)
    jobs = [
        planned_jobs(shard),
        planned_jobs(shard, carried={FIRST: "it has failed"}),
        planned_jobs(shard, dataclasses.replace(TOPIC, delete_retention_ms=7)),
        planned_jobs(shard, dataclasses.replace(TOPIC, span=SliceSpan(max_bytes=2_000))),
        planned_jobs(moved),
    ]
    assert len({one[0].input_names for one in jobs}) == 1, "all of them read the same objects"
    identities = [identity for one in jobs for identity in one.identities()]
    assert len(set(identities)) == len(jobs)
