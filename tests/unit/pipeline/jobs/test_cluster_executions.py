"""Executions on a cluster begin at once, end when they are given up, and tell where they have failed."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

import pytest

from stratalog.base.errors import LogStoreError, OverloadedError, StoppingError, StoreCorruptError
from stratalog.base.stop_signal import StopSignal
from stratalog.compaction.compaction_progress import Transfer
from stratalog.compaction.job_execution import JobClock, JobOrder
from stratalog.pipeline.jobs import cluster_executions, order_execution
from stratalog.pipeline.jobs.cluster import Cluster
from stratalog.pipeline.jobs.cluster_executions import ClusterExecutions
from stratalog.pipeline.jobs.order_task import ExecutedOrder
from stratalog.pipeline.jobs.task_place import ExecutorPlace, OpenPlace
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.inline_cluster import InlineCluster, InlinePlace
from tests.support.tiered.compaction_history import CompactionHistory

Item = TypeVar("Item")
Result = TypeVar("Result")
SECRET = "hidden-0123456789"


class World:
    """A shard with something to compact, and a cluster."""

    def __init__(self) -> None:
        self.history = history = CompactionHistory(3)
        for _ in range(6):
            history.upload()
        self.compactor = history.compactor(max_inputs_per_job=64, max_job_bytes=1 << 30)
        self.cluster = CancellableCluster()
        self.place = InlinePlace(MemoryFileSystem(), history.clock, SequentialIds(5), history.store)

    def order(self) -> JobOrder:
        [job, *_] = self.compactor.plan(list(self.history.tiered.catalog.topics())).jobs
        shard = self.history.tiered.shard(self.history.store)
        clock = JobClock(self.history.clock.now_ms(), may_drop_tombstones=True)
        return shard.order(job, self.compactor.settings, clock)

    def executions(self, jobs_at_once: int = 1) -> ClusterExecutions:
        return ClusterExecutions(self.cluster, self.place, jobs_at_once=jobs_at_once)


class CancellableCluster(InlineCluster):
    """A cluster that may hold its tasks back until they are cancelled."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.is_held = False
        self.cancelled: list[str] = []
        self.has_begun = threading.Event()
        self._released = threading.Event()

    def each(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        self.has_begun.set()
        if self.is_held:
            assert self._released.wait(60)
            raise LogStoreError("Spark has given up; see its log")
        return super().each(function, items)

    def cancel(self, tag: str) -> None:
        self.cancelled.append(tag)
        self._released.set()


def test_the_result_and_its_requests_arrive() -> None:
    world = World()
    transfers: list[Transfer] = []
    runs: list[tuple[int, int]] = []
    order = world.order()
    with world.executions() as executions:
        execution = executions.execution(order, StopSignal(), transfers.append)
        result = execution.execute(lambda read, kept: runs.append((read, kept)))
    assert result.stored
    assert len(runs) == len(order.job.runs)
    assert sum(kept for _, kept in runs) == result.records_out
    assert 0 < sum(one.get_count for one in transfers) <= 2 * len(order.job.inputs)
    assert world.cluster.cancelled == []


def test_the_signal_ends_a_job_that_is_waited_for() -> None:
    world = World()
    world.cluster.is_held = True
    stop = StopSignal()
    with world.executions() as executions:
        execution = executions.execution(world.order(), stop, lambda _: None)
        assert world.cluster.has_begun.wait(60)
        stop.set()
        with pytest.raises(StoppingError):
            execution.execute(lambda _read, _kept: None)
        assert len(world.cluster.cancelled) == 1


def test_a_job_that_takes_too_long_is_cancelled() -> None:
    world = World()
    world.cluster.is_held = True

    def too_long(_: Transfer) -> None:
        raise OverloadedError("a compaction job takes too long")

    with world.executions() as executions:
        execution = executions.execution(world.order(), StopSignal(), too_long)
        assert world.cluster.has_begun.wait(60)
        with pytest.raises(OverloadedError):
            execution.execute(lambda _read, _kept: None)
        assert len(world.cluster.cancelled) == 1


def test_a_job_that_was_given_up_ends_when_the_next_one_begins() -> None:
    world = World()
    world.cluster.is_held = True
    stop = StopSignal()
    with world.executions(jobs_at_once=2) as executions:
        executions.execution(world.order(), stop, lambda _: None)
        assert world.cluster.has_begun.wait(60)
        stop.set()
        world.cluster.is_held = False
        execution = executions.execution(world.order(), StopSignal(), lambda _: None)
        assert len(world.cluster.cancelled) == 1
        assert execution.execute(lambda _read, _kept: None).stored


@pytest.mark.parametrize("max_task_bytes", [1 << 30, 1], ids=["whole", "divided"])
def test_damage_names_topic_slice_and_object(max_task_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    order = world.order()
    run = next(run for run in order.job.runs if run.topic.is_compacted)
    live = next(live for live in run.slices if live.entry.key_stream is None and live.entry.data_bytes)
    key = world.history.tiered.layout.data_key(live.object_name)
    data = bytearray(world.history.store.get(key).data)
    data[live.entry.data_position + live.entry.data_bytes - 1] ^= 1
    world.history.store.put(key, bytes(data))
    execute = order_execution.execute_order

    def divide(cluster: Cluster, place: OpenPlace, given: JobOrder, _bytes: int) -> ExecutedOrder:
        return execute(cluster, place, given, max_task_bytes)

    monkeypatch.setattr(cluster_executions, "execute_order", divide)
    with world.executions() as executions:
        execution = executions.execution(order, StopSignal(), lambda _: None)
        with pytest.raises(LogStoreError) as caught:
            execution.execute(lambda _read, _kept: None)
    named = execution.named(caught.value)
    assert isinstance(named, StoreCorruptError)
    assert execution.current == run.topic_id_partition
    assert named.fields["topic"] == run.topic.name
    assert named.fields["object"] == live.object_name
    assert named.fields["slice_base_offset"] == live.entry.base_offset


def test_no_credentials_are_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors find their own."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "also-" + SECRET)
    sent = pickle.dumps((ExecutorPlace("s3://bucket/prefix"), World().order()))
    assert SECRET.encode() not in sent
