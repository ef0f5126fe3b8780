"""Threads that stand still at a turnstile, and a wait until all of them do.

A test goes on once each thread has ended its work or waits at the turnstile. So what it finds then does not
depend on how fast they were.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

_PATIENCE_S = 60.0

T = TypeVar("T")


class Standstill:
    """A turnstile, open at first, and the threads that may come to it. Thread-safe: `_changed` guards all."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open = True
        self._permit_count = 0
        self._waiting_count = 0
        self._unfinished: Counter[Hashable] = Counter()
        """The works of each thread that have not ended."""

    def close(self) -> None:
        with self._changed:
            self._is_open = False

    def open(self) -> None:
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def let_one_pass(self) -> None:
        """Let one thread pass that waits, or comes next."""
        with self._changed:
            self._permit_count += 1
            self._changed.notify_all()

    def pass_through(self) -> None:
        """Go on, once the turnstile lets this thread pass."""
        with self._changed:
            self._waiting_count += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._is_open or self._permit_count, _PATIENCE_S)
            self._permit_count -= not self._is_open
            self._waiting_count -= 1

    def settle(self) -> None:
        """Wait until each thread waits at the turnstile, or has no work."""
        with self._changed:
            assert self._changed.wait_for(self._is_still, _PATIENCE_S)

    def _is_still(self) -> bool:
        working_count = sum(1 for count in self._unfinished.values() if count)
        # Those that may pass by now have not all woken up yet.
        waiting_count = 0 if self._is_open or self._permit_count else self._waiting_count
        return waiting_count == working_count

    def note(self, thread: Hashable, work_count: int) -> None:
        """Note that the thread has so many works more."""
        with self._changed:
            self._unfinished[thread] += work_count
            self._changed.notify_all()


class StandstillThread(Executor):
    """One thread, of those of a standstill. Thread-safe."""

    def __init__(self, standstill: Standstill) -> None:
        self._standstill = standstill
        self._thread = ThreadPoolExecutor(1)

    def submit(self, function: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        self._standstill.note(self, 1)
        future = self._thread.submit(function, *arguments, **named)
        future.add_done_callback(lambda _: self._standstill.note(self, -1))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._thread.shutdown(wait, cancel_futures=cancel_futures)
