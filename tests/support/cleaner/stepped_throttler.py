"""A throttle between whose steps a test does something: what moves or cleans a log asks it after each one."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stratalog.base.clock import Clock
from stratalog.cleaner.throttler import Throttler


class SteppedThrottler(Throttler):
    """A throttler that calls the test at each step. As thread-safe as the test's function."""

    def __init__(self, clock: Clock, work: Callable[[int], None]) -> None:
        """`work` gets the number of the step, from 1 on."""
        super().__init__(clock)
        self.step_count = 0
        self.is_interrupted = threading.Event()
        """A caller wants an end."""
        self._work = work

    def take(self, size_bytes: int, check_done: Callable[[], None]) -> None:
        super().take(size_bytes, check_done)
        self.step_count += 1
        self._work(self.step_count)

    def interrupt(self) -> None:
        self.is_interrupted.set()
        super().interrupt()
