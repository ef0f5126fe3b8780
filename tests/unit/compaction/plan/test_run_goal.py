"""A run compacts all that was due when it began, in as many plans as that takes, and follows no upload."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from random import Random
from types import MappingProxyType

import pytest

from stratalog.base.errors import StoreUnavailableError
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor
from stratalog.compaction.plan.run_goal import PlanAgain, RunGoal
from stratalog.log.log_config import LogConfig
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Operation
from tests.support.tiered.tiered_store import TieredStore

PARTITION_COUNT = 40
OBJECT_COUNT = 5
JOB_BYTES = 100_000
"""A tenth of the data."""


class World:
    """A compacted topic of many partitions, which share all objects, and of which some have more bytes than
    others."""

    def __init__(
        self, object_count: int = OBJECT_COUNT, config: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.clock = ManualClock()
        self.tiered = TieredStore(
            MemoryFileSystem(), MemoryObjectStore(self.clock), self.clock, SequentialIds(1)
        )
        topic = self.tiered.catalog.create("state", PARTITION_COUNT, {"cleanup.policy": "compact", **config})
        self.tips = [TopicIdPartition(topic.topic_id, number) for number in range(PARTITION_COUNT)]
        self._random = Random(1)
        for _ in range(object_count):
            self.upload()

    def upload(self) -> None:
        """An object with a slice of each partition."""
        slices: dict[TopicIdPartition, list[bytes]] = {}
        for tip in self.tips:
            count, now_ms = self._random.randrange(20, 60), self.clock.now_ms()
            records = [Record(0, now_ms, b"%d" % key, bytes(100)) for key in range(count)]
            base_offset = self.tiered.partition(tip).tiered_end_offset
            slices[tip] = [encode_batch(records, base_offset=base_offset, leader_epoch=1)]
        self.tiered.upload(slices)

    @property
    def compacted_count(self) -> int:
        """The partitions that are compacted to their ends."""
        rows = map(self.tiered.partition, self.tips)
        return sum(row.compacted_upto == row.tiered_end_offset for row in rows)


def small_jobs(settings: CompactionSettings) -> CompactionSettings:
    return dataclasses.replace(settings, max_job_bytes=JOB_BYTES)


def test_one_plan_takes_an_object_once_and_a_run_plans_again() -> None:
    world = World()
    compactor = world.tiered.compactor(change=small_jobs)
    compactor.run()
    first_count = world.compacted_count
    assert 0 < first_count < PARTITION_COUNT / 2
    reports = compactor.run(plan_again=PlanAgain())
    assert world.compacted_count == PARTITION_COUNT
    assert all(report.refused is None for report in reports)
    assert len(reports) > 3


@pytest.mark.parametrize("topics", [None, ["state"]], ids=["what is due", "a topic by name"])
def test_a_run_does_not_follow_uploads(topics: list[str] | None) -> None:
    world = World()
    ended: list[int] = [0]

    def go_on(*progress: object) -> None:
        [now, _] = progress
        count = getattr(now, "done_job_count")  # noqa: B009 - the type is of no interest
        if count > ended[0]:
            ended[0] = count
            world.upload()
        assert count < 100, "the run does not end"

    world.tiered.compactor(change=small_jobs).run(topics, plan_again=PlanAgain(), on_progress=go_on)
    assert ended[0] > 3
    ends = [world.tiered.partition(tip).compacted_upto for tip in world.tips]
    assert min(ends) >= OBJECT_COUNT * 20


def test_plans_do_not_take_all_the_time() -> None:
    """A plan takes a second here, and its jobs no time."""
    world = World()

    def slowly(_: Mapping[str, str]) -> LogConfig:
        world.clock.advance(1_000)
        return LogConfig()

    compactor = world.tiered.compactor(change=small_jobs, defaults=slowly)
    compactor.run(plan_again=PlanAgain(work_of_plan=3))
    assert world.compacted_count < PARTITION_COUNT / 2
    compactor.run(plan_again=PlanAgain())
    assert world.compacted_count == PARTITION_COUNT


def test_a_long_run_leaves_the_rest_to_the_next_one() -> None:
    world = World()

    def slowly(*_: object) -> None:
        world.clock.advance(1_000)

    compactor = world.tiered.compactor(change=small_jobs)
    bound = PlanAgain(within_s=5)
    compactor.run(plan_again=bound, on_progress=slowly)
    assert world.compacted_count < PARTITION_COUNT / 2
    for _ in range(20):
        compactor.run(plan_again=bound, on_progress=slowly)
    assert world.compacted_count == PARTITION_COUNT


def test_an_object_that_cannot_be_read_pins_no_other() -> None:
    """Not once it has failed, and not while the compactor lets it rest. It is tried once a run."""
    world = World()
    bad = world.tiered.catalog.create("bad", 1, {"cleanup.policy": "compact"})
    tip = TopicIdPartition(bad.topic_id, 0)
    former = {one.ref.name for one in world.tiered.metadata.state().objects.values()}
    for _ in range(2):
        records = [Record(0, 0, b"k", bytes(100))] * 2
        base_offset = world.tiered.partition(tip).tiered_end_offset
        world.tiered.upload({tip: [encode_batch(records, base_offset=base_offset, leader_epoch=1)]})
    keys = {one.ref.name for one in world.tiered.metadata.state().objects.values()} - former

    failing: set[str] = set()

    def fail(operation: Operation) -> None:
        if operation.verb == "GET" and any(key in operation.key for key in failing):
            raise StoreUnavailableError("injected: it is never read", key=operation.key)

    store = FaultyObjectStore(world.tiered.store, Random(0), before=fail)
    compactor = world.tiered.compactor(store, change=small_jobs)
    failing |= keys
    assert [report.failed_attempts for report in compactor.run(plan_again=PlanAgain())] == [1]
    for attempts in (1, 2, 2):
        reports = compactor.run(plan_again=PlanAgain())
        assert world.compacted_count == PARTITION_COUNT
        assert len(reports) > 4
        assert [report.failed_attempts for report in reports if report.refused is not None] == [attempts]
        for _ in range(OBJECT_COUNT):
            world.upload()


def test_a_race_that_is_lost_does_not_end_a_run() -> None:
    world = World()
    rival = world.tiered.compactor(change=small_jobs)
    rivals: list[Compactor] = []

    def lose(operation: Operation) -> None:
        if operation.verb == "GET" and "/data/" in operation.key and rivals:
            rivals.pop().run()

    store = FaultyObjectStore(world.tiered.store, Random(0), before=lose)
    compactor = world.tiered.compactor(store, change=small_jobs)
    rivals.append(rival)
    reports = compactor.run(plan_again=PlanAgain())
    assert any(report.refused is not None or report.refused_partitions for report in reports)
    assert world.compacted_count == PARTITION_COUNT


def test_records_that_are_too_young_are_no_reason_to_plan_without_end() -> None:
    world = World(0, {"min.compaction.lag.ms": "60000"})
    for _ in range(OBJECT_COUNT):
        world.upload()
    world.clock.advance(61_000)
    world.upload()
    plans = [0]

    def counted(_: Mapping[str, str]) -> LogConfig:
        plans[0] += 1
        assert plans[0] < 100
        return LogConfig()

    world.tiered.compactor(change=small_jobs, defaults=counted).run(plan_again=PlanAgain())
    assert world.compacted_count == 0
    assert all(world.tiered.partition(tip).compacted_upto >= OBJECT_COUNT * 20 for tip in world.tips)


def test_a_topic_that_is_deleted_meanwhile_is_no_goal() -> None:
    world = World()
    outlooks = world.tiered.compactor(change=small_jobs).plan().outlooks
    rows = dict(world.tiered.metadata.refresh().partitions)
    gone, *others = world.tips
    del rows[gone]
    goal = RunGoal(outlooks, rows, None)
    assert not goal.comes_closer(rows)
    for tip in others[1:]:
        del rows[tip]
        assert goal.comes_closer(rows)
    del rows[others[0]]
    assert not goal.comes_closer(rows), "nothing is left to do"


def test_the_partitions_of_a_job_lie_side_by_side() -> None:
    """It reads all that lies between them, too."""
    world = World()
    numbers = {tip: number for number, tip in enumerate(world.tips)}
    for job in world.tiered.compactor(change=small_jobs).plan().jobs:
        taken = sorted(numbers[tip] for tip in job.partitions)
        assert len(taken) > 2
        assert taken[-1] - taken[0] < 1.5 * len(taken)
