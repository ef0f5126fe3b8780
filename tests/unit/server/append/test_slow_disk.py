"""A disk whose fsync hangs: the next groups are written beside it, and another log directory goes on."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from stratalog.base.types import Durability, TopicPartition
from stratalog.log.append_info import AppendInfo
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.server.append.commit_waiters import CommitWaiters
from stratalog.server.append.partition_writer import PartitionWriter, WriterChecks, WriterThreads
from stratalog.server.append.pending_append import AppendSession, PendingAppend
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.request_memory import RequestMemory
from stratalog.server.worker_pools import WorkerPools
from stratalog.testing.manual_clock import ManualClock
from tests.support.gate import Gate
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.logs.log_machine import DATA_DIR, DATA_DIRS, OTHER_DIR, TOPIC_ID, LogMachine
from tests.support.logs.plain_batches import batch
from tests.support.plain_calls import PlainCalls
from tests.support.service.held_writer import SOME_LOG

OS, DISK = Durability.OS, Durability.DISK
PATIENCE_S = 30.0


class Written(NamedTuple):
    """A partition in a log directory. Belongs to the test's loop."""

    log: UnifiedLog
    writer: PartitionWriter
    memory: RequestMemory

    def append(
        self, durability: Durability, session: AppendSession | None = None
    ) -> asyncio.Future[AppendInfo]:
        future: asyncio.Future[AppendInfo] = asyncio.get_running_loop().create_future()
        lease = self.memory.lease(100)
        self.writer.submit(
            PendingAppend(
                batches=batch(),
                durability=durability,
                future=future,
                memory=lease,
                identity=SOME_LOG,
                session=session,
            )
        )
        return future


class SlowDisk:
    """Two log directories of a process, of which the first has a gate before its fsyncs."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.sync_count = 0
        """Fsyncs of segments in the first directory that have begun."""
        self.syncing_threads: set[threading.Thread] = set()
        """The threads of fsyncs."""
        # One thread for the appends of a directory: all stand still if it does.
        self._pools = WorkerPools(ServerSettings(data_dir=DATA_DIR, append_thread_count=1), ManualClock())
        self._machine = LogMachine(HookedDisk(self._before), data_dirs=DATA_DIRS)
        self._manager = self._machine.open()

    def _before(self, name: str, path: str) -> None:
        if name.startswith("sync"):
            self.syncing_threads.add(threading.current_thread())
        if name == "sync" and path.startswith(f"{DATA_DIR}/") and path.endswith(".log"):
            self.sync_count += 1
            self.gate.pass_through()

    def partition(
        self, topic: str, directory: str, flush_messages: int = LogConfig().flush_messages
    ) -> Written:
        changed = dataclasses.replace(self._machine.config, flush_messages=flush_messages)
        log = self._manager.open_log(TopicPartition(topic, 0), TOPIC_ID, changed)
        assert log.local_log.directory.startswith(f"{directory}/")
        loop = asyncio.get_running_loop()
        writer = PartitionWriter(
            PlainCalls(loop),
            WriterThreads(lambda: self._pools.append(directory), lambda: self._pools.flush(directory)),
            log,
            WriterChecks(lambda: 1),
            CommitWaiters(ManualClock(), loop),
            lambda: None,
        )
        return Written(log, writer, RequestMemory(1 << 20))

    def append_threads(self, directory: str) -> set[threading.Thread]:
        """The threads that have appended in the directory."""
        return set(self._pools.append(directory).threads)

    def close(self) -> None:
        self.gate.open()
        self._pools.close()
        self._machine.stop()


@contextmanager
def slow_disk() -> Generator[SlowDisk]:
    disk = SlowDisk()
    try:
        yield disk
    finally:
        disk.close()


async def test_the_next_group_is_written_while_the_last_one_is_flushed() -> None:
    with slow_disk() as disk:
        slow = disk.partition("slow", DATA_DIR)
        session = AppendSession()
        async with asyncio.timeout(PATIENCE_S):
            disk.gate.close()
            first = slow.append(DISK, session)
            assert await asyncio.to_thread(disk.gate.is_reached.wait, PATIENCE_S)
            behind = slow.append(DISK, session)
            assert (await slow.append(OS)).base_offset == 2, "it is written behind both"
            assert slow.log.offsets.log_end_offset == 3
            assert not first.done()
            assert not behind.done()
            disk.gate.open()
            assert [(await each).base_offset for each in (first, behind)] == [0, 1]
        assert disk.sync_count == 2, "one for what was written before it began, and one for the rest"
        assert slow.log.offsets.recovery_point == 3


async def test_no_append_syncs_on_a_thread_of_appends() -> None:
    """Not even the first one, which makes its leader epoch durable."""
    with slow_disk() as disk:
        slow = disk.partition("slow", DATA_DIR)
        disk.syncing_threads.clear()
        async with asyncio.timeout(PATIENCE_S):
            await slow.append(OS)
            assert disk.syncing_threads, "the leader epoch is durable"
            await slow.append(DISK)
        assert disk.append_threads(DATA_DIR)
        assert not disk.append_threads(DATA_DIR) & disk.syncing_threads
        slow.log.check()


async def test_no_append_syncs_on_a_thread_of_appends_where_many_records_wait() -> None:
    """Another partition of the directory goes on."""
    with slow_disk() as disk:
        eager = disk.partition("eager", DATA_DIR, flush_messages=2)
        # Directories take turns.
        disk.partition("other", OTHER_DIR)
        slow = disk.partition("slow", DATA_DIR)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(eager.append(OS), slow.append(OS))
            disk.syncing_threads.clear()
            disk.gate.close()
            waiting = [eager.append(OS)]
            assert await asyncio.to_thread(disk.gate.is_reached.wait, PATIENCE_S)
            waiting.append(eager.append(OS))
            assert [(await slow.append(OS)).base_offset for _ in range(3)] == [1, 2, 3]
            assert not any(one.done() for one in waiting)
            disk.gate.open()
            assert [(await one).base_offset for one in waiting] == [1, 2]
        assert eager.log.offsets.recovery_point >= 2
        assert disk.syncing_threads
        assert not disk.append_threads(DATA_DIR) & disk.syncing_threads
        eager.log.check()


async def test_an_fsync_that_hangs_holds_up_no_other_log_directory() -> None:
    with slow_disk() as disk:
        slow, other = disk.partition("slow", DATA_DIR), disk.partition("other", OTHER_DIR)
        async with asyncio.timeout(PATIENCE_S):
            disk.gate.close()
            hanging = slow.append(DISK)
            assert await asyncio.to_thread(disk.gate.is_reached.wait, PATIENCE_S)
            assert [(await other.append(DISK)).base_offset for _ in range(3)] == [0, 1, 2]
            assert not hanging.done()
            disk.gate.open()
            assert (await hanging).base_offset == 0
