"""Reads many partitions within one byte budget, and waits for more data if there is too little.

A fill takes what is in memory, at once on the event loop if the partitions are few, and what the system has
of the files in its memory, as far as the pass of the loop has room. Then it reads the other local partitions
of a log directory one after the other in one job on the threads of the directory, for which it waits a moment
(see `local_reads`), and starts reads of tiered ones in parallel on the cold pool, each with its share of the
remaining budget; it does not wait for these (see `tiered_reads`). The tier of the first partition comes
first. Reads of tiered partitions leave half of the budget to the local ones, and those of one log directory
leave half to the others. Data stays with its cursor, so a wake-up continues there.

A session does not poll: it enters the signals of all its partitions, looks, and waits for a signal or for the
deadline.

After each answer the partitions that the budget did not reach come first, and the others rotate.

An answer is bounded by the session's budget and by the memory that all fetches share. A read takes its bytes
from that memory beforehand and gives back the unused ones. With little memory left answers are smaller, down
to one batch, and with scarce memory a stream does not collect ahead; no fetch waits for memory. Tiered data
have a part of this memory, so that readers far behind do not make the answers of others small. Cold reads
take turns: a fetch begins as many as the pool grants one call, and leaves other partitions to its next
answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from stratalog.server.answer_turns import LARGE_BYTES
from stratalog.server.fetch.closing import Closing
from stratalog.server.fetch.fetch_cursor import FetchCursor, LocalSource, NextRead
from stratalog.server.fetch.leased_look import leased_look
from stratalog.server.fetch.local_reads import LocalReads
from stratalog.server.fetch.partition_signal import waiting_for
from stratalog.server.fetch.tiered_reads import TieredReads
from stratalog.server.request_memory import FetchMemory
from stratalog.server.worker_pools import WorkerPools

_Answer = TypeVar("_Answer")

MAX_READS_PER_FILL = 64
"""Local reads of one cursor within a fill; a read may end at a segment's end, and tiny segments must not
starve others.
"""
MAX_RECENT_COUNT = 16
"""The most cursors whose newest data the event loop takes from memory: each one takes some of its time."""

MAX_PAUSE_COUNT = 16
"""The most fills in a row that go to a thread at once after reads that the system did not have in memory. The
next ones are hardly in memory either, and each attempt takes time and asks the disk for a piece."""

LEAST_AHEAD_BYTES = 16 << 10
"""The least answer during whose sending the next one is collected."""


class Answered(NamedTuple, Generic[_Answer]):
    """An answer, and the memory that it holds until it is sent."""

    answer: _Answer
    size_bytes: int
    tiered_size_bytes: int
    """The part of the size that has come from the object store."""


def tiered_size_of(cursors: Iterable[FetchCursor]) -> int:
    """The bytes of these cursors that have come from the object store."""
    return sum(cursor.tiered_size_bytes for cursor in cursors)


class FetchSession:
    """The cursors of one Fetch or FetchStream call. Belongs to the event loop; only `_read_local` runs on a
    thread, with branches of the cursors. Its creator closes it.
    """

    def __init__(
        self,
        cursors: Sequence[FetchCursor],
        pools: WorkerPools,
        closing: Closing,
        memory: FetchMemory,
        max_bytes: int,
    ) -> None:
        self.cursors = list(cursors)
        self._pools = pools
        self._closing = closing
        self._memory = memory
        self._lease = memory.lease()
        self._tiered = TieredReads(pools, memory.tiered)
        self._local = LocalReads(pools, self._lease)
        self._max_bytes = max_bytes
        self.reader = object()
        """Stands for this call among those that take turns; it holds nothing."""
        self._has_more = False
        """The last answer had no room for all data that were there."""
        self._pause_count = 0
        """Fills until the next attempt to read what the system has in memory."""
        self._miss_count = 0
        """Attempts without success since the last one with it."""

    def close(self) -> None:
        """Give back the memory after the last answer, or when the call has ended. Reads that still wait for a
        thread do not happen.
        """
        self._lease.close()
        self._tiered.close()
        self._local.close()
        # gRPC's objects of the call hold this session, and each other until the collector comes.
        self.cursors = []

    @property
    def size_bytes(self) -> int:
        return sum(cursor.size_bytes for cursor in self.cursors)

    @property
    def tiered_size_bytes(self) -> int:
        """The part of the size that has come from the object store."""
        return tiered_size_of(self.cursors)

    @property
    def has_news(self) -> bool:
        return any(cursor.has_news for cursor in self.cursors)

    @property
    def has_progress(self) -> bool:
        """Whether reading has led to something to send."""
        return any(cursor.has_progress for cursor in self.cursors)

    @property
    def _is_behind(self) -> bool:
        """Whether there is more to read behind what was collected."""
        return any(
            cursor.size_bytes > 0 and (cursor.is_full or cursor.locate() is not NextRead.NONE)
            for cursor in self.cursors
        )

    async def collect(self, min_bytes: int, max_wait_s: float | None) -> None:
        """Fill until `min_bytes` are there, nothing more fits, a partition failed, or the wait is over.

        The wait is over after `max_wait_s` (None: with the first news, a step over a hole included), and when
        the server closes. While there is nothing to send, it lasts as long as a read in flight.
        """
        loop = asyncio.get_running_loop()
        deadline_s = None if max_wait_s is None else loop.time() + max_wait_s
        self._tiered.is_fruitless = False
        takes_news = max_wait_s is None
        has_looked = self._has_more
        # Where the last answer had no room for all there was, no signal is needed to find the rest.
        if has_looked and await self._is_filled(min_bytes, takes_news=takes_news, has_looked=False):
            return
        signals = [cursor.partition.signal for cursor in self.cursors if cursor.partition is not None]
        arrived = (self._tiered.arrived, self._local.arrived)
        with waiting_for([*signals, *arrived, self._closing.signal]) as changed:
            while not await self._is_filled(min_bytes, takes_news=takes_news, has_looked=has_looked):
                has_looked = True
                is_promised = self._tiered.is_promising or self._local.is_promising
                is_owed = is_promised and not self.has_progress
                if deadline_s is None or is_owed:
                    await changed.wait()
                else:
                    try:
                        async with asyncio.timeout_at(deadline_s):
                            await changed.wait()
                    except TimeoutError:
                        return
                changed.clear()

    async def _is_filled(self, min_bytes: int, *, takes_news: bool, has_looked: bool) -> bool:
        """Read what is there, and return whether the answer is complete."""
        if not self.has_progress:
            # No cursor has data to send, so there is room again.
            for cursor in self.cursors:
                cursor.is_full = False
        # What a read of the object store has brought goes out before the next one begins.
        if not has_looked or not self._is_satisfied(min_bytes):
            await self._fill()
        is_enough = self._is_satisfied(min_bytes) or (takes_news and self.has_news)
        if is_enough or self._closing.is_set:
            await self._tiered.wait_a_moment()
            return True
        return False

    async def stream(
        self, min_bytes: int, max_wait_s: float, take: Callable[[list[FetchCursor]], _Answer]
    ) -> AsyncGenerator[_Answer, None]:
        """Yield the result of `take` for each set of cursors with news, until the server closes or no
        partition is left.

        The next answer is collected while the transport sends a large one, so a stream holds two at most; one
        where memory is scarce. A partition that failed is reported once and leaves the session.
        """
        upcoming: asyncio.Task[Answered[_Answer] | None] | None = None
        try:
            while True:
                answered = await (upcoming or self._next(min_bytes, max_wait_s, take))
                if answered is None:
                    return
                upcoming = None
                # Sending a small answer takes less time than another task.
                if answered.size_bytes >= LEAST_AHEAD_BYTES and self.may_collect_behind(answered):
                    upcoming = asyncio.create_task(self._next(min_bytes, max_wait_s, take))
                yield answered.answer
                self.release(answered)
        finally:
            if upcoming is not None:
                upcoming.cancel()
            for cursor in self.cursors:
                cursor.leave()

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
        if self.size_bytes >= LARGE_BYTES and self._is_behind:
            # Small answers take no turn. Others wait only to be sent: the readers that an append has woken
            # share the encoding.
            await self._pools.turns.take(self.size_bytes, self.tiered_size_bytes, self.reader)
        return self.take_news(take)

    def take_news(self, take: Callable[[list[FetchCursor]], _Answer]) -> Answered[_Answer]:
        """The result of `take` for the cursors with news. Its bytes stay counted until `release`. Cursors
        that have failed or are done leave the session."""
        size_bytes, tiered_size_bytes = self.size_bytes, self.tiered_size_bytes
        unreached: list[FetchCursor] = []
        reached: list[FetchCursor] = []
        for cursor in self.cursors:
            (unreached if cursor.is_full and not cursor.has_news else reached).append(cursor)
        answer = take([cursor for cursor in reached if cursor.has_news])
        reached = [cursor for cursor in reached if cursor.error is None and not cursor.is_done]
        self.cursors = unreached + reached[1:] + reached[:1]
        self._has_more = any(cursor.is_full for cursor in self.cursors)
        for cursor in self.cursors:
            # There is room again, also for partitions that the budget did not reach.
            cursor.is_full = False
        return Answered(answer, size_bytes, tiered_size_bytes)

    def may_collect_behind(self, answered: Answered[_Answer]) -> bool:
        """Whether the next answer may be collected before this one is sent: not with scarce memory."""
        is_tiered_scarce = answered.tiered_size_bytes > 0 and self._memory.tiered.is_scarce
        return not (self._memory.is_scarce or is_tiered_scarce)

    def release(self, answered: Answered[_Answer]) -> None:
        """Give back the bytes of an answer that is sent."""
        self._lease.settle(answered.size_bytes - answered.tiered_size_bytes, 0)
        self._tiered.release(answered.tiered_size_bytes)

    def _is_satisfied(self, min_bytes: int) -> bool:
        if self.size_bytes >= min(min_bytes, self._max_bytes):
            return True
        # A full cursor without data makes no answer; collecting again at once would never end. The next
        # request to the store may take long, so what the last one brought goes out first.
        return self.has_progress and any(
            cursor.error is not None
            or cursor.is_full
            or (cursor.has_progress and cursor.locate() is NextRead.TIERED)
            for cursor in self.cursors
        )

    async def _fill(self) -> None:
        """Read what is there, within the budget. Failures of partitions end up in their cursors."""
        self._tiered.check()
        self._local.check()
        tiers: dict[NextRead, list[FetchCursor]] = {}
        for cursor in self.cursors:
            is_in_flight = cursor in self._tiered or cursor in self._local
            source = NextRead.NONE if is_in_flight else cursor.locate()
            if source is not NextRead.NONE:
                tiers.setdefault(source, []).append(cursor)
        # In the order of their first cursors: a busy tier must not use up every answer's budget.
        for source, cursors in tiers.items():
            if source is NextRead.LOCAL:
                is_few = len(cursors) <= MAX_RECENT_COUNT
                await self._read_files(self._read_at_once(cursors) if is_few else cursors)
            else:
                has_others = len(cursors) + len(self._tiered) < len(self.cursors)
                budget_bytes = self._max_bytes // 2 if has_others else self._max_bytes
                left_bytes = min(budget_bytes - self._tiered.reserved_bytes, self._left_bytes)
                self._tiered.start(cursors, max(left_bytes, 0), is_owed=self.size_bytes == 0)

    @property
    def _left_bytes(self) -> int:
        """The budget of the answer beyond what is there and what reads in flight may bring."""
        reserved_bytes = self._tiered.reserved_bytes + self._local.reserved_bytes
        return self._max_bytes - self.size_bytes - reserved_bytes

    def _read_at_once(self, cursors: Sequence[FetchCursor]) -> list[FetchCursor]:
        """Read what takes no wait for the disk, and return the cursors that a thread must read."""
        left = [cursor for cursor in cursors if not self._read_here(cursor, LocalSource.RECENT)]
        if left and self._pause_count:
            self._pause_count -= 1
            return left
        return [cursor for cursor in left if not self._read_cached(cursor)]

    def _read_here(self, cursor: FetchCursor, source: LocalSource) -> bool:
        return self._read_one(cursor, self._left_bytes, is_first=self.size_bytes == 0, source=source)

    def _read_cached(self, cursor: FetchCursor) -> bool:
        """Read a cursor's files as far as the system has them in memory, if the pass of the loop has room for
        it. Returns False if a thread must read more of it."""
        wish_bytes = min(self._left_bytes, cursor.max_bytes - cursor.size_bytes)
        if not self._pools.may_read_here(wish_bytes):
            return False
        before_bytes = cursor.size_bytes
        is_read = self._read_here(cursor, LocalSource.CACHED)
        self._pools.add_read_here(cursor.size_bytes - before_bytes)
        self._miss_count = 0 if is_read else self._miss_count + 1
        if self._miss_count > 1:
            # The first read of a file is always one.
            self._pause_count = min(2 ** (self._miss_count - 2), MAX_PAUSE_COUNT)
        return is_read

    async def _read_files(self, cursors: Sequence[FetchCursor]) -> None:
        """Read cursors on threads, those of each log directory together. Cursors of a directory that is being
        read wait for that."""
        groups = [
            (directory, of_directory)
            for directory, of_directory in _by_directory(cursors).items()
            if not self._local.has_read_in(directory)
        ]
        for number, (directory, of_directory) in enumerate(groups):
            share_bytes = self._left_bytes // (len(groups) - number)
            if self._has_others(directory):
                # Its disk may hang, and would keep the budget of the others.
                share_bytes = min(share_bytes, self._max_bytes // 2)
            read = partial(self._read_local, is_first=self.size_bytes == 0)
            await self._local.read(directory, of_directory, share_bytes, read)

    def _has_others(self, directory: str) -> bool:
        """Whether a partition is in another log directory."""
        return any(
            cursor.partition is not None and cursor.partition.log_dir != directory for cursor in self.cursors
        )

    def _read_local(self, branches: Sequence[FetchCursor], budget_bytes: int, *, is_first: bool) -> None:
        for branch in branches:
            self._read_one(branch, budget_bytes, is_first=is_first, source=LocalSource.FILES)
            budget_bytes -= branch.size_bytes
            is_first = is_first and not branch.size_bytes

    def _read_one(self, cursor: FetchCursor, left_bytes: int, *, is_first: bool, source: LocalSource) -> bool:
        """Read a cursor's local data within the rest of the budget; `is_first`: the answer has nothing yet.
        Returns False if the source does not have more of it."""
        for _ in range(MAX_READS_PER_FILL):
            before = cursor.position
            budget_bytes = max(left_bytes, 1) if is_first else left_bytes
            found = leased_look(
                self._lease,
                cursor,
                budget_bytes,
                is_first=is_first,
                is_owed=is_first,
                source=source,
            )
            if found.is_in_file:
                return False
            size_bytes = cursor.accept(found)
            left_bytes -= size_bytes
            is_first = is_first and not size_bytes
            # On a segment's end there may be more to read; where the rest is tiered the cold pool must read
            # it.
            if cursor.position == before or cursor.is_at_log_end or cursor.locate() is not NextRead.LOCAL:
                break
        return True


def _by_directory(cursors: Sequence[FetchCursor]) -> dict[str, list[FetchCursor]]:
    """The cursors by the log directories of their partitions, in the order of the first of each."""
    found: dict[str, list[FetchCursor]] = {}
    for cursor in cursors:
        assert cursor.partition is not None, "it has something to read"
        found.setdefault(cursor.partition.log_dir, []).append(cursor)
    return found
