"""The slices of a survey: each partition's in brief, and those of runs, kept or read again."""

from __future__ import annotations

import pickle
from random import Random

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan import surveyed_slices
from stratalog.compaction.plan.surveyed_slices import SliceRange, SurveyedSlices
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.live_slice import GapReason, LiveSlice
from stratalog.remote.metadata.shard.shard_judge import LostRange
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.slice_briefs import SliceBriefs
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_store import TieredStore

PARTITIONS = 6
OBJECTS = 4


class World:
    """A store whose objects have a slice of most partitions each."""

    def __init__(self) -> None:
        self._random = Random(5)
        clock = ManualClock()
        self.tiered = TieredStore(MemoryFileSystem(), MemoryObjectStore(clock), clock, SequentialIds(1))
        topic = self.tiered.catalog.create("t", PARTITIONS, {"cleanup.policy": "compact"})
        self.tips = [TopicIdPartition(topic.topic_id, number) for number in range(PARTITIONS)]
        for _ in range(OBJECTS):
            self.upload(self.tips)

    def upload(self, tips: list[TopicIdPartition]) -> None:
        slices: dict[TopicIdPartition, list[bytes]] = {}
        for tip in tips:
            value = None if self._random.random() < 0.2 else b"value"
            records = [Record(0, self._random.randrange(9), b"key", value)]
            base_offset = self.tiered.partition(tip).tiered_end_offset
            slices[tip] = [encode_batch(records, base_offset=base_offset, leader_epoch=1)]
        self.tiered.upload(slices)

    def lose(self, tip: TopicIdPartition) -> None:
        end_offset = self.tiered.partition(tip).tiered_end_offset
        lost = LostRange(tip, end_offset, end_offset + 3, GapReason.EXPIRED)
        metadata = self.tiered.metadata
        assert not metadata.add_gaps([lost], metadata.state().epoch).refused

    @property
    def state(self) -> ShardState:
        return self.tiered.metadata.refresh()

    def slices(self, number: int) -> tuple[LiveSlice, ...]:
        return tuple(self.state.partition(self.tips[number]).slices)


def surveyed(state: ShardState) -> SurveyedSlices:
    """A survey that has read everything, and found each partition in brief."""
    found = SurveyedSlices(state)
    partitions = list(found.read())
    assert [one.topic_id_partition for one in partitions] == sorted(state.partitions)
    for one in partitions:
        slices = tuple(state.partition(one.topic_id_partition).slices)
        assert comparable(one.slices) == comparable(SliceBriefs.of(slices))
        assert one.row is state.partitions[one.topic_id_partition]
    return found


def comparable(briefs: SliceBriefs) -> list[list[object]]:
    """All of it, whether its columns come from pages or from slices."""
    is_gap = [gap is not None for gap in briefs.gaps]
    return list(map(list, briefs._replace(gaps=is_gap)))


def whole(world: World, numbers: list[int]) -> list[SliceRange]:
    return [SliceRange(world.tips[number], number, 0, len(world.slices(number))) for number in numbers]


def read_again(
    survey: SurveyedSlices, world: World, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> int:
    """How many of these partitions' slices the survey reads again; what it finds are the slices."""
    count = 0
    original = ShardState.partition

    def counted(state: ShardState, tip: TopicIdPartition) -> object:
        nonlocal count
        count += 1
        return original(state, tip)

    ranges = whole(world, numbers)
    expected = [world.slices(number) for number in numbers]
    with monkeypatch.context() as patch:
        patch.setattr(ShardState, "partition", counted)
        found = list(survey.runs(ranges))
    assert [one.unpacked() for one in found] == expected
    return count


@pytest.mark.parametrize("table_slices", [1, 2 * OBJECTS, 1000])
def test_a_job_has_the_slices_that_the_survey_has_read(
    table_slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    monkeypatch.setattr(surveyed_slices, "TABLE_SLICES", table_slices)
    survey = surveyed(world.state)
    numbers = list(range(PARTITIONS))
    assert read_again(survey, world, numbers, monkeypatch) == 0
    parts = [one._replace(first=1, end=3) for one in whole(world, numbers)]
    assert [part.unpacked() for part in survey.runs(parts)] == [world.slices(one)[1:3] for one in numbers]


def test_slices_beyond_the_bound_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(surveyed_slices, "TABLE_SLICES", 1)
    monkeypatch.setattr(surveyed_slices, "_KEPT_SLICES", 2 * OBJECTS)
    survey = surveyed(world.state)
    assert read_again(survey, world, list(range(PARTITIONS)), monkeypatch) == PARTITIONS - 2


def test_a_job_gets_no_table_that_is_mostly_of_other_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    survey = surveyed(world.state)
    few, many = [1], [0, 2, 3, 5]
    assert read_again(survey, world, few, monkeypatch) == len(few)
    assert read_again(survey, world, many, monkeypatch) == 0
    all_bytes = len(pickle.dumps(list(survey.runs(whole(world, list(range(PARTITIONS)))))))
    assert len(pickle.dumps(list(survey.runs(whole(world, few))))) < all_bytes / 2


def test_slices_of_pages_and_those_beside_gaps_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.lose(world.tips[3])
    survey = surveyed(world.state)
    assert read_again(survey, world, [0, 1, 2, 4, 5], monkeypatch) == 5
    world.tiered.metadata.fold()
    world.upload(world.tips[:2])
    survey = surveyed(world.state)
    assert read_again(survey, world, [0, 1, 2, 4, 5], monkeypatch) == 5


def test_a_table_before_a_partition_in_pages_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.tiered.metadata.fold()
    topic = world.tiered.catalog.create("u", 2, {"cleanup.policy": "compact"})
    world.tips = sorted([*world.tips, *(TopicIdPartition(topic.topic_id, number) for number in range(2))])
    fresh = [number for number, tip in enumerate(world.tips) if tip.topic_id == topic.topic_id]
    world.upload([world.tips[number] for number in fresh])
    survey = surveyed(world.state)
    assert read_again(survey, world, list(range(len(world.tips))), monkeypatch) == PARTITIONS
    assert read_again(survey, world, fresh, monkeypatch) == 0
