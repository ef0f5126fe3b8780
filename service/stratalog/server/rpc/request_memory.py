"""The memory that requests may take over all connections together, counted in bytes of record batches.

There are two counts of this kind, one for appends and one for the answers of fetches, so that readers who do
not read cannot keep writers out, nor the reverse. Appends know their size: one that does not fit is refused
and may be sent again. A fetch learns its size by reading: it takes what it may read beforehand, gives back
what it did not use, and gets a smaller answer where little is left, down to `LEAST_FETCH_BYTES` or one batch.
That last share is granted even where nothing is left, because a fetch that waited for room could wait for
ever behind readers who never take their answers. So appends never exceed their limit, and fetches exceed
theirs by one batch each at most.

Who holds bytes holds a lease. Closing it, which may happen twice, gives back all that is left; so nothing can
be given back twice or be forgotten behind a failure, whichever of two threads comes first.
"""

from __future__ import annotations

import threading

from stratalog.base.errors import OverloadedError

LEAST_FETCH_BYTES = 64 << 10


class RequestMemory:
    """Thread-safe: `_lock` guards the count."""

    def __init__(self, limit_bytes: int) -> None:
        assert limit_bytes > 0
        self.limit_bytes = limit_bytes
        self._held_bytes = 0
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """The sum over all leases."""
        return self._held_bytes

    @property
    def is_scarce(self) -> bool:
        """More than half is taken: who can hold still should."""
        return self._held_bytes * 2 > self.limit_bytes

    def lease(self, size_bytes: int = 0) -> MemoryLease:
        """A lease of `size_bytes`; of none, always. Raises OverloadedError where less is left."""
        with self._lock:
            if size_bytes and size_bytes > self.limit_bytes - self._held_bytes:
                raise OverloadedError(
                    "too many bytes of requests are under way, send it again after a pause",
                    size_bytes=size_bytes,
                    held_bytes=self._held_bytes,
                    limit_bytes=self.limit_bytes,
                )
            self._held_bytes += size_bytes
        return MemoryLease(self, size_bytes)

    def take_up_to(self, size_bytes: int, least_bytes: int) -> int:
        """Take what is left of `size_bytes`, and `least_bytes` in any case; returns how much that is."""
        with self._lock:
            granted_bytes = max(min(size_bytes, self.limit_bytes - self._held_bytes), least_bytes)
            self._held_bytes += granted_bytes
        return granted_bytes

    def add(self, size_bytes: int) -> None:
        """Count bytes that are there already (or, below zero, no longer)."""
        with self._lock:
            self._held_bytes += size_bytes
            assert self._held_bytes >= 0, "nothing is given back twice"


class MemoryLease:
    """What one request holds of a `RequestMemory`. Thread-safe: `_lock` guards the size."""

    __slots__ = ("_is_closed", "_lock", "_memory", "_size_bytes")

    def __init__(self, memory: RequestMemory, size_bytes: int) -> None:
        """Use `RequestMemory.lease`; `size_bytes` are taken already."""
        self._memory = memory
        self._size_bytes = size_bytes
        self._is_closed = False
        self._lock = threading.Lock()

    def take_up_to(self, size_bytes: int, least_bytes: int) -> int:
        """As `RequestMemory.take_up_to`; nothing once the lease is closed. Tell `settle` what came of it."""
        with self._lock:
            if self._is_closed or size_bytes <= 0:
                return 0
            granted_bytes = self._memory.take_up_to(size_bytes, least_bytes)
            self._size_bytes += granted_bytes
        return granted_bytes

    def settle(self, granted_bytes: int, used_bytes: int) -> None:
        """Of `granted_bytes` so much is used: the difference goes back, or is taken in addition."""
        with self._lock:
            if not self._is_closed:
                self._memory.add(used_bytes - granted_bytes)
                self._size_bytes += used_bytes - granted_bytes
                assert self._size_bytes >= 0, "a lease gives back what it has"

    def close(self) -> None:
        """Give back everything, for good."""
        with self._lock:
            self._is_closed = True
            self._memory.add(-self._size_bytes)
            self._size_bytes = 0
