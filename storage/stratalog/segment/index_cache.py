"""The indexes of old segments, as many as fit a number of bytes.

The active segment of a log keeps its own indexes in memory. Those of an older one are loaded when a read or a
retention first needs them, and forgotten when others need the room. What cannot be loaded, or turns out
wrong, is made again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from stratalog.segment.segment_indexes import SegmentIndexes

DEFAULT_MAX_BYTES = 64 * 1024 * 1024
# What an entry costs besides its bytes: objects and the key.
_OVERHEAD_BYTES = 1024


class IndexCache:
    """Indexes by the path of their segment, least recently used out first. Thread-safe."""

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._guard = threading.Lock()
        self._entries: OrderedDict[str, SegmentIndexes] = OrderedDict()
        self._size_bytes = 0

    def get(self, path: str) -> SegmentIndexes | None:
        with self._guard:
            indexes = self._entries.get(path)
            if indexes is not None:
                self._entries.move_to_end(path)
            return indexes

    def put(self, path: str, indexes: SegmentIndexes) -> None:
        """The indexes must not change any more."""
        with self._guard:
            self._remove(path)
            self._entries[path] = indexes
            self._size_bytes += _cost(indexes)
            # The newest entry stays even if it exceeds the bound by itself: somebody is about to use it.
            while self._size_bytes > self._max_bytes and len(self._entries) > 1:
                self._remove(next(iter(self._entries)))

    def remove(self, path: str) -> None:
        with self._guard:
            self._remove(path)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def check(self) -> None:
        """Invariant: the size is the sum of the entries, and bounded but for a single entry."""
        with self._guard:
            assert self._size_bytes == sum(map(_cost, self._entries.values()))
            assert self._size_bytes <= self._max_bytes or len(self._entries) == 1

    def _remove(self, path: str) -> None:
        indexes = self._entries.pop(path, None)
        if indexes is not None:
            self._size_bytes -= _cost(indexes)


def _cost(indexes: SegmentIndexes) -> int:
    return indexes.size_bytes + _OVERHEAD_BYTES
