"""Reads many partitions within one byte budget, and waits for more data if there is too little.

A fill reads local partitions one after the other in one job on the read pool, and tiered ones in parallel on
the cold pool, each with its share of the remaining budget. The tier of the first partition comes first. Data
stays with its cursor, so a wake-up continues there.

A session does not poll: it enters the signals of all its partitions, looks, and waits for a signal or for the
deadline.

After each answer the partitions that the budget did not reach come first, and the others rotate.

An answer is bounded by the session's budget and by the memory that all fetches share. A read takes its bytes
from that memory beforehand and gives back the unused ones. With little memory left answers are smaller, down
to one batch, and with scarce memory a stream does not collect ahead; no fetch waits for memory. Cold reads
are bounded too: a fetch starts as many as the pool grants one call, and leaves other partitions to its next
answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from stratalog.base.errors import LogStoreError
from stratalog.server.fetch.closing import Closing
from stratalog.server.fetch.fetch_cursor import FetchCursor, NextRead
from stratalog.server.fetch.partition_signal import waiting_for
from stratalog.server.request_memory import LEAST_FETCH_BYTES, RequestMemory
from stratalog.server.worker_pools import WorkerPools

_Answer = TypeVar("_Answer")

MAX_READS_PER_FILL = 64
"""Local reads of one cursor within a fill; a read may end at a segment's end, and tiny segments must not
starve others.
"""

MIN_TIERED_SHARE_BYTES = 64 << 10
"""A tiered read returns one batch at least, so no more of them start at once than the budget has such shares.
"""


class Answered(NamedTuple, Generic[_Answer]):
    """An answer, and the memory that it holds until it is sent."""

    answer: _Answer
    size_bytes: int


class FetchSession:
    """The cursors of one Fetch or FetchStream call. Belongs to the event loop; only `_read_local` and `_read`
    run on threads. Its creator closes it.
    """

    def __init__(
        self,
        cursors: Sequence[FetchCursor],
        pools: WorkerPools,
        closing: Closing,
        memory: RequestMemory,
        max_bytes: int,
    ) -> None:
        self.cursors = list(cursors)
        self._pools = pools
        self._closing = closing
        self._memory = memory
        self._lease = memory.lease()
        self._max_bytes = max_bytes

    def close(self) -> None:
        """Give back the memory after the last answer, or when the call has ended. Reads that still wait for a
        thread do not happen.
        """
        self._lease.close()

    @property
    def size_bytes(self) -> int:
        return sum(cursor.size_bytes for cursor in self.cursors)

    @property
    def has_news(self) -> bool:
        return any(cursor.has_news for cursor in self.cursors)

    async def collect(self, min_bytes: int, max_wait_s: float | None) -> None:
        """Fill until `min_bytes` are there, nothing more fits, a partition failed, or the wait is over.

        The wait is over after `max_wait_s` (None: with the first news, a step over a hole included), and when
        the server closes.
        """
        loop = asyncio.get_running_loop()
        deadline_s = None if max_wait_s is None else loop.time() + max_wait_s
        signals = [cursor.partition.signal for cursor in self.cursors if cursor.partition is not None]
        with waiting_for([*signals, self._closing.signal]) as changed:
            while True:
                changed.clear()
                if not self.has_news:
                    # No cursor has data to send, so there is room again.
                    for cursor in self.cursors:
                        cursor.is_full = False
                await self._fill()
                if self._is_satisfied(min_bytes) or self._closing.is_set:
                    return
                if max_wait_s is None and self.has_news:
                    return
                try:
                    async with asyncio.timeout_at(deadline_s):
                        await changed.wait()
                except TimeoutError:
                    return

    async def stream(
        self, min_bytes: int, max_wait_s: float, take: Callable[[list[FetchCursor]], _Answer]
    ) -> AsyncGenerator[_Answer, None]:
        """Yield the result of `take` for each set of cursors with news, until the server closes or no
        partition is left.

        The next answer is collected while the transport sends the last one, so a stream holds two at most;
        one where memory is scarce. A partition that failed is reported once and leaves the session.
        """
        upcoming: asyncio.Task[Answered[_Answer] | None] | None = None
        try:
            while True:
                answered = await (upcoming or self._next(min_bytes, max_wait_s, take))
                if answered is None:
                    return
                upcoming = None
                if not self.is_memory_scarce:
                    upcoming = asyncio.create_task(self._next(min_bytes, max_wait_s, take))
                yield answered.answer
                self.release(answered.size_bytes)
        finally:
            if upcoming is not None:
                upcoming.cancel()

    async def _next(
        self, min_bytes: int, max_wait_s: float, take: Callable[[list[FetchCursor]], _Answer]
    ) -> Answered[_Answer] | None:
        if not self.cursors:
            return None
        while not self.has_news:
            await self.collect(1, None)
            if self._closing.is_set:
                return None
        if max_wait_s > 0 and self.size_bytes < min_bytes:
            await self.collect(min_bytes, max_wait_s)
        return self.take_news(take)

    def take_news(self, take: Callable[[list[FetchCursor]], _Answer]) -> Answered[_Answer]:
        """The result of `take` for the cursors with news. Its bytes stay counted until `release`. Cursors
        that have failed or are done leave the session."""
        size_bytes = self.size_bytes
        unreached: list[FetchCursor] = []
        reached: list[FetchCursor] = []
        for cursor in self.cursors:
            (unreached if cursor.is_full and not cursor.has_news else reached).append(cursor)
        answer = take([cursor for cursor in reached if cursor.has_news])
        reached = [cursor for cursor in reached if cursor.error is None and not cursor.is_done]
        self.cursors = unreached + reached[1:] + reached[:1]
        for cursor in self.cursors:
            # There is room again, also for partitions that the budget did not reach.
            cursor.is_full = False
        return Answered(answer, size_bytes)

    @property
    def is_memory_scarce(self) -> bool:
        """Whether an answer must not be collected ahead."""
        return self._memory.is_scarce

    def release(self, size_bytes: int) -> None:
        """Give back the bytes of an answer that is sent."""
        self._lease.settle(size_bytes, 0)

    def _is_satisfied(self, min_bytes: int) -> bool:
        if self.size_bytes >= min(min_bytes, self._max_bytes):
            return True
        # A full cursor without data makes no answer; collecting again at once would never end. The next
        # request to the store may take long, so what the last one brought goes out first.
        return self.has_news and any(
            cursor.error is not None
            or cursor.is_full
            or (cursor.has_news and cursor.locate() is NextRead.TIERED)
            for cursor in self.cursors
        )

    async def _fill(self) -> None:
        """Read what is there, within the budget. Failures of partitions end up in their cursors."""
        tiers: dict[NextRead, list[FetchCursor]] = {}
        for cursor in self.cursors:
            source = cursor.locate()
            if source is not NextRead.NONE:
                tiers.setdefault(source, []).append(cursor)
        # In the order of their first cursors: a busy tier must not use up every answer's budget.
        for source, cursors in tiers.items():
            if source is NextRead.LOCAL:
                await self._pools.read(partial(self._read_local, cursors))
            else:
                await self._read_tiered(cursors)

    def _read_local(self, cursors: Sequence[FetchCursor]) -> None:
        for cursor in cursors:
            for _ in range(MAX_READS_PER_FILL):
                before = cursor.position
                size_bytes = self.size_bytes
                is_first = size_bytes == 0
                self._read(cursor, self._max_bytes - size_bytes, is_first=is_first, is_owed=is_first)
                # On a segment's end there may be more to read; where the rest is tiered the cold pool must
                # read it.
                if cursor.position == before or cursor.locate() is not NextRead.LOCAL:
                    break

    async def _read_tiered(self, cursors: Sequence[FetchCursor]) -> None:
        size_bytes = self.size_bytes
        budget_bytes = self._max_bytes - size_bytes
        least_count = 0 if size_bytes else 1
        most_count = min(budget_bytes // MIN_TIERED_SHARE_BYTES, self._pools.cold_share_count)
        count = min(len(cursors), max(most_count, least_count))
        for cursor in cursors[count:]:
            cursor.is_full = True
        if count:
            share_bytes = max(budget_bytes // count, 1)
            await asyncio.gather(
                *(
                    self._read_one_tiered(cursor, share_bytes, is_owed=size_bytes == 0 and index == 0)
                    for index, cursor in enumerate(cursors[:count])
                )
            )

    async def _read_one_tiered(self, cursor: FetchCursor, share_bytes: int, *, is_owed: bool) -> None:
        try:
            await self._pools.cold(lambda: self._read(cursor, share_bytes, is_first=True, is_owed=is_owed))
        except LogStoreError as error:
            # The cold pool had no room. What was read before goes out first.
            cursor.refuse(error)

    def _read(self, cursor: FetchCursor, budget_bytes: int, *, is_first: bool, is_owed: bool) -> None:
        """Read once, on a thread, as much as the memory of all fetches has room for.

        Without room, read only what the answer owes to the readers that wait for it.
        """
        wish_bytes = min(budget_bytes, cursor.max_bytes - cursor.size_bytes)
        least_bytes = min(wish_bytes, LEAST_FETCH_BYTES) if is_owed else 0
        granted_bytes = self._lease.take_up_to(wish_bytes, least_bytes)
        if not granted_bytes:
            cursor.is_full = True
            return
        used_bytes = 0
        try:
            used_bytes = cursor.read(granted_bytes, is_first=is_first)
        finally:
            self._lease.settle(granted_bytes, used_bytes)
