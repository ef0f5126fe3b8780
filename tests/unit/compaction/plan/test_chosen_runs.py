"""The runs of a job: the same whether the plan has kept them or chooses them again when the job is due."""

from __future__ import annotations

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.plan import job_assembly
from stratalog.compaction.plan.compaction_job import JobReason
from stratalog.compaction.plan.planner import plan
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from stratalog.remote.objects.slice_span import SliceSpan
from tests.support.simulation.planned_shard import NOW_MS, Shard, entry_of, topic


@pytest.mark.parametrize("kept_runs", [0, 10])
def test_a_job_that_needs_fewer_objects_than_it_was_tried_with_is_the_one_that_was_planned(
    kept_runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once took other partitions along when its runs were chosen again: their best run in all objects that
    were tried empties none, and that in those which it needs empties one."""
    monkeypatch.setattr(job_assembly, "_KEPT_RUNS", kept_runs)
    policy = topic(1, is_compacted=False, span=SliceSpan(max_bytes=3_000))
    merged, apart, stuck = (TopicIdPartition(policy.topic_id, number) for number in range(3))
    shard = Shard()
    shard.partitions = {tip: PartitionRow() for tip in (merged, apart, stuck)}
    # The second object is of another size class: without it, `apart` has no slices in a row.
    for sizes in (
        {apart: 3_000, stuck: 1_000},
        {apart: 9_000_000},
        {apart: 3_000, merged: 1_000},
        {merged: 1_000},
        {merged: 1_000},
    ):
        name = shard.new_object(sum(sizes.values()))
        for tip, size_bytes in sizes.items():
            row = shard.partitions[tip]
            base = row.tiered_end_offset if row.pieces else 0
            entry = entry_of(policy, tip.partition, base, base + 1, size_bytes)
            shard.partitions[tip] = row.with_slice(LiveSlice(name, base, base + 1, entry))
    settings = CompactionSettings(spool_directory="/spool", merge_fanout=3)
    planned = plan(
        shard.state(), {policy.topic_id: policy}, NOW_MS, settings, excluded={stuck: "it has failed"}
    )
    (job,) = planned.jobs
    assert job.reason is JobReason.MERGE
    assert [run.topic_id_partition for run in job.runs] == [merged]
    assert [size.partition_count for size in planned.jobs.sizes] == [1]
    assert [one.topic_id_partition for one in planned.idle()] == [apart]
