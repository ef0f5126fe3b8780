"""Compacted logs on one disk with a cleaner's manager beside them, and what a test needs to lead threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TypeAlias
from uuid import UUID

from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.cleaner.cleaner_pool import CleanerPool
from stratalog.cleaner.cleaner_settings import CleanerSettings
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.noted_horizons import NotedHorizons
from tests.support.logs.log_machine import DATA_DIR, LogMachine

DEFAULTS = CleanerSettings()
CleanLog: TypeAlias = Callable[[LogToClean, CleanLimits], CleanResult]
COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}), remote_storage_enable=False)


class WaitingClock(ManualClock):
    """A clock that shows when a thread has begun to wait. Thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._waits = threading.Semaphore(0)
        self._threads_changed = threading.Condition()
        self._thread_count = 0

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        # Said under the condition: a thread that hears it cannot notify before the wait.
        self._count_threads(1)
        self._waits.release()
        try:
            return super().wait(condition, timeout_s)
        finally:
            self._count_threads(-1)

    def _count_threads(self, difference: int) -> None:
        with self._threads_changed:
            self._thread_count += difference
            self._threads_changed.notify_all()

    def until_waiting(self) -> None:
        """Return when one more wait than before has begun, or is about to, with its condition still taken.
        A thread that is woken for nothing begins another one."""
        assert self._waits.acquire(timeout=30), "no thread waits"

    def until_threads_wait(self, count: int) -> None:
        """Return when so many threads wait at once."""
        with self._threads_changed:
            assert self._threads_changed.wait_for(lambda: self._thread_count >= count, timeout=30), (
                f"fewer than {count} threads wait"
            )


class CleanerMachine:
    """A disk, a clock, logs and a manager. Used by one thread, but for what it hands out."""

    def __init__(self, disk: FileSystem | None = None, *, seed: int = 0) -> None:
        self.clock = WaitingClock()
        disk = disk if disk is not None else MemoryFileSystem(now_ms=self.clock.now_ms)
        self.machine = LogMachine(disk, COMPACTED)
        self.machine.clock, self.machine.scheduler = self.clock, ManualScheduler(self.clock)
        self.log_manager = self.machine.open()
        self.seed = seed
        self.horizons = NotedHorizons()
        self.manager = self.new_manager()

    def new_manager(self) -> CleanerManager:
        """A manager as the next process has it, over the same disk and the same logs."""
        manager = CleanerManager(
            self.machine.disk, self.clock, random.Random(self.seed), self.log_manager.logs
        )
        manager.add_directory(DATA_DIR, self.horizons)
        return manager

    def pool(
        self,
        clean: CleanLog | None = None,
        settings: CleanerSettings = DEFAULTS,
        manager: CleanerManager | None = None,
    ) -> CleanerPool:
        """Workers that clean as those of a server, or by `clean`."""
        clean = clean or LogClean(self.clock, SequentialIds()).run
        return CleanerPool(self.clock, self.machine.scheduler, manager or self.manager, clean, settings)

    def partition(self, number: int) -> TopicPartition:
        return TopicPartition("orders", number)

    def open(self, number: int, config: LogConfig = COMPACTED, *, start_offset: int = 0) -> UnifiedLog:
        """The log of that partition."""
        return self.log_manager.open_log(
            self.partition(number), UUID(int=7), config, start_offset=start_offset
        )

    def fill(self, log: UnifiedLog, *segments: int) -> None:
        """Segments of so many records of 100 bytes each, all sealed, as old as the clock says."""
        for record_count in segments:
            now_ms = self.clock.now_ms()
            records = [Record(0, now_ms, b"k%d" % number, bytes(100)) for number in range(record_count)]
            log.appender.append_as_leader(encode_batch(records), 1)
            log.roll()
