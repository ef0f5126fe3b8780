"""Plain topics of different retention part ways: the planner keeps slices together that die together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.plan.planner import plan
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from tests.support.simulation.planned_shard import NOW_MS, Shard, entry_of, slices_of, topic


def uploads(shard: Shard, policies: Sequence[TopicPolicy], count: int, size_bytes: int) -> None:
    """So many objects with a slice of each topic."""
    for number in range(count):
        name = shard.new_object(size_bytes * len(policies))
        for place, policy in enumerate(policies):
            tip = TopicIdPartition(policy.topic_id, 0)
            entry = entry_of(policy, 0, number, number + 1, size_bytes, position=place * size_bytes)
            before = shard.partitions.get(tip, PartitionRow())
            shard.partitions[tip] = before.with_slice(LiveSlice(name, number, number + 1, entry))


def test_plain_topics_are_merged_by_factors_of_four_in_their_retention() -> None:
    day_ms = 24 * 60 * 60 * 1000
    policies = [
        topic(1, is_compacted=False, retention_ms=7 * day_ms),
        topic(2, is_compacted=False, retention_ms=8 * day_ms),
        topic(3, is_compacted=False, retention_ms=60 * day_ms),
        topic(4, is_compacted=False),
        topic(5, is_compacted=True, min_dirty_ratio=0.0, retention_ms=7 * day_ms),
    ]
    assert [policies[0].kind == other.kind for other in policies] == [True, True, False, False, False]
    kinds = [policies[index].kind for index in (4, 0, 2, 3)]
    assert kinds == sorted(set(kinds)), "longer lives come later, compacted topics first"
    shard, topics = Shard(), {policy.topic_id: policy for policy in policies}
    uploads(shard, policies, 8, 1 << 20)
    settings = CompactionSettings(spool_directory="/spool")
    (job,) = plan(shard.state(), topics, NOW_MS, settings).jobs
    assert job.output_count == len(kinds)
    shard.commit(job)
    places = {slices_of(shard.partitions[TopicIdPartition(one, 0)])[0].object_name for one in topics}
    assert len(places) == len(kinds)
    assert not plan(shard.state(), topics, NOW_MS, settings).jobs


@pytest.mark.parametrize(("object_count", "is_merged"), [(4, False), (5, False), (6, True)])
def test_a_merge_leaves_fewer_objects_than_it_reads(object_count: int, *, is_merged: bool) -> None:
    """Five kinds of topics, each in one slice of one object and none in two."""
    policies = [topic(number, is_compacted=False, retention_ms=1_000 * 4**number) for number in range(1, 6)]
    shard, topics = Shard(), {policy.topic_id: policy for policy in policies}
    for number in range(object_count):
        # Two topics in each object: it is mixed.
        name = shard.new_object(2_000)
        for place in range(2):
            policy = policies[(number + place) % len(policies)]
            tip = TopicIdPartition(policy.topic_id, number)
            entry = entry_of(policy, number, 0, 1, 1_000, position=place * 1_000)
            shard.partitions[tip] = PartitionRow().with_slice(LiveSlice(name, 0, 1, entry))
    jobs = plan(shard.state(), topics, NOW_MS, CompactionSettings(spool_directory="/spool")).jobs
    assert [len(job.inputs) > job.output_count for job in jobs] == [True] * is_merged
