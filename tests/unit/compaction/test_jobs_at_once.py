"""A compactor that begins several jobs of a plan at the same time commits them in order, and ends those that
it does not need any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_progress import Transfer
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor, CompactorConfig
from stratalog.compaction.job_execution import JobExecution, JobOrder, JobResult
from stratalog.compaction.plan.job_time import MAX_JOB_MS
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_store import TieredStore

TOPIC_COUNT = 4


class World:
    """Some compacted topics, each with objects of its own, and so each with a job."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.disk = MemoryFileSystem()
        self.store = MemoryObjectStore(self.clock)
        self.tiered = TieredStore(self.disk, self.store, self.clock, SequentialIds(1))
        self.tips: list[TopicIdPartition] = []
        for number in range(TOPIC_COUNT):
            topic = self.tiered.catalog.create(f"t{number}", 1, {"cleanup.policy": "compact"})
            self.tips.append(TopicIdPartition(topic.topic_id, 0))
            for offset in range(2):
                batch = encode_batch([Record(0, 0, b"key", b"value")], base_offset=offset, leader_epoch=1)
                self.tiered.upload({self.tips[-1]: [batch]})
        self.events: list[str] = []
        self.stops: list[StopSignal] = []
        self.on_execute: Callable[[int], None] = lambda _number: None

    def compactor(self, jobs_at_once: int) -> Compactor:
        settings = CompactionSettings(spool_directory="/scratch", max_inputs_per_job=2)
        config = CompactorConfig(execution_elsewhere=self.begin, jobs_at_once=jobs_at_once)
        shard = self.tiered.shard(self.store)
        return Compactor(self.disk, self.clock, SequentialIds(3), shard, settings, config)

    def begin(self, order: JobOrder, stop: StopSignal, note: Callable[[Transfer], None]) -> JobExecution:
        world, number = self, len(self.stops)
        self.events.append(f"begin {number}")
        self.stops.append(stop)

        class NotedExecution(JobExecution):
            def execute(self, on_run: Callable[[int, int], None] = lambda _in, _out: None) -> JobResult:
                world.events.append(f"wait {number}")
                world.on_execute(number)
                note(Transfer())
                return super().execute(on_run)

        return NotedExecution(self.disk, self.clock, SequentialIds(9 + number), self.store, order)

    def slice_counts(self) -> list[int]:
        return [len(self.tiered.partition(tip).slices) for tip in self.tips]


def test_jobs_begin_ahead_and_are_committed_in_order() -> None:
    world = World()
    reports = world.compactor(3).run()
    assert [report.refused for report in reports] == [None] * TOPIC_COUNT
    assert world.slice_counts() == [1] * TOPIC_COUNT
    assert world.events == [
        "begin 0", "begin 1", "begin 2", "wait 0", "begin 3", "wait 1", "wait 2", "wait 3"
    ]  # fmt: skip
    assert not any(stop.is_set for stop in world.stops)


def test_one_at_a_time_is_the_default() -> None:
    world = World()
    world.compactor(CompactorConfig().jobs_at_once).run()
    assert world.events == [
        event for number in range(TOPIC_COUNT) for event in (f"begin {number}", f"wait {number}")
    ]


def test_jobs_that_are_not_waited_for_any_more_end() -> None:
    """Two failures in a row end the run."""
    world = World()

    def fail(_number: int) -> None:
        raise LogStoreError("the executors are gone; start others")

    world.on_execute = fail
    reports = world.compactor(3).run()
    assert [report.failed_attempts for report in reports] == [1, 1]
    assert [stop.is_set for stop in world.stops] == [False, False, True, True]
    assert world.slice_counts() == [2] * TOPIC_COUNT


@pytest.mark.parametrize("number", [0, 2])
def test_the_time_of_a_job_counts_from_its_own_begin(number: int) -> None:
    """Horizons of tombstones are stamped by the time at which the order was made."""
    world = World()

    def wait(at: int) -> None:
        if at == number:
            world.clock.advance(MAX_JOB_MS + 1)

    world.on_execute = wait
    reports = world.compactor(3).run([f"t{one}" for one in range(TOPIC_COUNT)])
    late = [index for index, report in enumerate(reports[:TOPIC_COUNT]) if report.refused is not None]
    # The one that waits for the first job began before it, and so did the two behind.
    assert late[: 3 - number] == list(range(number, 3))
    assert "too long" in str(reports[number].refused)
