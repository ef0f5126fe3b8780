"""How many partitions have been read of late: each of their readers gets a share of the cache.

A hundred readers that lag, each with a large window, would evict from the cache what the next one comes back
for, and each byte would be fetched several times.
"""

from __future__ import annotations

import threading
from collections import Counter, deque

from stratalog.base.types import TopicIdPartition

_RECENT_COUNT = 1024
"""Reads that count as recent."""


class ActiveReaders:
    """The partitions of the recent reads. Thread-safe: `_lock` guards everything."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: deque[TopicIdPartition] = deque()
        self._counts: Counter[TopicIdPartition] = Counter()

    def note(self, tip: TopicIdPartition) -> int:
        """Note a read of a partition; returns the number of partitions with recent reads."""
        with self._lock:
            self._recent.append(tip)
            self._counts[tip] += 1
            if len(self._recent) > _RECENT_COUNT:
                forgotten = self._recent.popleft()
                self._counts[forgotten] -= 1
                if not self._counts[forgotten]:
                    del self._counts[forgotten]
            return len(self._counts)

    def leave(self, tip: TopicIdPartition) -> None:
        """Forget the reads of a partition whose reader has ended. Another one of it counts with its next
        read."""
        with self._lock:
            if self._counts.pop(tip, 0):
                self._recent = deque(one for one in self._recent if one != tip)
