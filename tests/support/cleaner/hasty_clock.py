"""A clock for limits: a thread that waits lets time pass."""

from __future__ import annotations

import threading

from stratalog.testing.manual_clock import ManualClock


class HastyClock(ManualClock):
    """A clock whose time passes when a thread waits. Used by one thread, which stands for all."""

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        assert timeout_s is not None
        self.advance(round(timeout_s * 1000))
        return False
