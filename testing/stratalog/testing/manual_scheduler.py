"""A scheduler whose tasks run when a test moves the clock, in the thread that moves it."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

from stratalog.base.scheduler import ScheduledTask
from stratalog.testing.manual_clock import ManualClock, ManualTimers


class ManualTask:
    """One scheduled callable. Guarded by its scheduler."""

    def __init__(self, name: str, run: Callable[[], None], period_ms: int | None) -> None:
        self.name = name
        self.run = run
        self.period_ms = period_ms
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualScheduler(ManualTimers):
    """`Scheduler` that runs due tasks inside `ManualClock.advance`, in the order of their deadlines.
    Thread-safe.

    A task that raises lets the test fail, unless `failures` is read: pass `collect_failures=True` to have
    errors kept there as production would log them.
    """

    def __init__(self, clock: ManualClock, *, collect_failures: bool = False) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._order = itertools.count()
        self._queue: list[tuple[int, int, ManualTask]] = []
        self._collect_failures = collect_failures
        self._is_closed = False
        self.failures: list[tuple[str, Exception]] = []
        clock.attach(self)

    def once(self, name: str, task: Callable[[], None], delay_ms: int = 0) -> ScheduledTask:
        return self._schedule(ManualTask(name, task, None), delay_ms)

    def every(self, name: str, task: Callable[[], None], period_ms: int, delay_ms: int = 0) -> ScheduledTask:
        assert period_ms > 0, "a period of zero would never let the clock move on"
        return self._schedule(ManualTask(name, task, period_ms), delay_ms)

    def close(self) -> None:
        with self._guard:
            self._is_closed = True
            self._queue.clear()

    def run_due(self) -> None:
        """Run what is due now, without moving the clock."""
        self.fire(self._clock.elapsed_ms)

    def pending(self) -> list[str]:
        """Names of the tasks that wait, earliest first."""
        with self._guard:
            return [
                task.name
                for _, _, task in sorted(self._queue, key=lambda item: item[:2])
                if not task.is_cancelled
            ]

    def next_due_ms(self) -> int | None:
        with self._guard:
            self._drop_cancelled()
            return self._queue[0][0] if self._queue else None

    def fire(self, elapsed_ms: int) -> None:
        while True:
            with self._guard:
                self._drop_cancelled()
                if not self._queue or self._queue[0][0] > elapsed_ms:
                    return
                _, _, task = heapq.heappop(self._queue)
            self._run(task)
            # The next period begins at the task's end, so that it never overlaps itself.
            if task.period_ms is not None and not task.is_cancelled:
                self._schedule(task, task.period_ms)

    def _run(self, task: ManualTask) -> None:
        try:
            task.run()
        except Exception as failure:
            if not self._collect_failures:
                raise
            self.failures.append((task.name, failure))

    def _schedule(self, task: ManualTask, delay_ms: int) -> ManualTask:
        with self._guard:
            if self._is_closed:
                task.is_cancelled = True
            else:
                heapq.heappush(self._queue, (self._clock.elapsed_ms + delay_ms, next(self._order), task))
        return task

    def _drop_cancelled(self) -> None:
        while self._queue and self._queue[0][2].is_cancelled:
            heapq.heappop(self._queue)
