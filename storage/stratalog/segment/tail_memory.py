"""The memory for the newest batches of all logs.

One bound holds for all tails. A new block pushes out the oldest ones, of whichever log: those were there for
their readers the longest.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

MAX_PART_OF_LIMIT = 2
"""A larger block would push out most of the others."""


class Tail(Protocol):
    """A tail, as its memory knows it."""

    def drop_oldest(self) -> int:
        """Drop the oldest block, and return its memory. The memory's lock is held."""
        ...


class TailMemory:
    """Counts the memory of all tails. Thread-safe: `lock` guards it, and the blocks of the tails."""

    def __init__(self, limit_bytes: int) -> None:
        """0: nothing is kept."""
        self.limit_bytes = limit_bytes
        self.lock = threading.Lock()
        self._held_bytes = 0
        self._order: deque[tuple[Tail, int]] = deque()
        """The tail and the memory of each block, oldest first."""

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def admits(self, size_bytes: int) -> bool:
        """Whether a block of that size is kept."""
        return size_bytes * MAX_PART_OF_LIMIT <= self.limit_bytes

    def take(self, tail: Tail, size_bytes: int) -> None:
        """Count the newest block of a tail, and drop the oldest ones beyond the limit. The lock is held."""
        self._order.append((tail, size_bytes))
        self._held_bytes += size_bytes
        while self._held_bytes > self.limit_bytes:
            oldest, _ = self._order.popleft()
            self._held_bytes -= oldest.drop_oldest()

    def forget(self, tail: Tail) -> None:
        """Count no block of the tail any more. The lock is held."""
        self._held_bytes -= sum(size_bytes for one, size_bytes in self._order if one is tail)
        self._order = deque(entry for entry in self._order if entry[0] is not tail)

    def check(self) -> None:
        """Assert that the count is that of the blocks, within the limit."""
        with self.lock:
            assert self._held_bytes == sum(size_bytes for _, size_bytes in self._order)
            assert self._held_bytes <= self.limit_bytes
