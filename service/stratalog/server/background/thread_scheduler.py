"""The scheduler of a running server: one thread keeps time, a few threads run tasks.

The timekeeper sleeps until the earliest task is due and hands it to the pool; it never runs a task itself, so
a slow task delays only others of the same pool. A task that is due at once goes to the pool without a change
to the timekeeper's thread. A periodic task is put back when it has ended, so it never overlaps itself. Every
failure of a task is logged with its traceback, and a periodic task is run again as usual. A failure to hand a
task over is logged and counted, and the timekeeper goes on; a task that the pool could not take is handed
over again a little later.

``close`` cancels waiting tasks and waits for running ones. Tasks that are due while it closes do not begin.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from stratalog.base.errors import LogStoreError

logger = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Pause after a failure of the timekeeper, because it may fail again."""


class _Task:
    """One scheduled callable. Guarded by the scheduler's condition."""

    __slots__ = ("_condition", "cancelled", "is_due", "is_handed_again", "name", "period_ms", "run")

    def __init__(
        self, condition: threading.Condition, name: str, run: Callable[[], None], period_ms: int | None
    ) -> None:
        self._condition = condition
        self.name = name
        self.run = run
        self.period_ms = period_ms
        self.cancelled = False
        # Its time has come, and no thread has begun it yet.
        self.is_due = False
        # The pool refused it, and may have kept it all the same.
        self.is_handed_again = False

    def cancel(self) -> None:
        with self._condition:
            self.cancelled = True


class ThreadScheduler:
    """Implements `stratalog.base.scheduler.Scheduler`. Thread-safe: the condition guards the queue and the
    tasks' states.
    """

    def __init__(self, thread_count: int, name: str = "task") -> None:
        """Threads start when they are needed; `name` is a part of their names."""
        self._condition = threading.Condition()
        self._queue: list[tuple[float, int, _Task]] = []
        self._order = itertools.count()
        self._is_closed = False
        self._failure_count = 0
        self._pool = ThreadPoolExecutor(thread_count, thread_name_prefix=f"stratalog-{name}")
        self._timekeeper = threading.Thread(target=self._keep_time, name="stratalog-timekeeper", daemon=True)
        self._timekeeper.start()

    def once(self, name: str, task: Callable[[], None], delay_ms: int = 0) -> _Task:
        """Run `task` once, `delay_ms` from now."""
        return self._schedule(_Task(self._condition, name, task, None), delay_ms)

    def every(self, name: str, task: Callable[[], None], period_ms: int, delay_ms: int = 0) -> _Task:
        """Run `task` after `delay_ms`, then `period_ms` after each of its ends."""
        assert period_ms > 0
        return self._schedule(_Task(self._condition, name, task, period_ms), delay_ms)

    @property
    def failure_count(self) -> int:
        """Failures to hand a task over; failures of tasks do not count."""
        return self._failure_count

    def stop(self) -> None:
        """Cancel waiting tasks, and begin no others."""
        with self._condition:
            self._is_closed = True
            self._queue.clear()
            self._condition.notify_all()

    def close(self) -> None:
        """`stop`, and wait for running tasks. May be called twice; a task must not call it."""
        self.stop()
        self._timekeeper.join()
        self._pool.shutdown(wait=True)

    def _schedule(self, task: _Task, delay_ms: int) -> _Task:
        with self._condition:
            if self._is_closed:
                return task
            if delay_ms <= 0:
                self._hand_over_now(task)
                return task
            heapq.heappush(self._queue, (time.monotonic() + delay_ms / 1000, next(self._order), task))
            if self._queue[0][2] is task:
                # The timekeeper sleeps until another one.
                self._condition.notify_all()
        return task

    def _hand_over_now(self, task: _Task) -> None:
        """Hand over a task that is due. Under the condition."""
        try:
            self._hand_over(task)
        except RuntimeError:
            self._failure_count += 1
            logger.exception("a background task found no thread, and is begun again a little later")
            self._condition.notify_all()

    def _keep_time(self) -> None:
        with self._condition:
            while not self._is_closed:
                try:
                    self._keep_time_once()
                except Exception:
                    self._failure_count += 1
                    logger.exception("the timekeeper of background tasks failed unexpectedly and continues")
                    self._condition.wait(PAUSE_S)

    def _keep_time_once(self) -> None:
        """Wait for the earliest task, or hand it over. Under the condition."""
        if not self._queue:
            self._condition.wait()
            return
        remaining_s = self._queue[0][0] - time.monotonic()
        if remaining_s > 0:
            self._condition.wait(min(remaining_s, threading.TIMEOUT_MAX))
            return
        task = heapq.heappop(self._queue)[2]
        if task.is_handed_again and not task.is_due:
            # It ran meanwhile.
            task.is_handed_again = False
        elif not task.cancelled:
            self._hand_over(task)

    def _hand_over(self, task: _Task) -> None:
        """Hand the task to the pool. Raises RuntimeError if the pool can start no thread; the task is handed
        over again then."""
        task.is_due, task.is_handed_again = True, False
        try:
            self._pool.submit(self._run, task)
        except RuntimeError:
            task.is_handed_again = True
            heapq.heappush(self._queue, (time.monotonic() + PAUSE_S, next(self._order), task))
            raise

    def _run(self, task: _Task) -> None:
        with self._condition:
            if task.cancelled or self._is_closed or not task.is_due:
                return
            task.is_due = False
        try:
            task.run()
        except LogStoreError as error:
            # Expected kinds of failure, such as a store that is out of reach, deserve a line, not a
            # traceback.
            logger.warning("background task %s failed: %s", task.name, error)
        except Exception:
            logger.exception("background task %s failed unexpectedly", task.name)
        finally:
            if task.period_ms is not None and not task.cancelled:
                self._schedule(task, task.period_ms)
