"""The reads of local files that a session has in flight, one for each log directory at most.

They outlast an answer, so a disk that hangs holds up no data of other directories: its partitions follow once
they have been read. The answer that has begun a read waits a moment for it, because most disks answer within
one, and what they have belongs into the same answer.

A thread reads branches of the cursors, and the session goes on with the cursors meanwhile. A read has its
share of the budget until it ends, in whichever answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from stratalog.server.fetch.fetch_cursor import FetchCursor
from stratalog.server.fetch.partition_signal import PartitionSignal
from stratalog.server.fetch.tiered_reads import PATIENCE_S
from stratalog.server.request_memory import MemoryLease
from stratalog.server.worker_pools import WorkerPools

ReadBranches: TypeAlias = "Callable[[Sequence[FetchCursor], int], None]"
"""Reads branches of cursors within so many bytes, on a thread."""


class _Running(NamedTuple):
    """A read in flight."""

    reading: asyncio.Future[None]
    cursors: Sequence[FetchCursor]
    branches: Sequence[FetchCursor]
    reserved_bytes: int


class LocalReads:
    """The reads in flight of one session. Belongs to the event loop; the reads run on the threads of their
    directories."""

    def __init__(self, pools: WorkerPools, lease: MemoryLease) -> None:
        """`lease` has the bytes of what is read."""
        self._pools = pools
        self._lease = lease
        self._running: dict[str, _Running] = {}
        self._cursors: set[FetchCursor] = set()
        """Those of all reads in flight."""
        self._failure: BaseException | None = None
        self._late: set[str] = set()
        """The directories whose reads have outlasted the patience of their answer."""
        self.arrived = PartitionSignal(asyncio.get_running_loop())
        """A late read has ended."""

    def __contains__(self, cursor: FetchCursor) -> bool:
        return cursor in self._cursors

    @property
    def is_promising(self) -> bool:
        """Whether a read is in flight, for which an answer without data waits."""
        return bool(self._running)

    @property
    def reserved_bytes(self) -> int:
        """The budget of the reads in flight."""
        return sum(one.reserved_bytes for one in self._running.values())

    def has_read_in(self, directory: str) -> bool:
        """Whether a read of the log directory is in flight."""
        return directory in self._running

    async def read(
        self, directory: str, cursors: Sequence[FetchCursor], budget_bytes: int, read: ReadBranches
    ) -> None:
        """Read cursors of a log directory without a read in flight, and wait a moment for what they get."""
        branches = [cursor.branch() for cursor in cursors]
        reading = self._pools.begin_read(directory, partial(read, branches, budget_bytes))
        self._running[directory] = _Running(reading, cursors, branches, max(budget_bytes, 0))
        self._cursors.update(cursors)
        reading.add_done_callback(partial(self._end, directory))
        await asyncio.wait([reading], timeout=PATIENCE_S)
        if directory in self._running:
            self._late.add(directory)
        self.check()

    def check(self) -> None:
        """Raise the error of a read that was not an error of its partition."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Wait for no read any more. Those that still wait for a thread do not happen; the others keep their
        thread until the disk answers."""
        for one in self._running.values():
            one.reading.cancel()

    def _end(self, directory: str, reading: asyncio.Future[None]) -> None:
        ended = self._running.pop(directory)
        self._cursors.difference_update(ended.cursors)
        if reading.cancelled():
            return
        self._failure = self._failure or reading.exception()
        for cursor, branch in zip(ended.cursors, ended.branches, strict=True):
            if cursor.error is None:
                cursor.absorb(branch)
            else:
                # It has failed meanwhile, and sends nothing any more.
                self._lease.settle(branch.size_bytes, 0)
        if directory in self._late:
            self._late.discard(directory)
            self.arrived.notify()
