"""How many producers the logs of a process may remember, each and together.

Each takes about a kilobyte of memory, and ids cost nothing, so a client that takes a new one for each append
would fill the memory within the time after which idle producers expire.

A log forgets its own idle producers for a new one, under its own lock. Those of other logs are behind other
locks: once nearly as many are known as may be, the room asks for a look at all logs (see `IdleProducers`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from stratalog.base.clock import Clock

IDLE_MS = 15 * 60 * 1000
"""A producer that has appended nothing for this long may be forgotten for a new one, before it expires.
Clients of ours send a batch again for two minutes by default, and should not for as long as this."""


class ProducerRoom:
    """The producers of all logs. Thread-safe: `_lock` guards the count. Logs that are appended to at once may
    pass the bound of all together by one group of requests each."""

    def __init__(self, clock: Clock, max_log_count: int, max_total_count: int) -> None:
        """The most producers of one log, and of all of them."""
        self._clock = clock
        self.max_log_count = max_log_count
        self.max_total_count = max_total_count
        self._lock = threading.Lock()
        self._count = 0
        self._ask: Callable[[], None] = lambda: None

    def ask_when_nearly_full(self, ask: Callable[[], None]) -> None:
        """Call `ask` whenever a log has counted more producers and the room is nearly full. It is called
        under that log's lock, so it takes no lock of a log."""
        self._ask = ask

    @property
    def count(self) -> int:
        """The producers that all logs remember."""
        return self._count

    @property
    def is_nearly_full(self) -> bool:
        """Whether more than seven eighths of what may be are known."""
        return self._count > self.max_total_count * 7 // 8

    @property
    def is_full(self) -> bool:
        """Whether no other producer may be known."""
        return self._count >= self.max_total_count

    @property
    def surplus_count(self) -> int:
        """How many producers to forget of a room that is nearly full: down to three quarters."""
        return max(self._count - self.max_total_count * 3 // 4, 0)

    def elapsed_ms(self) -> int:
        """Time for the idleness of producers, which no change of the wall clock moves."""
        return int(self._clock.monotonic_s() * 1000)

    def add(self, change: int) -> None:
        """Count more producers, or fewer if negative."""
        with self._lock:
            self._count += change
            assert self._count >= 0, "a log gives back what it has counted"
        if change > 0 and self.is_nearly_full:
            self._ask()
