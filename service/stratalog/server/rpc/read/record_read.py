"""One read of plain records: it fetches batches, makes responses of their records, and sends heartbeats.

The batches of the next answer are fetched while those of the last one are decoded and sent, unless memory is
scarce. Decoding runs on the read pool, one response at a time, and only once the transport has taken the
response before. So a slow reader holds two answers of batches, one batch that is being decoded, and one
response.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, Callable
from functools import partial

from stratalog.server.fetch.closing import Closing
from stratalog.server.fetch.fetch_cursor import FetchCursor
from stratalog.server.fetch.fetch_session import Answered, FetchSession
from stratalog.server.fetch.partition_signal import PartitionSignal, waiting_for
from stratalog.server.rpc.read.read_encoding import FetchedBatches, ReadEncoder, take_batches
from stratalog.server.worker_pools import WorkerPools


class _End(enum.Enum):
    """The end of the responses of an answer."""

    END = "end"


class RecordRead:
    """One call of Read. Belongs to the event loop. Its creator closes it."""

    def __init__(
        self,
        session: FetchSession,
        encoder: ReadEncoder,
        pools: WorkerPools,
        closing: Closing,
        added: Callable[[], list[FetchCursor]],
        *,
        heartbeat_s: float,
        fetches_ahead: bool,
    ) -> None:
        """`added` returns cursors of partitions that were added to the topic since the last call."""
        self._session = session
        self._encoder = encoder
        self._pools = pools
        self._closing = closing
        self._added = added
        self._heartbeat_s = heartbeat_s
        self._fetches_ahead = fetches_ahead
        self._failed = PartitionSignal(asyncio.get_running_loop())

    def close(self) -> None:
        """Give back the memory, after the last response or when the call has ended."""
        self._session.close()
        self._encoder.close()

    async def responses(self) -> AsyncGenerator[bytes, None]:
        """Yield serialised responses, with heartbeats between them. Raises LogStoreError."""
        source = self._record_responses()
        upcoming: asyncio.Task[bytes | None] | None = None
        try:
            while True:
                upcoming = asyncio.ensure_future(anext(source, None))
                while not (await asyncio.wait({upcoming}, timeout=self._heartbeat_s))[0]:
                    yield self._encoder.heartbeat()
                response = upcoming.result()
                if response is None:
                    return
                yield response
        finally:
            if upcoming is not None and not upcoming.done():
                upcoming.cancel()
                await asyncio.wait({upcoming})
            await source.aclose()

    async def _record_responses(self) -> AsyncGenerator[bytes, None]:
        upcoming: asyncio.Task[Answered[list[FetchedBatches]] | None] | None = None
        try:
            while not self._encoder.is_finished:
                self._closing.check()
                answered = await (upcoming or self._next())
                upcoming = None
                if answered is None:
                    return
                if self._fetches_ahead and self._session.may_collect_behind(answered):
                    upcoming = asyncio.create_task(self._next())
                steps = self._encoder.responses(answered.answer)
                while (response := await self._pools.compute(partial(next, steps, _End.END))) is not _End.END:
                    if response is not None:
                        # The records of both tiers are mixed in it.
                        tiered_bytes = min(len(response), answered.tiered_size_bytes)
                        await self._pools.turns.take(len(response), tiered_bytes)
                        yield response
                self._session.release(answered)
                self._leave_failed()
        finally:
            if upcoming is not None:
                upcoming.cancel()

    async def _next(self) -> Answered[list[FetchedBatches]] | None:
        """Batches of the partitions with news; None once no partition is left. Raises StoppingError."""
        while True:
            signals = [one.partition.signal for one in self._session.cursors if one.partition is not None]
            with waiting_for([*signals, self._failed, self._closing.signal]) as changed:
                self._session.cursors += self._added()
                if not self._session.cursors:
                    return None
                await self._session.collect(1, 0)
                if self._session.has_news:
                    return self._session.take_news(take_batches)
                self._closing.check()
                await changed.wait()

    def _leave_failed(self) -> None:
        """Let partitions whose records cannot be decoded leave the session."""
        for cursor in self._session.cursors:
            failure = self._encoder.failures.get(cursor.topic_partition.partition)
            if failure is not None and cursor.error is None:
                cursor.error = failure
                self._failed.notify()
