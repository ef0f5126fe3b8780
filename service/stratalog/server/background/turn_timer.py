"""Begins turns at times that may move forward."""

from __future__ import annotations

import math
from collections.abc import Callable

from stratalog.base.clock import Clock
from stratalog.base.scheduler import ScheduledTask, Scheduler


class TurnTimer:
    """The begin of the next turn. Guarded by the lock of its user; `task` is called without it, on a thread
    of the scheduler."""

    def __init__(self, clock: Clock, scheduler: Scheduler, name: str, task: Callable[[], None]) -> None:
        """`task` calls `fired` first."""
        self._clock = clock
        self._scheduler = scheduler
        self._name = name
        self._task = task
        self._scheduled: ScheduledTask | None = None
        self._due_s = math.inf

    def plan(self, due_s: float) -> None:
        """Call the task at this monotonic time, unless it is called sooner; never for an infinite one."""
        if due_s >= self._due_s:
            return
        self.cancel()
        self._due_s = due_s
        delay_ms = max(0, round((due_s - self._clock.monotonic_s()) * 1000))
        self._scheduled = self._scheduler.once(self._name, self._task, delay_ms)

    def fired(self) -> None:
        """Note that the task was called."""
        self._scheduled, self._due_s = None, math.inf

    def cancel(self) -> None:
        """Call the task no more, until the next plan."""
        if self._scheduled is not None:
            self._scheduled.cancel()
        self.fired()
