"""Threads that know how long their oldest task has waited, and how long others took, so that a disk that
hangs or is slow can be seen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

from stratalog.base.clock import Clock
from stratalog.base.histogram import Histogram, HistogramCounts

_P = ParamSpec("_P")
_T = TypeVar("_T")


class WatchedThreads(Executor):
    """Runs tasks on threads. Thread-safe: `_watch_lock` guards the times of its tasks and their
    durations."""

    def __init__(self, clock: Clock, threads: Executor) -> None:
        """The threads have no other tasks, and end with these ones."""
        self._clock = clock
        self._threads = threads
        self._watch_lock = threading.Lock()
        self._since_s: dict[int, float] = {}
        """When each task that has not ended was submitted, by its number."""
        self._task_count = 0
        self._durations = Histogram()

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run a function on a thread. Raises RuntimeError if the threads are closed."""
        with self._watch_lock:
            future = self._threads.submit(fn, *args, **kwargs)
            self._task_count = number = self._task_count + 1
            since_s = self._since_s[number] = self._clock.monotonic_s()

        def forget(_ended: Future[_T]) -> None:
            with self._watch_lock:
                del self._since_s[number]
                self._durations.add(self._clock.monotonic_s() - since_s)

        future.add_done_callback(forget)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks, as `Executor.shutdown`."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)

    def oldest_wait_s(self) -> float:
        """How long ago the oldest task was submitted that has not ended, in seconds; 0 if all have."""
        with self._watch_lock:
            oldest_s = next(iter(self._since_s.values()), None)
        return 0.0 if oldest_s is None else self._clock.monotonic_s() - oldest_s

    def durations(self) -> HistogramCounts:
        """Seconds from the submission of each task to its end, of tasks that have ended."""
        return self._durations.counts()
