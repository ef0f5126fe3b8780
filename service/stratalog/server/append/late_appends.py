"""Fails appends that have waited for their commit for too long. Their records stay in the log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from stratalog.base.errors import LogStoreError
from stratalog.base.scheduler import Scheduler
from stratalog.server.append.commit_waiters import CommitWaiters

MAX_LOOK_MS = 1_000
"""The longest time between two looks."""


class _Watched(NamedTuple):
    waiters: CommitWaiters
    late_error: Callable[[int], LogStoreError]


class LateAppends:
    """The partitions with appends that wait. Thread-safe: `_lock` guards them."""

    def __init__(self, scheduler: Scheduler, timeout_ms: Callable[[], int]) -> None:
        """`timeout_ms` is the time after which an append fails; it is asked at each look."""
        self._scheduler = scheduler
        self._timeout_ms = timeout_ms
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}
        self._has_look = self._is_stopped = False
        self._count = 0

    @property
    def count(self) -> int:
        """Appends that have failed here since the start."""
        return self._count

    def watch(self, waiters: CommitWaiters, late_error: Callable[[int], LogStoreError]) -> bool:
        """Look after the appends of a partition until none waits. `late_error` makes the error of those that
        have waited for so many milliseconds. Returns False after `stop`."""
        with self._lock:
            if not self._is_stopped:
                self._watched[id(waiters)] = _Watched(waiters, late_error)
                self._plan_look()
            return not self._is_stopped

    def stop(self) -> list[CommitWaiters]:
        """Look no more; returns the partitions whose appends may wait."""
        with self._lock:
            self._is_stopped = True
            return [one.waiters for one in self._watched.values()]

    def _plan_look(self) -> None:
        """Called with the lock held."""
        if not self._has_look and not self._is_stopped:
            self._has_look = True
            delay_ms = max(1, min(MAX_LOOK_MS, self._timeout_ms() // 2))
            self._scheduler.once("look for late commits", self._look, delay_ms)

    def _look(self) -> None:
        """Fail the appends that have waited too long, and look again as long as any wait."""
        timeout_ms = self._timeout_ms()
        with self._lock:
            watched = [*self._watched.values()]
        count = 0
        for one in watched:
            count += one.waiters.fail(one.late_error(timeout_ms), older_than_s=timeout_ms / 1000)
        with self._lock:
            self._count += count
            self._watched = {key: one for key, one in self._watched.items() if one.waiters.count}
            self._has_look = False
            if self._watched:
                self._plan_look()
