"""Retention of a log whose policy was altered while a clean is at it: never beside that clean."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue

from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult
from stratalog.cleaner.clean.log_cleaner import LogCleaner
from stratalog.cleaner.cleaner_pool import CleanerPool
from stratalog.cleaner.cleaner_settings import CleanerSettings
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.unified_log import UnifiedLog
from stratalog.segment.file_names import CLEANED_SUFFIX, SWAP_SUFFIX
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaner_machine import COMPACTED, CleanerMachine, Paused
from tests.support.logs.log_ledger import read_local

SEGMENT_COUNT = 12
CONFIG = replace(COMPACTED, segment_bytes=1024, retention_ms=-1)
KEEPS_TWO_SEGMENTS = replace(CONFIG, cleanup_policy=frozenset({"delete"}), retention_bytes=600)


class StoppedClean:
    """A clean of one log in a thread of its own, which stops at one of its steps. Used by one thread.

    A step is whatever the throttle is asked for: all that is read and written.
    """

    def __init__(self, at_step: int) -> None:
        self.machine = CleanerMachine()
        self.log: UnifiedLog = self.machine.open(0, CONFIG)
        self.machine.fill(self.log, *[3] * SEGMENT_COUNT)
        self._at_step, self._step_count = at_step, 0
        self._signals, self._told = SimpleQueue[str](), threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self.cleaner = CleanerPool(
            self.machine.clock,
            self.machine.machine.scheduler,
            self.machine.log_manager.cleaner,
            self._clean,
            CleanerSettings(),
        )
        self._cleaning = self._pool.submit(self.cleaner.clean_filthiest)
        self._cleaning.add_done_callback(lambda _: self._signals.put("ended"))
        self.is_stopped = self._signals.get(timeout=30) == "stopped"
        """False where it has ended before that step."""

    def _clean(self, chosen: LogToClean, limits: CleanLimits) -> CleanResult:
        def throttle(size_bytes: int) -> None:
            limits.throttle(size_bytes)
            self._step_count += 1
            if self._step_count == self._at_step:
                self._signals.put("stopped")
                assert self._told.wait(60)

        cleaner = LogCleaner(self.machine.clock, SequentialIds())
        return cleaner.clean(chosen, limits._replace(throttle=throttle))

    def go_on(self) -> None:
        """Returns when the clean has ended."""
        self._told.set()
        assert self._cleaning.result(30)
        self._pool.shutdown()


def test_retention_of_a_log_that_was_altered_to_delete_waits_for_its_clean_to_end() -> None:
    """At each step of the clean. Retention drops segments then, and a clean must not put them back."""
    aborted_counts: list[int] = []
    while (aborted_count := retain_beside(len(aborted_counts) + 1)) is not None:
        aborted_counts.append(aborted_count)
    # Behind the last look at whether it shall end it has nothing to do but to say what it has done.
    assert set(aborted_counts[:-1]) == {1}
    assert len(aborted_counts) > 5


def retain_beside(step: int) -> int | None:
    """How many cleans were aborted; None where the clean has ended before that step."""
    stopped = StoppedClean(step)
    if not stopped.is_stopped:
        assert stopped.cleaner.stats().clean_count == 1
        stopped.go_on()
        return None
    machine, log = stopped.machine, stopped.log
    log_manager = machine.log_manager
    log.reconfigure(KEEPS_TWO_SEGMENTS)
    counts: list[int] = []
    before = [(one.base_offset, one.size_bytes) for one in log.local_log.segments]
    try:
        retention = Paused(machine, lambda: counts.append(log_manager.tasks.delete_old_segments(log)))
        assert retention.is_waiting
        assert [(one.base_offset, one.size_bytes) for one in log.local_log.segments] == before
    finally:
        stopped.go_on()
    retention.join()
    stats = stopped.cleaner.stats()
    assert (stats.aborted_count + stats.clean_count, stats.failures) == (1, ())
    # Those that went are those that were too much once nobody cleaned any more.
    local = log.local_log.segments
    sizes_bytes = [one.size_bytes for one in local]
    assert counts[0] > 0
    assert sum(sizes_bytes[1:]) < KEEPS_TWO_SEGMENTS.retention_bytes <= sum(sizes_bytes)
    assert log.offsets.log_start_offset == local.start_offset
    assert all(one.offset >= log.offsets.log_start_offset for one in read_local(log))
    names = machine.machine.disk.list_directory(log.local_log.directory)
    assert not [name for name in names if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]
    assert log_manager.cleaner.take_filthiest() is None
    log_manager.cleaner.check()
    log.check()
    return stats.aborted_count
