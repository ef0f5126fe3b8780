"""The memory that many spools have together, in bytes.

A spool takes memory for each piece that it keeps, and gives all of it back when it writes its pieces to a
file or is closed. One that gets none writes a file at once, so uploads go on at any bound, at the price of a
copy.
"""

from __future__ import annotations

import threading


class SpoolMemory:
    """Counts the memory of spools. Thread-safe: `_lock` guards the count."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._held_bytes = 0
        self._lock = threading.Lock()

    @property
    def left_bytes(self) -> int:
        return self.limit_bytes - self._held_bytes

    def take(self, size_bytes: int) -> bool:
        """Take so many bytes; False, and nothing is taken, if fewer are left."""
        with self._lock:
            if size_bytes > self.left_bytes:
                return False
            self._held_bytes += size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        """Give back bytes that were taken."""
        with self._lock:
            self._held_bytes -= size_bytes
            assert self._held_bytes >= 0, "nothing is given back twice"
