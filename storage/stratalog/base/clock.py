"""The seam for time.

Wall time is integer milliseconds since 1970 UTC and serves for timestamps and ages; monotonic time is float
seconds and serves for durations and deadlines. ``storage/`` and ``tiering/`` never ask the operating system.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time. Thread-safe."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since 1970 UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """`condition.wait` in this clock's time; False if the timeout passed first. The caller holds the
        condition.
        """
        ...

    def sleep(self, duration_s: float) -> None:
        """Let `duration_s` seconds of this clock's time pass; for back-off, never for synchronisation."""
        ...


class SystemClock:
    """The operating system's clocks. Thread-safe. Waits are cut to the longest that it takes, 292 years."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        return condition.wait(None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))

    def sleep(self, duration_s: float) -> None:
        time.sleep(min(duration_s, threading.TIMEOUT_MAX))
