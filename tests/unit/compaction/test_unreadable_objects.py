"""One object that cannot be read keeps no partition outside of it from being compacted."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from stratalog.base.errors import (
    LogStoreError,
    ObjectArchivedError,
    ObjectNotFoundError,
    StoreCorruptError,
    StoreUnavailableError,
)
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compactor import Compactor
from stratalog.compaction.job_execution import JobResult, blamed_for
from stratalog.compaction.plan.compaction_job import CompactionJob
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.s3_errors import error_of_answer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Operation
from tests.support.tiered.tiered_store import TieredStore

MINUTE_MS = 60_000
ANSWERS: dict[str, Callable[[str], LogStoreError]] = {
    "archived": lambda key: ObjectArchivedError("it is in an archive; restore it", key=key),
    "lost": lambda key: ObjectNotFoundError("no object has this key; check it", key=key),
    "denied": lambda key: error_of_answer(403, "KMS.DisabledException", key=key, store="s3://bucket"),
    "unavailable": lambda key: StoreUnavailableError("the store fails; try again", key=key),
}


class World:
    """A compacted topic in a store that fails all reads of some objects. Used by one thread."""

    def __init__(self, partition_count: int) -> None:
        self.clock = ManualClock()
        self.store = MemoryObjectStore(self.clock)
        self.tiered = TieredStore(MemoryFileSystem(), self.store, self.clock, SequentialIds(1))
        topic = self.tiered.catalog.create("state", partition_count, {"cleanup.policy": "compact"})
        self.tips = [TopicIdPartition(topic.topic_id, number) for number in range(partition_count)]
        self.answers: dict[str, Callable[[str], LogStoreError]] = {}
        self.get_keys: list[str] = []
        self.spared_gets = 0
        """So many GETs of a broken object are still answered."""

    def upload(self, tips: list[TopicIdPartition], value: bytes, count: int = 1) -> str:
        """Upload the same keys of these partitions. Returns the object's name."""
        records = [Record(0, self.clock.now_ms(), b"key-%d" % number, value) for number in range(count)]
        ends = {tip: self.tiered.partition(tip).tiered_end_offset for tip in tips}
        return self.tiered.upload(
            {tip: [encode_batch(records, base_offset=end, leader_epoch=1)] for tip, end in ends.items()}
        )

    def compactor(self) -> Compactor:
        """One that has read the metadata."""

        def fail(operation: Operation) -> None:
            if operation.verb == "GET":
                self.get_keys.append(operation.key)
                if operation.key in self.answers and self.get_keys.count(operation.key) > self.spared_gets:
                    raise self.answers[operation.key](operation.key)

        compactor = self.tiered.compactor(FaultyObjectStore(self.store, Random(0), before=fail))
        compactor.plan()
        return compactor

    def break_object(self, name: str, fault: str) -> None:
        key = self.tiered.layout.data_key(name)
        if fault in ANSWERS:
            self.answers[key] = ANSWERS[fault]
            return
        ref = self.tiered.metadata.refresh().objects[name].ref
        damaged = bytearray(self.store.get(key).data)
        damaged[ref.directory_position + 5] ^= 1
        self.store.put(key, bytes(damaged))

    def is_compacted(self, tip: TopicIdPartition) -> bool:
        partition = self.tiered.partition(tip)
        return partition.compacted_upto == partition.tiered_end_offset


@pytest.mark.parametrize("fault", ["archived", "lost", "directory"])
def test_the_partitions_in_an_object_that_cannot_be_read_are_excluded_at_once(fault: str) -> None:
    """One at a time was excluded, so that twenty took turns; of a lost object all of the job were."""
    world = World(8)
    *sick, healthy = world.tips
    bad = world.upload(sick, b"1")
    world.upload(world.tips, b"2")
    world.upload(world.tips, b"3")
    compactor = world.compactor()
    world.break_object(bad, fault)
    compactor.run()
    assert compactor.excluded().keys() == set(sick)
    assert world.is_compacted(healthy)


def test_an_object_that_is_archived_between_two_reads_is_archived_for_all_of_its_partitions() -> None:
    """The slice that was to be read next is no more to blame than the others."""
    world = World(4)
    *sick, healthy = world.tips
    bad = world.upload(sick, b"1", 3)
    world.upload(world.tips, b"2")
    compactor = world.compactor()
    world.get_keys.clear()
    world.spared_gets = 1
    world.break_object(bad, "archived")
    compactor.run()
    assert compactor.excluded().keys() == set(sick)
    assert world.is_compacted(healthy)


class AtWork:
    """An execution that was rewriting its first partition. Immutable."""

    def __init__(self, job: CompactionJob) -> None:
        self.job = job
        self.current: TopicIdPartition | None = job.runs[0].topic_id_partition

    def execute(self, on_run: Callable[[int, int], None]) -> JobResult:
        raise NotImplementedError

    def named(self, error: LogStoreError) -> LogStoreError:
        return error


def test_an_input_that_cannot_be_read_at_all_blames_each_partition_in_it() -> None:
    """The error names the slice that was to be read next, too."""
    world = World(4)
    *sick, healthy = world.tips
    bad = world.upload(sick, b"1")
    world.upload(world.tips, b"2")
    [job] = world.compactor().plan(["state"]).jobs
    execution = AtWork(job)
    fields = {"key": world.tiered.layout.data_key(bad), "topic": "state", "partition": sick[1].partition}
    for error in (ObjectArchivedError("archived", **fields), ObjectNotFoundError("gone", **fields)):
        assert blamed_for(execution, error) == set(sick)
    assert blamed_for(execution, StoreCorruptError("damaged", **fields)) == {sick[1]}
    assert blamed_for(execution, StoreCorruptError("damaged", key=fields["key"])) == set(sick)
    assert blamed_for(execution, StoreCorruptError("damaged")) == {execution.current}
    execution.current = None
    assert blamed_for(execution, StoreCorruptError("damaged")) == {*sick, healthy}


@pytest.mark.parametrize("fault", ["denied", "unavailable"])
def test_a_partition_with_an_object_that_fails_takes_its_others_last(fault: str) -> None:
    """Its job was planned first each minute, and took the object that it shares with a healthy one."""
    world = World(2)
    sick, healthy = world.tips
    compactor = world.compactor()
    world.upload(world.tips, b"1", 10)
    compactor.run()
    bad = world.upload([sick], b"2", 30)
    compactor.plan()
    world.break_object(bad, fault)
    world.upload([healthy], b"3", 20)
    for _ in range(2):
        compactor.run()
        world.clock.advance(MINUTE_MS)
    assert world.is_compacted(healthy)
    assert not world.is_compacted(sick)


def test_a_job_that_fails_twice_rests_before_the_next_try() -> None:
    """It was once tried each minute."""
    world = World(1)
    bad = world.upload(world.tips, b"1")
    compactor = world.compactor()
    world.break_object(bad, "unavailable")
    attempts: list[int] = []
    failed_attempts = 0
    for _ in range(12):
        world.get_keys.clear()
        (report,) = compactor.run()
        assert report.refused is not None
        failed_attempts = report.failed_attempts
        attempts.append(int(world.tiered.layout.data_key(bad) in world.get_keys))
        world.clock.advance(MINUTE_MS)
    assert attempts == [1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]
    assert failed_attempts == 4, "it is seen while it rests, too"
    world.answers.clear()
    (report,) = compactor.run(["state"])
    assert report.refused is None, "a topic that is named is tried at once"
