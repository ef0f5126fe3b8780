"""A manual clock for code that waits in the thread of the test."""

from __future__ import annotations

import threading

from stratalog.testing.manual_clock import ManualClock


class StillClock(ManualClock):
    """Lets time pass where the code under test waits, without running what comes due: that waits for the next
    `advance` of the test. For one thread."""

    def sleep(self, duration_s: float) -> None:
        self._move_to(self.elapsed_ms + max(1, round(duration_s * 1000)))

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        assert timeout_s is not None, "no other thread ends the wait"
        self.sleep(timeout_s)
        return False
