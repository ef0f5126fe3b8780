"""Processes that say nothing, or that have ended while they were idle."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor, CompactorConfig
from stratalog.compaction.execution_end import Done, Failed
from stratalog.compaction.job_execution import JobExecution, JobOrder
from stratalog.compaction.plan.job_time import MAX_JOB_S, REST_OF_LATE_MS
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.job_processes import job_processes
from stratalog.server.job_processes.job_processes import IDLE_MS, JobProcesses
from stratalog.server.job_processes.messages import Hello
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_store import TieredStore

HOUR_S = 3600


class World:
    """A compacted partition, and a compactor whose jobs go to made-up processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.disk = MemoryFileSystem()
        self.store = MemoryObjectStore(self.clock)
        self.tiered = TieredStore(self.disk, self.store, self.clock, SequentialIds(1))
        topic = self.tiered.catalog.create("state", 1, {"cleanup.policy": "compact"})
        self.tip = TopicIdPartition(topic.topic_id, 0)
        self.begun: list[MadeUpProcess] = []

        def made_up(_hello: Hello, _software: str) -> MadeUpProcess:
            return MadeUpProcess(self)

        monkeypatch.setattr(job_processes, "JobProcess", made_up)
        self.scheduler = ManualScheduler(self.clock)
        self.processes = JobProcesses(
            Hello("memory://", 30), self.disk, self.clock, self.scheduler, lambda _counts: None
        )
        self.compactor = Compactor(
            self.disk,
            self.clock,
            SequentialIds(3),
            self.tiered.shard(self.store),
            CompactionSettings(spool_directory="/scratch"),
            CompactorConfig(execution_elsewhere=self.processes.execution),
        )

    def compact(self) -> CompactionReport:
        """Compact two more records, and return the report of the first job."""
        for _ in range(2):
            offset = self.tiered.partition(self.tip).tiered_end_offset
            batch = encode_batch([Record(0, 0, b"key", b"value")], base_offset=offset, leader_epoch=1)
            self.tiered.upload({self.tip: [batch]})
        report, *_ = self.compactor.run(["state"])
        return report


class MadeUpProcess:
    """Executes an order when its answer is asked for, or says nothing."""

    has_ended = False
    is_silent = False

    def __init__(self, world: World) -> None:
        self._world = world
        world.begun.append(self)
        self.pid = len(world.begun)
        self.silent_s = 0
        self.was_killed = False
        self.end_count = 0
        self.order_count = 0
        self.before_order: list[Callable[[], object]] = []
        """Once each, when it was taken for a job and does not have it yet."""
        self.meanwhile: list[Callable[[], object]] = []
        """Once each, while a job of it is at work."""

    def give(self, order: JobOrder) -> None:
        while self.before_order:
            self.before_order.pop()()
        assert not self.has_ended, "a job fails that is given to it"
        self.order_count += 1
        self.order = order

    def answer(self, _timeout_s: float) -> Done | None:
        while self.meanwhile:
            self.meanwhile.pop()()
        if self.is_silent:
            self.silent_s += HOUR_S
            assert self.silent_s <= 2 * MAX_JOB_S, "it is still waited for"
            self._world.clock.advance(1000 * HOUR_S)
            return None
        world, ids = self._world, SequentialIds(9 + self.pid)
        execution = JobExecution(world.disk, world.clock, ids, world.store, self.order)
        return Done(execution.execute())

    def end(self, patience_s: float = 1) -> int:
        self.was_killed = patience_s == 0
        self.end_count += 1
        self.has_ended = True
        return 0


def test_a_process_that_says_nothing_is_killed_once_its_job_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that was stopped (SIGSTOP), or whose disk hangs, kept its shard from being compacted for ever."""
    monkeypatch.setattr(MadeUpProcess, "is_silent", True)
    world = World(monkeypatch)
    assert "too long" in (world.compact().refused or "")
    assert world.begun[0].silent_s == MAX_JOB_S + HOUR_S
    assert world.begun[0].was_killed
    assert world.processes.pids() == frozenset()
    monkeypatch.setattr(MadeUpProcess, "is_silent", False)
    world.clock.advance(REST_OF_LATE_MS)
    assert world.compact().refused is None, "another process takes the next job"


@pytest.mark.parametrize("has_ended", [False, True])
def test_an_idle_process_that_has_ended_fails_no_job(
    monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    """The kernel kills one for want of memory, also while it is idle."""
    world = World(monkeypatch)
    assert world.compact().refused is None
    [idle] = world.begun
    assert world.processes.pids() == {idle.pid}
    idle.has_ended = has_ended
    assert world.compact().refused is None
    assert len(world.begun) == 1 + has_ended
    assert world.processes.pids() == {world.begun[-1].pid}


def ended(world: World) -> list[bool]:
    return [one.has_ended for one in world.begun]


def test_a_process_ends_once_it_has_been_idle_for_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.compact()
    world.clock.advance(IDLE_MS - 1)
    world.compact()
    world.clock.advance(IDLE_MS - 1)
    assert ended(world) == [False], "it has had a job since"
    world.clock.advance(1)
    assert ended(world) == [True]
    assert [(one.order_count, one.was_killed) for one in world.begun] == [(2, False)]
    assert world.processes.pids() == frozenset()
    assert world.scheduler.pending() == []
    assert world.compact().refused is None
    assert len(world.begun) == 2, "the next job starts another"


def test_a_process_that_is_at_work_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time since its last job passes during the next one."""
    world = World(monkeypatch)
    world.compact()
    [process] = world.begun
    process.meanwhile = [lambda: world.clock.advance(IDLE_MS)]
    assert world.compact().refused is None
    assert ended(world) == [False]
    world.clock.advance(IDLE_MS)
    assert ended(world) == [True]


def test_a_process_that_is_taken_for_a_job_does_not_end_before_it_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.compact()
    [process] = world.begun
    process.before_order = [lambda: world.clock.advance(IDLE_MS)]
    assert world.compact().refused is None
    assert ended(world) == [False]


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_process_that_has_ended_is_ended_once(monkeypatch: pytest.MonkeyPatch, is_closed: bool) -> None:
    world = World(monkeypatch)
    world.compact()
    [process] = world.begun
    if is_closed:
        world.processes.close()
    else:
        process.has_ended = True
        world.compact()
    assert process.end_count == 1
    world.clock.advance(IDLE_MS)
    assert [one.end_count for one in world.begun] == [1] * len(world.begun)


def test_shards_that_are_at_work_at_once_have_a_process_each(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.compact()
    [first] = world.begun
    others: list[Done | Failed] = []

    def work_for_another_shard() -> None:
        others.append(world.processes.execute(first.order, StopSignal(), lambda _: None))

    first.meanwhile = [work_for_another_shard]
    assert world.compact().refused is None
    assert [type(one) for one in others] == [Done]
    assert [one.order_count for one in world.begun] == [2, 1]
    assert world.processes.pids() == {1, 2}
    world.compact()
    assert sum(one.order_count for one in world.begun) == 4, "an idle one takes the next job of any shard"
    world.clock.advance(IDLE_MS)
    assert ended(world) == [True, True]
    assert world.processes.pids() == frozenset()
