"""Limits the bytes that all workers together read and write in a second.

A worker announces bytes before it moves them, and waits until time has paid for the earlier bytes. So one
request may have any size, and the next ones wait longer for it. Idle time pays for a tenth of a second in
advance: that makes up for waits that are a little too long, and allows no burst.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from stratalog.base.clock import Clock
from stratalog.log.config_key import FLOAT_MAX

AHEAD_S = 0.1
"""Time that can be paid in advance."""
_LEAST_WAIT_S = 0.001
_LONGEST_WAIT_S = 1.0
"""Time between two looks at a worker that should end."""


class Throttler:
    """A limit that all workers share. Thread-safe: `_changed` guards all fields."""

    def __init__(self, clock: Clock, max_bytes_per_s: float = FLOAT_MAX) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._max_bytes_per_s = max_bytes_per_s
        self._owed_bytes = 0.0
        self._as_of_s = clock.monotonic_s()

    @property
    def max_bytes_per_s(self) -> float:
        return self._max_bytes_per_s

    def set_max_bytes_per_s(self, max_bytes_per_s: float) -> None:
        """Change the limit, also for calls that wait."""
        with self._changed:
            self._settle()
            self._max_bytes_per_s = max_bytes_per_s
            self._owed_bytes = max(self._owed_bytes, -AHEAD_S * max_bytes_per_s)
            self._changed.notify_all()

    def wait_s(self) -> float:
        """The time after which bytes may be moved; 0: at once."""
        with self._changed:
            return self._wait_s()

    def take(self, size_bytes: int, check_done: Callable[[], None]) -> None:
        """Wait until `size_bytes` may be moved. Calls `check_done` at least once a second meanwhile and after
        each interruption, and raises its errors. `check_done` must not take a lock under which this class is
        called."""
        with self._changed:
            while True:
                wait_s = self._wait_s()
                if wait_s == 0:
                    break
                check_done()
                self._clock.wait(self._changed, min(wait_s, _LONGEST_WAIT_S))
            self._owed_bytes += size_bytes

    def owe(self, size_bytes: int) -> None:
        """Note bytes that are moved without a wait: the calls that wait, and those to come, pay for them."""
        with self._changed:
            self._settle()
            self._owed_bytes += size_bytes

    def interrupt(self) -> None:
        """Make all waiting calls run their `check_done`."""
        with self._changed:
            self._changed.notify_all()

    def _wait_s(self) -> float:
        self._settle()
        wait_s = self._owed_bytes / self._max_bytes_per_s
        return 0.0 if wait_s < _LEAST_WAIT_S / 2 else max(wait_s, _LEAST_WAIT_S)

    def _settle(self) -> None:
        now_s = self._clock.monotonic_s()
        paid_bytes = (now_s - self._as_of_s) * self._max_bytes_per_s
        self._owed_bytes = max(self._owed_bytes - paid_bytes, -AHEAD_S * self._max_bytes_per_s)
        self._as_of_s = now_s
