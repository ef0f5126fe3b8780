"""Works on many items in a few lanes, side by side where the process has threads for that.

Each lane takes the next item when it is done with one, so memory holds as many items as there are lanes,
however many follow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from stratalog.remote.metadata.head.page_loader import RunAll

T = TypeVar("T")
R = TypeVar("R")

LANE_COUNT = 8
"""Requests that one command, or one pass, has under way."""


def in_lanes(
    run_all: RunAll,
    items: Iterable[T],
    work: Callable[[T], R],
    done: Callable[[T, R], None],
    lane_count: int = LANE_COUNT,
) -> None:
    """Call `work` with each item, and `done` with the item and its result, in the order in which they end.

    Items are taken, and `done` is called, by one lane at a time. The first error ends all lanes before their
    next item, and is raised once they have ended; so does an interruption of the caller.
    """
    lanes = _Lanes(iter(items), work, done)
    try:
        run_all([lanes.run] * lane_count)
    finally:
        lanes.stop()


class _Lanes(Generic[T, R]):
    """Some lanes over the same items. Thread-safe: `_lock` guards the items, the results and the flag."""

    def __init__(self, items: Iterator[T], work: Callable[[T], R], done: Callable[[T, R], None]) -> None:
        self._items = items
        self._work = work
        self._done = done
        self._lock = threading.Lock()
        self._is_stopped = False

    def run(self) -> None:
        """Work until no item is left, or the lanes are stopped."""
        try:
            while (taken := self._next()) is not None:
                [item] = taken
                result = self._work(item)
                with self._lock:
                    self._done(item, result)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Let no lane take another item."""
        with self._lock:
            self._is_stopped = True

    def _next(self) -> tuple[T] | None:
        with self._lock:
            if self._is_stopped:
                return None
            for item in self._items:
                return (item,)
            return None
