"""How many producers the logs of a process may remember, each and together.

Each takes about a kilobyte of memory, and ids cost nothing, so a client that takes a new one for each append
would fill the memory within the time after which idle producers expire.
"""

from __future__ import annotations

import threading

IDLE_MS = 15 * 60 * 1000
"""A producer that has been idle for this long may be forgotten for a new one, before it expires: no client
sends an append again for so long."""


class ProducerRoom:
    """The producers of all logs. Thread-safe: `_lock` guards the count. Logs that are appended to at once may
    pass the bound of all together by one group of requests each."""

    def __init__(self, max_log_count: int, max_total_count: int) -> None:
        """The most producers of one log, and of all of them."""
        self.max_log_count = max_log_count
        self.max_total_count = max_total_count
        self._lock = threading.Lock()
        self._count = 0

    @property
    def count(self) -> int:
        """The producers that all logs remember."""
        return self._count

    def add(self, change: int) -> None:
        """Count more producers, or fewer if negative."""
        with self._lock:
            self._count += change
            assert self._count >= 0, "a log gives back what it has counted"
