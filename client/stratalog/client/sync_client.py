"""The synchronous client: the names of the asynchronous one, for threads without an event loop.

A client has an event loop in a thread of its own. Each call hands a coroutine to the loop and waits for it;
iteration asks the loop for one element after the other. A producer's `send` does not go through the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import operator
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor  # noqa: TID251 - an application has no Scheduler
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from stratalog.client.admin import Admin
from stratalog.client.client import Client
from stratalog.client.consuming.consumer import Consumer
from stratalog.client.errors import BufferFullError
from stratalog.client.operations import Operations
from stratalog.client.producer import Producer
from stratalog.client.retry import RetryPolicy
from stratalog.client.topics import Topics
from stratalog.record.native.consumer_records import ConsumerRecord
from stratalog.record.native.record_accumulator import Delivery

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")


class LoopThread:
    """An event loop in a thread of its own. Thread-safe."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stratalog-client")
        self._running = self._thread.submit(self._loop.run_forever)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Cancel everything that still runs on the loop, and end the thread."""
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._running.result()
        self._thread.shutdown()
        self._loop.close()


class Blocking:
    """An object of the asynchronous client, for threads without an event loop. Its methods have the names,
    the arguments and the results of the other's, and wait. Thread-safe, except for an iteration.
    """

    def __init__(self, thread: LoopThread, target: object) -> None:
        self._thread = thread
        self._target = target

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._target, name)
        if not callable(member):
            return self._face(member)

        def call(*arguments: object, **options: object) -> Any:
            return self._face(self._thread.run(_called(member, arguments, options)))

        return call

    def __iter__(self) -> Iterator[Any]:
        iterator = self._thread.run(_called(getattr(self._target, "__aiter__"), (), {}))  # noqa: B009
        try:
            while True:
                try:
                    element = self._thread.run(_called(iterator.__anext__, (), {}))
                except StopAsyncIteration:
                    return
                yield element
        finally:
            if hasattr(iterator, "aclose"):
                self._thread.run(iterator.aclose())

    def __getitem__(self, key: object) -> Any:
        return self._thread.run(_called(operator.getitem, (self._target, key), {}))

    def __contains__(self, key: object) -> bool:
        found: bool = self._thread.run(_called(operator.contains, (self._target, key), {}))
        return found

    def __len__(self) -> int:
        count: int = self._thread.run(_called(len, (self._target,), {}))
        return count

    def __enter__(self) -> Any:
        self._thread.run(_called(getattr(self._target, "__aenter__"), (), {}))  # noqa: B009
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leave = getattr(self._target, "__aexit__")  # noqa: B009
        self._thread.run(_called(leave, (kind, error, traceback), {}))

    def _face(self, value: Any) -> Any:
        """The value, or its blocking form."""
        if isinstance(value, Producer):
            return SyncProducer(self._thread, value)
        if isinstance(value, Consumer):
            return SyncConsumer(self._thread, value)
        if isinstance(value, Admin | Operations | Topics) or hasattr(value, "__aiter__"):
            return Blocking(self._thread, value)
        return value


class SyncConsumer(Blocking):
    """A consumer for threads without an event loop. Only the first record of each list comes through the
    loop; the others are at hand.
    """

    def __iter__(self) -> Iterator[ConsumerRecord]:
        consumer = self._target
        assert isinstance(consumer, Consumer)
        records = aiter(consumer)
        try:
            while True:
                try:
                    yield self._thread.run(_called(records.__anext__, (), {}))
                except StopAsyncIteration:
                    return
                while consumer.has_next:
                    yield _at_once(records.__anext__())
        finally:
            self._thread.run(consumer.aclose())


class SyncProducer:
    """The producer for threads without an event loop. Thread-safe; the records of one thread keep their
    order. Use `with`: its end waits for all records.
    """

    def __init__(self, thread: LoopThread, producer: Producer) -> None:
        self._thread = thread
        self._producer = producer

    def send(self, topic: str, key: Any = None, value: Any = None, **options: Any) -> Delivery:
        """Buffer a record as `Producer.send` does. Waits for the description of a new topic, and while the
        buffer is full. `delivery.result()` waits for the record. Raises UnknownTopicOrPartitionError.
        """
        partition_count = self._producer.partition_count(topic)
        if not partition_count or (options.get("partition") or 0) >= partition_count:
            self._thread.run(self._producer.learn(topic))
        while True:
            try:
                return self._producer.send(topic, key, value, **options)
            except BufferFullError:
                self.ready()

    def send_many(self, topic: str, table: pa.Table | pa.RecordBatch) -> int:
        """Send the rows of a table and wait for them, as `Producer.send_many` does."""
        return self._thread.run(self._producer.send_many(topic, table))

    def ready(self) -> None:
        """Wait until the buffer has room for a record."""
        self._thread.run(self._producer.ready())

    def flush(self) -> None:
        """Send all records now and wait for them, as `Producer.flush` does."""
        self._thread.run(self._producer.flush())

    def close(self) -> None:
        """Flush. The client's connection stays open."""
        self._thread.run(self._producer.close())

    def abandon(self) -> None:
        """Discard unacknowledged records, as `Producer.abandon` does."""
        self._thread.run(_called(self._producer.abandon, (), {}))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


class SyncClient(Blocking):
    """A connection to the server of a store for code without an event loop: `Client` with the same names.
    Thread-safe: its own loop does all work.

    Example::

        with SyncClient("localhost:9190") as client:
            client.topics.create("clicks", partitions=3)
            with client.producer() as producer:
                producer.send("clicks", "user-1", "home")
    """

    def __init__(self, address: str, *, retry: RetryPolicy | None = None) -> None:
        """`address` as for `Client`; connects when first used. Raises InvalidRequestError."""
        thread = LoopThread()
        try:
            client = thread.run(_called(Client, (address,), {"retry": retry}))
        except BaseException:
            thread.close()
            raise
        super().__init__(thread, client)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the client's loop, and wait for its result."""
        return self._thread.run(work)

    def producer(self, **settings: Any) -> SyncProducer:
        """A producer with the settings of `Client.producer`."""
        client = self._target
        assert isinstance(client, Client)
        return SyncProducer(self._thread, self._thread.run(_called(client.producer, (), settings)))

    def close(self) -> None:
        """Close the connection, and cancel everything that still runs on the loop."""
        client = self._target
        assert isinstance(client, Client)
        self._thread.run(client.close())
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


async def _called(function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    result = function(*arguments, **options)
    return await result if inspect.isawaitable(result) else result


def _at_once(ready: Awaitable[_T]) -> _T:
    """The result of an awaitable that does not wait."""
    try:
        next(ready.__await__())
    except StopIteration as done:
        result: _T = done.value
        return result
    raise AssertionError("it waits")


async def _cancel_others() -> None:
    # grpc.aio may leave a call's task that has not run to its end.
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
