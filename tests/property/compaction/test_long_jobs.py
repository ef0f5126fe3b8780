"""Plans of partitions whose full slices are more than the inputs of a job."""

from __future__ import annotations

import itertools

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.plan.compaction_job import JobRoom
from stratalog.compaction.plan.job_assembly import FAILURES_TO_SHRINK
from stratalog.compaction.plan.partition_outlook import TOO_MANY_SLICES
from stratalog.compaction.plan.planner import plan
from tests.support.simulation.planned_shard import NOW_MS, Shard, topic, uploads


def full_slices(clean_count: int, dirty_count: int) -> Shard:
    """A compacted partition whose slices have as many bytes as a job, the first ones compacted."""
    policy = topic(1, is_compacted=True)
    shard = uploads(policy, [1_000] * (clean_count + dirty_count))
    tip = TopicIdPartition(policy.topic_id, 0)
    shard.partitions[tip] = shard.partitions[tip]._replace(compacted_upto=10 * clean_count)
    return shard


@pytest.mark.parametrize(
    ("clean_count", "dirty_count", "input_count", "idle"),
    [
        (33, 33, 66, None),
        (100, 99, 0, "99000 of 199000 bytes are not compacted yet"),
        (100, 100, 200, None),
        (250, 250, 500, None),
        (250, 270, 500, None),
        (260, 230, 0, "230000 of 490000 bytes are not compacted yet"),
        (260, 240, 0, "240000 of 500000 bytes are not compacted yet"),
        (260, 241, 0, TOO_MANY_SLICES),
        (501, 10, 0, TOO_MANY_SLICES),
    ],
)
def test_full_slices_are_compacted_up_to_as_many_as_a_commit_replaces(
    clean_count: int, dirty_count: int, input_count: int, idle: str | None
) -> None:
    """From 33 slices on `compacted_upto` stood still, and nothing said so: a job took 64 inputs."""
    shard = full_slices(clean_count, dirty_count)
    policy = topic(1, is_compacted=True)
    tip = TopicIdPartition(policy.topic_id, 0)
    settings = CompactionSettings(spool_directory="/spool", max_job_bytes=1_000)
    planned = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings)
    reasons = [one.reason for one in (*planned.refusals, *planned.idle())]
    assert [len(job.inputs) for job in planned.jobs] == ([input_count] if input_count else [])
    if idle is not None:
        assert [reason[: len(idle)] for reason in reasons] == [idle]
        assert bool(planned.refusals) == (idle == TOO_MANY_SLICES), "people see what lasts"
        return
    for job in planned.jobs:
        assert job.runs[0].covers
        shard.commit(job)
    assert shard.partitions[tip].compacted_upto == 10 * input_count


def test_larger_slices_help_a_partition_of_too_many() -> None:
    """The reason says so."""
    policy = topic(1, is_compacted=True)
    shard = full_slices(501, 10)
    settings = CompactionSettings(spool_directory="/spool", max_job_bytes=2_000, target_object_bytes=1)
    rounds = itertools.count()
    while True:
        planned = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings)
        if not planned.jobs:
            break
        for job in planned.jobs:
            shard.commit(job)
        assert next(rounds) < 500
    assert not planned.refusals


def test_a_long_job_for_which_there_is_no_room_becomes_shorter() -> None:
    shard = full_slices(100, 100)
    policy = topic(1, is_compacted=True)
    settings = CompactionSettings(spool_directory="/spool", max_job_bytes=1_000)
    state = shard.state()

    def planned_inputs(room: JobRoom, failures: int = 0) -> list[int]:
        planned = plan(
            state,
            {policy.topic_id: policy},
            NOW_MS,
            settings,
            rooms=dict.fromkeys(state.objects, room),
            failures=dict.fromkeys(state.objects, failures),
        )
        return [len(job.inputs) for job in planned.jobs]

    assert planned_inputs(JobRoom(150, 100_000)) == [150]
    assert planned_inputs(JobRoom(2, 1)) == [101], "it moves compacted_upto"
    assert planned_inputs(JobRoom(500, 1_000_000), failures=FAILURES_TO_SHRINK) == [101]
