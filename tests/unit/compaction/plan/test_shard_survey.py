"""The rows of a survey: the slices of each object are found, whatever objects their partitions share."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan.partition_outlook import OutlookTerms
from stratalog.compaction.plan.shard_survey import ShardSurvey
from stratalog.remote.metadata.shard.live_slice import Gap, LiveSlice
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from tests.support.simulation.planned_shard import NOW_MS, Shard, entry_of, slices_of, topic

TERMS = OutlookTerms(
    now_ms=NOW_MS,
    may_drop_tombstones=True,
    max_inputs=64,
    most_inputs=500,
    max_job_bytes=1 << 30,
    max_partition_bytes=1 << 30,
    min_dirty_ratio=None,
)


def indexes_in(name: str, slices: Sequence[LiveSlice]) -> list[int]:
    """The indexes of the slices that lie in the object."""
    return [index for index, live in enumerate(slices) if live.object_name == name]


@pytest.mark.parametrize("seed", range(12))
def test_each_object_has_the_slices_that_lie_in_it(seed: int) -> None:
    """Partitions lie there that were uploaded together, others between them and behind gaps, and those of
    topics that are not known."""
    random = Random(seed)
    policy, stranger = topic(1, is_compacted=True), topic(2, is_compacted=True)
    shard = Shard()
    names = [shard.new_object(1_000) for _ in range(6)]
    groups = [sorted(random.sample(names, random.randrange(1, 6))) for _ in range(3)]
    for partition in range(random.randrange(1, 12)):
        owner = policy if random.random() < 0.8 else stranger
        row, end = PartitionRow(), 0
        tip = TopicIdPartition(owner.topic_id, partition)
        for name in random.choice([*groups, *groups, sorted(random.sample(names, 2))]):
            if random.random() < 0.1:
                gap = LiveSlice.of_gap(tip, end, end + 1, Gap("expired", 0))
                row, end = row.with_slice(gap), end + 1
            entry = entry_of(owner, partition, end, end + 2, 10)
            row, end = row.with_slice(LiveSlice(name, end, end + 2, entry)), end + 2
        shard.partitions[tip] = row
    tips = sorted(shard.partitions)
    excluded = {tip: "it has failed" for tip in tips if random.random() < 0.1}
    survey = ShardSurvey(shard.state(), {policy.topic_id: policy}, TERMS, excluded, {})
    can_move = {tip: tip.topic_id == policy.topic_id and tip not in excluded for tip in tips}
    for name in names:
        indexes_of = {
            place: indexes_in(name, slices_of(shard.partitions[tip])) for place, tip in enumerate(tips)
        }
        expected = {place: indexes for place, indexes in indexes_of.items() if indexes}
        number = survey.number_of(name)
        if number is None:
            assert not expected, "no object without a slice is live"
            continue
        assert list(survey.partitions_in([number])) == list(expected)
        movable = {place: indexes for place, indexes in expected.items() if can_move[tips[place]]}
        found = {part.partition: list(part.indexes) for part in survey.slices_in([number])}
        assert found == movable
        assert survey.movable_counts[number] == sum(map(len, movable.values()))
        for place, indexes in expected.items():
            assert [list(survey.objects_of(place, one, one + 1)) for one in indexes] == [[number]] * len(
                indexes
            )
