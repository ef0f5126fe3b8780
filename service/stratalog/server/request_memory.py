"""The memory for the record batches of all requests together, in bytes.

There are two of these counts, one for appends and one for answers of fetches, so that stalled readers cannot
keep writers out, nor the reverse. An append knows its size: if it does not fit it is refused and may be sent
again. A fetch learns its size by reading: it takes memory beforehand, gives back the unused part, and gets a
smaller answer if little is left, down to `LEAST_FETCH_BYTES` or one batch. That last share is always granted,
because a fetch that waited could wait for ever behind readers that never take their answers. So appends never
exceed their limit, and each fetch exceeds its limit by one batch at most.

Reads of tiered data have a part of the memory of fetches (`within`), so that readers that are far behind
leave memory to those at the end of the log. Appends at `object` have a part of the memory of appends, because
they hold theirs for as long as the store does not answer.

A lease holds the bytes of a request. Closing it, which may happen twice, gives back the rest, so no bytes are
given back twice or lost after a failure, whichever of two threads comes first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from stratalog.base.errors import OverloadedError, RecordTooLargeError

LEAST_FETCH_BYTES = 64 << 10


class RequestMemory:
    """Counts the memory of the record batches of requests. Thread-safe: `_lock` guards everything."""

    def __init__(self, limit_bytes: int, within: RequestMemory | None = None) -> None:
        """Bytes of a memory `within` another one are taken from both."""
        assert limit_bytes > 0
        self.limit_bytes = limit_bytes
        self._within = within
        self._held_bytes = 0
        self._refused_count = 0
        self._reduced_count = 0
        self._at_release: set[Callable[[], None]] = set()
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def refused_count(self) -> int:
        """Leases that were refused since the start."""
        return self._refused_count

    @property
    def reduced_count(self) -> int:
        """Requests for memory that got less than they asked for, since the start."""
        return self._reduced_count

    @property
    def is_scarce(self) -> bool:
        """Whether more than half is taken, so that streams slow down."""
        return self._held_bytes * 2 > self.limit_bytes

    def lease(self, size_bytes: int = 0) -> MemoryLease:
        """A lease of `size_bytes`. Raises OverloadedError if less is left, RecordTooLargeError if
        so much is never left; nothing for 0 bytes."""
        self.take(size_bytes)
        return MemoryLease(self, size_bytes)

    def take(self, size_bytes: int) -> None:
        """Take all of `size_bytes`. Raises as `lease` does, and takes nothing then. A part refuses nothing
        by itself."""
        if self._within is not None:
            self._within.take(size_bytes)
            with self._lock:
                self._held_bytes += size_bytes
            return
        with self._lock:
            if size_bytes and size_bytes > self.limit_bytes - self._held_bytes:
                self._refused_count += 1
                if size_bytes > self.limit_bytes:
                    raise _too_large(size_bytes, self.limit_bytes)
                raise OverloadedError(
                    "the running requests take all memory, send the request again after a pause",
                    size_bytes=size_bytes,
                    held_bytes=self._held_bytes,
                    limit_bytes=self.limit_bytes,
                )
            self._held_bytes += size_bytes

    def take_up_to(self, size_bytes: int, least_bytes: int) -> int:
        """Take up to `size_bytes` of the rest, but at least `least_bytes`; returns the bytes taken."""
        with self._lock:
            granted_bytes = max(min(size_bytes, self.limit_bytes - self._held_bytes), least_bytes)
            if self._within is not None:
                granted_bytes = self._within.take_up_to(granted_bytes, least_bytes)
            self._held_bytes += granted_bytes
            self._reduced_count += granted_bytes < size_bytes
        return granted_bytes

    def add(self, size_bytes: int) -> None:
        """Add bytes that are taken already, or subtract them if negative."""
        if self._within is not None:
            self._within.add(size_bytes)
        with self._lock:
            self._held_bytes += size_bytes
            assert self._held_bytes >= 0, "nothing is given back twice"
            if size_bytes >= 0 or not self._at_release:
                return
            calls, self._at_release = self._at_release, set()
        for call in calls:
            call()

    def call_at_release(self, call: Callable[[], None]) -> None:
        """Call once, from any thread, when bytes are given back; at once if there is room."""
        with self._lock:
            if self._held_bytes >= self.limit_bytes:
                self._at_release.add(call)
                return
        if self._within is None:
            call()
        else:
            self._within.call_at_release(call)


class MemoryLease:
    """The share of one request in a `RequestMemory`. Thread-safe: `_lock` guards the size."""

    __slots__ = (
        "_extra_bytes",
        "_is_closed",
        "_lock",
        "_memory",
        "_size_bytes",
        "leased_bytes",
        "unpacked_bytes",
    )

    def __init__(self, memory: RequestMemory, size_bytes: int) -> None:
        """Use `RequestMemory.lease`; `size_bytes` are taken already."""
        self.leased_bytes = size_bytes
        """The size at its begin."""
        self.unpacked_bytes = 0
        """The bytes that compressed batches have become so far, also those that were refused. The thread that
        decompresses them changes it."""
        self._memory = memory
        self._size_bytes = size_bytes
        self._extra_bytes = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def hold(self, size_bytes: int) -> None:
        """Hold so many bytes of a decompressed batch beside the others, in place of those of the last such
        call; nothing once closed. Raises OverloadedError if less is left, RecordTooLargeError if so much is
        never left beside the request, and changes nothing then."""
        with self._lock:
            if self._is_closed:
                return
            more_bytes = size_bytes - self._extra_bytes
            whole_bytes = self._size_bytes + more_bytes
            if more_bytes > 0 and whole_bytes > self._memory.limit_bytes:
                # The request alone would never have room, so a retry would fail for ever.
                raise _too_large(whole_bytes, self._memory.limit_bytes)
            if more_bytes > 0:
                self._memory.take(more_bytes)
            else:
                self._memory.add(more_bytes)
            self._extra_bytes += more_bytes
            self._size_bytes += more_bytes

    def count(self, size_bytes: int) -> None:
        """Note that so many bytes were decompressed."""
        self.unpacked_bytes += size_bytes

    def take_up_to(self, size_bytes: int, least_bytes: int) -> int:
        """Call `RequestMemory.take_up_to`; returns 0 once closed. Pass the result to `settle`."""
        with self._lock:
            if self._is_closed or size_bytes <= 0:
                return 0
            granted_bytes = self._memory.take_up_to(size_bytes, least_bytes)
            self._size_bytes += granted_bytes
        return granted_bytes

    def settle(self, granted_bytes: int, used_bytes: int) -> None:
        """Give back the unused part of `granted_bytes`, or take more if more was used."""
        with self._lock:
            if not self._is_closed:
                self._memory.add(used_bytes - granted_bytes)
                self._size_bytes += used_bytes - granted_bytes
                assert self._size_bytes >= 0, "a lease gives back what it has"

    def call_at_release(self, call: Callable[[], None]) -> None:
        """Call `RequestMemory.call_at_release`."""
        self._memory.call_at_release(call)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._memory.add(-self._size_bytes)
            self._size_bytes = 0


def _too_large(size_bytes: int, limit_bytes: int) -> RecordTooLargeError:
    """The error of an append that needs more than all memory of appends."""
    return RecordTooLargeError(
        "the append needs more memory than all appends have together, half of max-request-memory; send"
        " smaller batches, or raise max-request-memory",
        size_bytes=size_bytes,
        max_bytes=limit_bytes,
    )


class AppendMemory(RequestMemory):
    """The memory of all appends. Thread-safe, as its base."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._commits = RequestMemory(limit_bytes, self)
        """That of appends at `object`."""
        self.commit_share_bytes = limit_bytes * 3 // 4
        """One more append at `object` is refused from here on. The last one may exceed it: a large one would
        never fit."""

    def lease_for_commit(self, size_bytes: int) -> MemoryLease:
        """A lease of an append at `object`. Raises as `lease` does, and OverloadedError if those that wait
        for the store hold three quarters of the memory."""
        commits = self._commits
        if commits.held_bytes >= self.commit_share_bytes:
            with self._lock:
                self._refused_count += 1
            raise OverloadedError(
                "appends at `object` take all memory that they may have, because the object store does not"
                " answer or is slow; send the request again after a pause, or raise --max-request-memory of"
                " the server",
                size_bytes=size_bytes,
                held_bytes=commits.held_bytes,
                limit_bytes=self.commit_share_bytes,
            )
        return commits.lease(size_bytes)


class FetchMemory(RequestMemory):
    """The memory of all fetches. Thread-safe, as its base."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.tiered = RequestMemory(max(limit_bytes // 4, 1), self)
        """The quarter that may hold tiered data. Full, it leaves memory that is not scarce."""


class RequestMemories(NamedTuple):
    """The two counts of a server."""

    appends: AppendMemory
    """Bytes of running appends."""
    fetches: FetchMemory
    """Bytes of fetch answers that are not sent yet."""
