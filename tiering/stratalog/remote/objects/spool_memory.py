"""The memory that many spools have together, in bytes.

A spool takes memory for each piece that it keeps, and gives all of it back when it writes its pieces to a
file or is closed. One that gets none writes a file at once, so uploads go on at any bound, at the price of a
copy.

Where a disk is full, no spool may need a file. Then an object has a part of the memory reserved for its
spools before it begins. It gets half of what is left at most, so the next one finds some, too, whichever
shard it is of. The reserve ends with the building of the object: its spools give back what they have when
they close.
"""

from __future__ import annotations

import threading

_LEAST_PART = 64
"""A reserve has at least one part in so many of all memory: less would hold no batch."""


class SpoolMemory:
    """Counts the memory of spools. Thread-safe: `_lock` guards the counts. A reserve may take the lock of the
    memory that it is of, never the other way round."""

    def __init__(self, limit_bytes: int, source: SpoolMemory | None = None) -> None:
        """`source`: the memory of which this is a reserve."""
        self.limit_bytes = limit_bytes
        self._source = source
        self._has_ended = False
        self._held_bytes = 0
        self._lock = threading.Lock()

    @property
    def left_bytes(self) -> int:
        return self.limit_bytes - self._held_bytes

    def take(self, size_bytes: int) -> bool:
        """Take so many bytes; False, and nothing is taken, if fewer are left. A reserve that has fewer takes
        more from its source."""
        with self._lock:
            missing_bytes = size_bytes - self.left_bytes
            if missing_bytes > 0:
                if self._source is None or self._has_ended or not self._source.take(missing_bytes):
                    return False
                self.limit_bytes += missing_bytes
            self._held_bytes += size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        """Give back bytes that were taken."""
        with self._lock:
            self._held_bytes -= size_bytes
            assert self._held_bytes >= 0, "nothing is given back twice"
            self._give_to_source()

    def reserve(self, most_bytes: int) -> SpoolMemory | None:
        """Reserve memory for the spools of one object: half of what is left, and at most `most_bytes`. None
        if that is too little for any. The caller ends the reserve."""
        with self._lock:
            size_bytes = min(most_bytes, self.left_bytes // 2)
            if size_bytes < max(1, self.limit_bytes // _LEAST_PART):
                return None
            self._held_bytes += size_bytes
        return SpoolMemory(size_bytes, self)

    def end(self) -> None:
        """Let the source have what is left of a reserve, and all else as soon as it is given back."""
        with self._lock:
            assert self._source is not None, "only a reserve ends"
            self._has_ended = True
            self._give_to_source()

    def _give_to_source(self) -> None:
        if self._source is not None and self._has_ended:
            left_bytes, self.limit_bytes = self.left_bytes, self._held_bytes
            self._source.give_back(left_bytes)
