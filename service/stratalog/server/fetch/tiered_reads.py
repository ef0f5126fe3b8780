"""The reads of the object store that a session has in flight, one for each partition at most.

They outlast an answer, so a store that is slow holds up no local data of the session: its partitions follow
once they have been read. A read has its share of the answer's budget until it ends, in whichever answer. An
answer waits for reads that have just begun, because what is in memory comes within a moment, and belongs into
the same answer.

Reads of all sessions take turns. One that waits for its turn is as one in flight: its partition stays in the
session, and the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from stratalog.server.fetch.fetch_cursor import FetchCursor, Found
from stratalog.server.fetch.leased_look import leased_look
from stratalog.server.fetch.partition_signal import PartitionSignal
from stratalog.server.request_memory import RequestMemory
from stratalog.server.worker_pools import WorkerPools

PATIENCE_S: Final = 0.02
"""An answer with data waits so long for a read, counted from its begin."""
_LEAST_SHARE_BYTES: Final = 64 << 10
"""A read returns one batch at least, so no more of them start at once than the budget has such shares."""


class _Running(NamedTuple):
    """A read in flight."""

    task: asyncio.Task[None]
    reserved_bytes: int
    begin_s: float


class TieredReads:
    """The reads in flight of one session. Belongs to the event loop; the reads run on the cold pool."""

    def __init__(self, pools: WorkerPools, memory: RequestMemory) -> None:
        """`memory` is for the data of all sessions."""
        self._pools = pools
        self._lease = memory.lease()
        self._running: dict[FetchCursor, _Running] = {}
        self._failure: Exception | None = None
        self.is_fruitless = False
        """A read has brought nothing since the session cleared this."""
        self.arrived = PartitionSignal(asyncio.get_running_loop())
        """A read has ended."""

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, cursor: FetchCursor) -> bool:
        return cursor in self._running

    @property
    def is_promising(self) -> bool:
        """Whether an answer should wait for a read in flight, beyond its deadline."""
        return bool(self._running) and not self.is_fruitless

    @property
    def reserved_bytes(self) -> int:
        """The budget of the reads in flight."""
        return sum(one.reserved_bytes for one in self._running.values())

    def start(self, cursors: Sequence[FetchCursor], budget_bytes: int, *, is_owed: bool) -> None:
        """Read cursors that are not in flight, each with its share of the budget, and leave those without
        one to the next answer. `is_owed`: the answer has nothing yet, so one read begins in any case."""
        least_count = 1 if is_owed and not self._running else 0
        # What one call may start, less what it has.
        most_count = min(
            budget_bytes // _LEAST_SHARE_BYTES, max(self._pools.cold_share_count - len(self._running), 0)
        )
        count = min(len(cursors), max(most_count, least_count))
        for cursor in cursors[count:]:
            cursor.is_full = True
        share_bytes = max(budget_bytes // count, 1) if count else 0
        begin_s = asyncio.get_running_loop().time()
        for index, cursor in enumerate(cursors[:count]):
            reserved_bytes = min(share_bytes, cursor.max_bytes - cursor.size_bytes)
            reading = self._read(cursor, share_bytes, reserved_bytes, least_count > 0 and index == 0)
            self._running[cursor] = _Running(asyncio.create_task(reading), reserved_bytes, begin_s)

    async def wait_a_moment(self) -> None:
        """Wait for the reads that have just begun."""
        now_s = asyncio.get_running_loop().time()
        young = [one for one in self._running.values() if one.begin_s + PATIENCE_S > now_s]
        if young:
            timeout_s = max(one.begin_s for one in young) + PATIENCE_S - now_s
            await asyncio.wait([one.task for one in young], timeout=timeout_s)

    def check(self) -> None:
        """Raise the error of a read that was not an error of its partition."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Wait for no read any more, and give back the memory. Those that still wait for their turn or for a
        thread do not happen; the others keep their thread until the store answers."""
        self._lease.close()
        for one in self._running.values():
            one.task.cancel()

    def release(self, size_bytes: int) -> None:
        """Give back bytes that are sent."""
        self._lease.settle(size_bytes, 0)

    async def _read(self, cursor: FetchCursor, share_bytes: int, reserved_bytes: int, is_owed: bool) -> None:
        look = partial(leased_look, self._lease, cursor, share_bytes, is_first=True, is_owed=is_owed)
        found = Found()
        try:
            found = await self._pools.cold_read(look, reserved_bytes, lambda found: found.size_bytes)
        except Exception as failure:  # noqa: BLE001 - the session raises it
            self._failure = failure
        else:
            if found.lacks_memory:
                # The answer owes data to another read, so that this one may wait.
                self._lease.call_at_release(self.arrived.notify)
            elif found.data is None and found.error is None:
                # The metadata are behind: the session reads again, and not at once.
                self.is_fruitless = True
                await asyncio.sleep(PATIENCE_S)
        finally:
            del self._running[cursor]
            cursor.tiered_size_bytes += cursor.accept(found)
            if not found.lacks_memory or not self._running:
                self.arrived.notify()
