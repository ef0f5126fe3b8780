"""The synchronous client: the same client, on an event loop in its own thread.

Every method hands a coroutine to the loop and waits; iteration fetches as many records as are decoded at a
time. For many small sends use `SyncClient.append` with many records, or the asynchronous `Producer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor  # noqa: TID251 - an application has no Scheduler
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from stratalog.base.types import Durability
from stratalog.client.client import Client
from stratalog.client.consuming.consumer import Consumer
from stratalog.client.consuming.consumer_settings import ConsumerOptions
from stratalog.client.consuming.position import Places
from stratalog.client.retry import RetryPolicy
from stratalog.record.codecs.compression import Codec
from stratalog.record.native.consumer_records import ConsumerRecord, Decoder
from stratalog.record.record import RecordLike
from stratalog.v1 import log_pb2

_T = TypeVar("_T")


class SyncClient:
    """A connection to one server for code without an event loop. Thread-safe: its own loop does all work."""

    def __init__(self, address: str, *, retry: RetryPolicy | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stratalog-client")
        self._running = self._thread.submit(self._loop.run_forever)
        self._client = self.run(_make(address, retry))

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine that uses `client` on the client's loop, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def client(self) -> Client:
        """The asynchronous client, for use inside `run`."""
        return self._client

    def append(
        self,
        topic: str,
        partition: int,
        records: Sequence[RecordLike],
        *,
        durability: Durability | None = None,
        codec: Codec = Codec.NONE,
    ) -> log_pb2.AppendResponse:
        """Append records to one partition as one batch. Raises as `Client.append`."""
        return self.run(self._client.append(topic, partition, records, durability=durability, codec=codec))

    def consume(
        self,
        topic: str,
        *,
        start: Places = "earliest",
        until: Places | None = None,
        partitions: Sequence[int] | None = None,
        topic_id: str = "",
        decode: Decoder = None,
        **settings: Unpack[ConsumerOptions],
    ) -> Iterator[ConsumerRecord]:
        """The records from `start` to `until`. Arguments and errors are those of `Client.consume`."""
        consumer = self._client.consume(
            topic,
            start=start,
            until=until,
            partitions=partitions,
            topic_id=topic_id,
            decode=decode,
            **settings,
        )
        batches = self.run(_begin(consumer))
        try:
            while (records := self.run(_next_or_none(batches.__anext__))) is not None:
                yield from records
        finally:
            self.run(consumer.aclose())

    def close(self) -> None:
        """Close the connection, and cancel everything that still runs on the loop."""
        self.run(_end(self._client))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._running.result()
        self._thread.shutdown()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


async def _make(address: str, retry: RetryPolicy | None) -> Client:
    return Client(address, retry=retry)


async def _begin(consumer: Consumer) -> AsyncGenerator[list[ConsumerRecord], None]:
    return consumer.batches()


async def _end(client: Client) -> None:
    await client.close()
    # grpc.aio may leave a call's task that has not run to its end.
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def _next_or_none(next_answer: Callable[[], Coroutine[Any, Any, _T]]) -> _T | None:
    try:
        return await next_answer()
    except StopAsyncIteration:
        return None
