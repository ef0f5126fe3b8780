"""A server that dies, or whose disk or store fails, at every operation of an addition of partitions.

The catalog gets the new number before any log is created. So a topic has the former partitions or all of
them, each with a log that takes appends, and asking again completes what was cut off.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import NamedTuple

import pytest

from stratalog.base.errors import LogStoreError, StoreUnavailableError
from stratalog.base.stop_signal import StopSignal
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.engine.engine_builder import StorageEngineBuilder
from stratalog.server.engine.storage_engine import EngineSeams, StorageEngine
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.opening.partition_opener import DirectoryThreads, PartitionHost
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import FAULTS_OF_VERB, Fault, FaultPlan, FaultsAt, Operation, no_faults
from tests.support.logs.crash_sweep import CrashSweep, Death, Failure
from tests.support.logs.log_ledger import read_local
from tests.support.plain_calls import PlainCalls

TOPIC = "orders"
LOG_DIRS = ("/a", "/b")
FORMER_COUNT, WANTED_COUNT = 2, 5
ALL_FORMER = [[b"old"]] * FORMER_COUNT


class Threads(NamedTuple):
    """The threads of all processes of a test."""

    executor: ThreadPoolExecutor
    loop: asyncio.AbstractEventLoop
    reads: ThreadPoolExecutor
    """Beside the others, as in a server: opening a log waits for its disk."""

    def of(self, _log_dir: str) -> ThreadPoolExecutor:
        """Those of a log directory for appends and fsyncs."""
        return self.executor

    def opening(self, name: str, _count: int) -> ThreadPoolExecutor:
        """Those for this name, which is the path of a log directory if its logs are opened."""
        return self.executor if name in LOG_DIRS else self.reads


class Process:
    """One server's engine, without its network. Used by one thread."""

    def __init__(self, disk: FaultyFileSystem, store: ObjectStore, threads: Threads, seed: int) -> None:
        clock = ManualClock()
        seams = EngineSeams(
            filesystem=disk,
            store=store,
            clock=clock,
            scheduler=ManualScheduler(clock),
            long_scheduler=ManualScheduler(clock),
            ids=SequentialIds(seed),
            stop=StopSignal(),
        )
        settings = ServerSettings(data_dir=LOG_DIRS[0], log_dirs=LOG_DIRS[1:], max_silence_ms=0)
        host = PartitionHost(
            clock,
            threads.loop,
            PlainCalls(threads.loop),
            DirectoryThreads(threads.of, threads.of, threads.of),
        )
        self.engine: StorageEngine = StorageEngineBuilder(seams, settings, "here:1").open(
            host, threads.opening, lambda: None
        )

    @property
    def partitions(self) -> tuple[HostedPartition, ...]:
        topic = self.engine.topics.registry.topic(TOPIC)
        assert topic.unserved_partitions == ()
        return topic.partitions

    def add(self) -> None:
        self.engine.topics.manager.add_partitions(TOPIC, "", WANTED_COUNT)

    def delete(self) -> None:
        self.engine.topics.manager.delete(TOPIC)

    def follow(self) -> None:
        self.engine.topics.manager.follow_catalog()

    def append_to_all(self, value: bytes) -> None:
        for partition in self.partitions:
            batch = encode_batch([Record(0, 0, None, value)])
            partition.log.appender.append_as_leader(batch, partition.shard.leader_epoch())
            partition.log.flusher.flush()

    def values(self) -> list[list[bytes | None]]:
        return [[record.value for record in read_local(one.log)] for one in self.partitions]

    def check_complete(self) -> None:
        """The topic takes appends in all wanted partitions, and no directory is left over."""
        before = self.values()
        assert len(before) == WANTED_COUNT
        self.append_to_all(b"new")
        assert self.values() == [[*values, b"new"] for values in before]
        self.engine.local.logs.check()
        assert not any(self.engine.local.logs.found.set_aside().values())


class Addition:
    """A server with a topic whose records are durable, before partitions are added."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self.disk = FaultyFileSystem()
        self.memory = MemoryObjectStore(ManualClock())
        self.plan: FaultPlan = no_faults
        self.store = FaultyObjectStore(self.memory, Random(1), self._fault)
        self.process = Process(self.disk, self.store, threads, seed=1)
        self.process.engine.topics.manager.create(TOPIC, FORMER_COUNT, {})
        self.process.append_to_all(b"old")

    def add(self) -> None:
        self.process.add()

    def _fault(self, operation: Operation) -> Fault:
        return self.plan(operation)

    def restart_on(self, disk: FaultyFileSystem) -> Process:
        """The next process. It gets a copy of the store, because the next one of another disk is no
        successor of it."""
        store = MemoryObjectStore(ManualClock())
        for found in self.memory.list(""):
            store.put(found.key, self.memory.get(found.key).data)
        return Process(disk, store, self.threads, seed=2)


@pytest.fixture
def threads() -> Iterator[Threads]:
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as reads:
        yield Threads(executor, loop, reads)
    loop.close()


def test_a_death_leaves_the_former_partitions_or_all_of_them(threads: Threads) -> None:
    def verify(death: Death[Addition]) -> None:
        is_done = death.operation > len(sweep.trace)
        for disk in death.disks():
            found = death.subject.restart_on(disk)
            values = found.values()
            assert values[:FORMER_COUNT] == ALL_FORMER
            assert len(values) == WANTED_COUNT or (len(values) == FORMER_COUNT and not is_done)
            found.add()
            found.check_complete()

    sweep = CrashSweep(lambda: Addition(threads), Addition.add, count=25)
    sweep.whole.process.check_complete()
    sweep.at_deaths(verify)


def test_an_addition_that_the_disk_refuses_is_completed_by_a_later_look(threads: Threads) -> None:
    def verify(failure: Failure[Addition]) -> None:
        process = failure.subject.process
        with suppress(LogStoreError):
            process.follow()
        if any(partition.log.availability.refusal() for partition in process.partitions):
            # The refusal came in the midst of a sync: the log needs a start.
            process = failure.subject.restart_on(failure.subject.disk.killed())
        assert process.values()[:FORMER_COUNT] == ALL_FORMER
        process.add()
        process.check_complete()

    sweep = CrashSweep(lambda: Addition(threads), Addition.add, count=25)
    sweep.at_failures(verify, errors=(errno.ENOSPC, errno.EPERM))


def test_a_deletion_behind_an_addition_that_the_disk_refuses_leaves_no_log(threads: Threads) -> None:
    """The logs that were open by then belong to no published partition."""
    left_counts: set[int] = set()

    def verify(failure: Failure[Addition]) -> None:
        process = failure.subject.process
        logs = process.engine.local.logs
        if any(log.availability.refusal() for log in logs.logs()):
            # The refusal came in the midst of a sync: the next start removes the log.
            return
        left_counts.add(len(logs.logs()))
        process.delete()
        assert logs.logs() == ()
        assert logs.found.with_topics() == ()
        logs.check()

    sweep = CrashSweep(lambda: Addition(threads), Addition.add, count=25)
    sweep.at_failures(verify, errors=(errno.ENOSPC, errno.EPERM))
    assert max(left_counts) > FORMER_COUNT, "a failed addition left an open log"


def test_a_failure_of_a_disk_leaves_a_start_that_completes_the_addition(threads: Threads) -> None:
    def verify(failure: Failure[Addition]) -> None:
        found = failure.subject.restart_on(failure.subject.disk.killed())
        assert found.values()[:FORMER_COUNT] == ALL_FORMER
        found.add()
        found.check_complete()

    sweep = CrashSweep(lambda: Addition(threads), Addition.add, count=15)
    sweep.at_failures(verify, errors=(errno.EIO,))


def test_every_fault_of_the_store_leaves_the_former_partitions_or_all_of_them(
    threads: Threads,
) -> None:
    whole = Addition(threads)
    first = whole.store.trace.operation_count
    whole.add()
    entries = whole.store.trace.entries[first:]
    assert "PUT" in {entry.operation.verb for entry in entries}
    for entry in entries:
        for fault in FAULTS_OF_VERB[entry.operation.verb]:
            addition = Addition(threads)
            addition.plan = FaultsAt({entry.operation.number: fault})
            process, is_acknowledged = addition.process, False
            try:
                addition.add()
                is_acknowledged = True
            except StoreUnavailableError:
                addition.store.release_all()
                process.follow()
            except ActorStopped:
                process = addition.restart_on(addition.disk.killed())
            values = process.values()
            assert values[:FORMER_COUNT] == ALL_FORMER, (str(entry), fault)
            assert len(values) in {FORMER_COUNT, WANTED_COUNT}
            assert len(values) == WANTED_COUNT or not is_acknowledged
            if fault in (Fault.LANDS_UNKNOWN, Fault.STOPS_AFTER) and entry.operation.verb == "PUT":
                assert len(values) == WANTED_COUNT, "the commit has landed"
            process.add()
            process.check_complete()
