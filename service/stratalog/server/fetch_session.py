"""Reads many partitions to one byte budget, and waits for more where too little is there.

A fill first reads all local partitions in one job on the read pool, in turn, then tiered ones in parallel on
the cold pool, each with its share of what is left of the budget. What was read stays with its cursor: a
wake-up reads on from there, never again from the start.

Nothing polls. A session enters the signals of all its partitions, looks, and waits for one of them or for the
deadline.

After each answer the cursors rotate, so that partitions which the budget did not reach come first the next
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

from stratalog.base.errors import LogStoreError
from stratalog.server.closing import Closing
from stratalog.server.fetch_cursor import FetchCursor
from stratalog.server.partition_signal import waiting_for
from stratalog.server.worker_pools import WorkerPools

_Answer = TypeVar("_Answer")

MAX_READS_PER_FILL = 64
"""Local reads of one cursor within a fill; a read may end at a segment's end, and tiny segments must not
starve others.
"""

MIN_TIERED_SHARE_BYTES = 64 << 10
"""A tiered read returns one batch at least, so no more of them start at once than the budget has such shares.
"""


class FetchSession:
    """The cursors of one Fetch or FetchStream call. Belongs to the event loop; only `_read_local` runs on a
    thread.
    """

    def __init__(
        self, cursors: Sequence[FetchCursor], pools: WorkerPools, closing: Closing, max_bytes: int
    ) -> None:
        self.cursors = list(cursors)
        self._pools = pools
        self._closing = closing
        self._max_bytes = max_bytes

    @property
    def size_bytes(self) -> int:
        """Collected and not yet taken."""
        return sum(cursor.size_bytes for cursor in self.cursors)

    @property
    def has_news(self) -> bool:
        """Whether there is anything to send."""
        return any(cursor.has_news for cursor in self.cursors)

    async def collect(self, min_bytes: int, max_wait_s: float | None) -> None:
        """Fill until `min_bytes` are there, nothing more fits, a partition failed, or the wait is over.

        The wait is over after `max_wait_s` (None: never), and when the server closes.
        """
        loop = asyncio.get_running_loop()
        deadline_s = None if max_wait_s is None else loop.time() + max_wait_s
        signals = [cursor.partition.signal for cursor in self.cursors if cursor.partition is not None]
        with waiting_for([*signals, self._closing.signal]) as changed:
            while True:
                changed.clear()
                await self._fill()
                if self._is_satisfied(min_bytes) or self._closing.is_set:
                    return
                try:
                    async with asyncio.timeout_at(deadline_s):
                        await changed.wait()
                except TimeoutError:
                    return

    async def stream(
        self, min_bytes: int, max_wait_s: float, take: Callable[[list[FetchCursor]], _Answer]
    ) -> AsyncGenerator[_Answer, None]:
        """What `take` makes of each batch of news, until the server closes or no partition is left.

        The next answer is collected while the transport sends the last one, so a stream holds two at most. A
        partition that failed is reported once and leaves the session.
        """
        upcoming = asyncio.create_task(self._next(min_bytes, max_wait_s, take))
        try:
            while (answer := await upcoming) is not None:
                upcoming = asyncio.create_task(self._next(min_bytes, max_wait_s, take))
                yield answer
        finally:
            upcoming.cancel()

    async def _next(
        self, min_bytes: int, max_wait_s: float, take: Callable[[list[FetchCursor]], _Answer]
    ) -> _Answer | None:
        if not self.cursors:
            return None
        while not self.has_news:
            await self.collect(1, None)
            if self._closing.is_set:
                return None
        if max_wait_s > 0 and self.size_bytes < min_bytes:
            await self.collect(min_bytes, max_wait_s)
        answer = take([cursor for cursor in self.cursors if cursor.has_news])
        self.cursors = [cursor for cursor in self.cursors if cursor.error is None]
        for cursor in self.cursors:
            # There is room again, also for those that the budget did not reach.
            cursor.is_full = False
        if self.cursors:
            self.cursors.append(self.cursors.pop(0))
        return answer

    def _is_satisfied(self, min_bytes: int) -> bool:
        if self.size_bytes >= min(min_bytes, self._max_bytes):
            return True
        return any(cursor.error is not None or cursor.is_full for cursor in self.cursors)

    async def _fill(self) -> None:
        """Read what is there, within the budget. Failures of partitions end up in their cursors."""
        local: list[FetchCursor] = []
        tiered: list[FetchCursor] = []
        for cursor in self.cursors:
            is_local = cursor.locate()
            if is_local is not None:
                (local if is_local else tiered).append(cursor)
        if local:
            await self._pools.read(lambda: self._read_local(local))
        if tiered:
            await self._read_tiered(tiered)

    def _read_local(self, cursors: Sequence[FetchCursor]) -> None:
        for cursor in cursors:
            for _ in range(MAX_READS_PER_FILL):
                before = cursor.position
                size_bytes = self.size_bytes
                cursor.read(self._max_bytes - size_bytes, is_first=size_bytes == 0)
                # On a segment's end there may be more to read; where the rest is tiered the cold pool must
                # read it.
                if cursor.position == before or not cursor.locate():
                    break

    async def _read_tiered(self, cursors: Sequence[FetchCursor]) -> None:
        size_bytes = self.size_bytes
        budget_bytes = self._max_bytes - size_bytes
        count = min(len(cursors), max(budget_bytes // MIN_TIERED_SHARE_BYTES, 0 if size_bytes else 1))
        for cursor in cursors[count:]:
            cursor.is_full = True
        if count:
            share_bytes = max(budget_bytes // count, 1)
            await asyncio.gather(*(self._read_one_tiered(cursor, share_bytes) for cursor in cursors[:count]))

    async def _read_one_tiered(self, cursor: FetchCursor, share_bytes: int) -> None:
        try:
            await self._pools.cold(lambda: cursor.read(share_bytes, is_first=True))
        except LogStoreError as error:
            # The cold pool had no room. What was read before goes out first.
            cursor.refuse(error)
