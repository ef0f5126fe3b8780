"""A clean that waits for the throttle, for minutes or for ever: a task that wants the log has it at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult
from stratalog.cleaner.clean.log_cleaner import LogCleaner
from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.cleaner.cleaner_pool import CleanerPool
from stratalog.cleaner.cleaner_settings import CleanerSettings
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaner_machine import CleanerMachine
from tests.support.logs.log_machine import DATA_DIR

SETTINGS = CleanerSettings(max_bytes_per_s=1.0)


class ThrottledClean:
    """A log, and a cleaner which may move a byte a second and has moved too much. Used by one thread."""

    def __init__(self) -> None:
        self.machine = CleanerMachine()
        self.partition = self.machine.partition(0)
        self.log = self.machine.open(0)
        self.machine.fill(self.log, 3, 3)
        self.manager: CleanerManager = self.machine.manager
        self.cleaner = CleanerPool(
            self.machine.clock, self.machine.machine.scheduler, self.manager, self._clean, SETTINGS
        )
        self.manager.throttler.take(1 << 40, lambda: None)

    def _clean(self, chosen: LogToClean, limits: CleanLimits) -> CleanResult:
        return LogCleaner(self.machine.clock, SequentialIds()).clean(chosen, limits)

    def pause(self) -> None:
        with self.manager.paused(self.partition):
            assert self.manager.take_filthiest() is None


ENDS: dict[str, Callable[[ThrottledClean], None]] = {
    "pause": ThrottledClean.pause,
    "stop": lambda throttled: throttled.cleaner.stop(),
    "directory": lambda throttled: throttled.manager.directory_failed(DATA_DIR),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "walk"])
def test_what_waits_for_the_throttle_ends_at_once(end: str, *, is_clean: bool) -> None:
    """The time stands still meanwhile. A walk over what others have cleaned is throttled as a clean is."""
    throttled = ThrottledClean()
    machine, manager = throttled.machine, throttled.manager
    if not is_clean:
        found = manager.take_filthiest()
        assert found is not None
        manager.done(found, found.first_uncleanable_offset)
    elapsed_ms = machine.clock.elapsed_ms
    with ThreadPoolExecutor(2) as pool:
        try:
            cleaning = pool.submit(throttled.cleaner.clean_filthiest)
            machine.clock.until_waiting()
            assert throttled.cleaner.stats().running_count == 1
            ending = pool.submit(ENDS[end], throttled)
            assert cleaning.result(30)
            ending.result(30)
        finally:
            # A clean that was not woken up goes on now, or this test would never end.
            manager.throttler.set_max_bytes_per_s(float(1 << 60))
    assert machine.clock.elapsed_ms == elapsed_ms
    stats = throttled.cleaner.stats()
    assert (stats.aborted_count, stats.clean_count, stats.failures) == (int(is_clean), 0, ())
    assert [one.size_bytes > 0 for one in throttled.log.local_log.segments] == [True, True, False]
    manager.check()
