"""The synchronous client: the names of the asynchronous one, for threads without an event loop.

A client has an event loop in a thread of its own. Each call hands a coroutine to the loop and waits for it;
iteration asks the loop for one element after the other. A producer's `send` does not go through the loop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import operator
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from stratalog.base.errors import InvalidRequestError, LogStoreError
from stratalog.client.admin import Admin
from stratalog.client.client import Client
from stratalog.client.consuming.consumer import Consumer
from stratalog.client.errors import BufferFullError, ClientClosedError
from stratalog.client.operations import Operations
from stratalog.client.producer import Producer
from stratalog.client.retry import RetryPolicy
from stratalog.client.topics import Topics
from stratalog.record.native.consumer_records import ConsumerRecord
from stratalog.record.native.record_accumulator import Delivery

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")

CANCEL_AGAIN_S = 1.0
"""A task that has not ended after this time is cancelled again."""


class _Call:
    """A coroutine that runs on a loop while a thread waits for it. The thread calls the public methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        self._end: Future[asyncio.Task[Any]] = Future()

    def start(self) -> None:
        """Let it begin."""
        self._loop.call_soon_threadsafe(self._begin)

    def wait(self) -> asyncio.Task[Any]:
        """Wait for its end."""
        return self._end.result()

    def cancel(self) -> None:
        """Cancel it, whether it has begun or not, and wait for its end."""
        with contextlib.suppress(RuntimeError):
            # A loop that is closed has ended it.
            self._loop.call_soon_threadsafe(self._cancel)
        ended = self.wait()
        if not ended.cancelled():
            # Its failure, which is not asked for any more, is no news for the loop.
            ended.exception()

    def _begin(self) -> asyncio.Task[Any]:
        if self._task is None:
            self._task = self._loop.create_task(self._work)
            self._task.add_done_callback(self._end.set_result)
        return self._task

    def _cancel(self) -> None:
        self._begin().cancel()


class LoopThread:
    """An event loop in a thread of its own. Thread-safe."""

    def __init__(self, leave: Callable[[], Awaitable[None]]) -> None:
        """`leave` releases the resources of the loop, when all other work on it was cancelled."""
        self._loop = asyncio.new_event_loop()
        self._leave = leave
        self._lock = threading.RLock()
        self._is_closed = False
        self._releases: set[asyncio.Future[object]] = set()
        """Those that have not ended: a loop keeps no task alive. The loop's thread uses it."""
        self._thread = threading.Thread(  # noqa: TID251 - an application has no Scheduler
            target=self._serve, name="stratalog-client", daemon=True
        )
        self._thread.start()
        # A program that ends without `close` does not wait for the thread.
        atexit.register(self.close)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop, and wait for its result. Raises ClientClosedError before and after
        `close`. An interruption of the wait, such as KeyboardInterrupt, cancels the coroutine.
        """
        call = _Call(self._loop, work)
        try:
            with self._lock:
                self._require_open()
                call.start()
            ended = call.wait()
        except LogStoreError:
            work.close()
            raise
        except BaseException:
            call.cancel()
            raise
        if not ended.cancelled():
            result: _T = ended.result()
            return result
        if self._is_closed:
            raise ClientClosedError
        raise CancelledError

    def finish(self, release: Callable[[], Awaitable[object]]) -> None:
        """Let the loop release resources soon; not after `close`, which has released them. It neither waits
        nor locks: the garbage collector calls it in any thread, which may hold any lock.
        """
        with contextlib.suppress(RuntimeError):
            # A loop that is closed has released all.
            self._loop.call_soon_threadsafe(self._begin_release, release)

    def _begin_release(self, release: Callable[[], Awaitable[object]]) -> None:
        if not self._is_closed:
            task = asyncio.ensure_future(release(), loop=self._loop)
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    def close(self) -> None:
        """Cancel everything that runs on the loop, and end the thread. Calls that wait raise
        ClientClosedError.
        """
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()
            atexit.unregister(self.close)

    def _require_open(self) -> None:
        if threading.current_thread() is self._thread:
            raise InvalidRequestError(
                "the client's own event loop cannot wait for itself; use `Client` in it"
            )
        if self._is_closed:
            raise ClientClosedError

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._shut_down())
        finally:
            self._loop.close()

    async def _shut_down(self) -> None:
        await _cancel_others()
        try:
            await self._leave()
        finally:
            # grpc.aio may leave a call's task that has not run to its end.
            await _cancel_others()
            await self._loop.shutdown_asyncgens()
            await self._loop.shutdown_default_executor()


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
                self._thread.finish(iterator.aclose)

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
    """A consumer for threads without an event loop. The loop fetches lists of records, and the caller's
    thread takes them: an interruption of the wait, such as KeyboardInterrupt, loses no record. As with
    `Consumer`, the session goes on between two iterations, and ends with the consumer.
    """

    def __init__(self, thread: LoopThread, consumer: Consumer) -> None:
        super().__init__(thread, consumer)
        self._consumer = consumer

    def __iter__(self) -> Iterator[ConsumerRecord]:
        records = aiter(self._consumer)
        while self._fill():
            yield _at_once(anext(records))

    def batches(self) -> Iterator[list[ConsumerRecord]]:
        """Yield lists of records as `Consumer.batches` does."""
        lists = aiter(self._consumer.batches())
        while self._fill():
            yield _at_once(anext(lists))

    def _fill(self) -> bool:
        return self._consumer.has_next or self._thread.run(self._consumer.fill())


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
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        """The loop's thread uses it. The loop keeps a producer that has records."""
        self._client: Client | None = None
        thread = LoopThread(self._leave)
        try:
            client = thread.run(self._connect(address, retry))
        except BaseException:
            thread.close()
            raise
        super().__init__(thread, client)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the client's loop, and wait for its result."""
        return self._thread.run(work)

    def producer(self, **settings: Any) -> SyncProducer:
        """A producer with the settings of `Client.producer`."""
        return SyncProducer(self._thread, self._thread.run(_called(self._new_producer, (), settings)))

    def close(self) -> None:
        """Abandon the producers that were not closed, cancel everything else that still runs on the loop,
        and close the connection. Calls of other threads that wait raise ClientClosedError. May be repeated.
        """
        self._thread.close()

    async def _connect(self, address: str, retry: RetryPolicy | None) -> Client:
        self._client = Client(address, retry=retry)
        return self._client

    def _new_producer(self, **settings: Any) -> Producer:
        assert self._client is not None
        producer = self._client.producer(**settings)
        self._producers.add(producer)
        return producer

    async def _leave(self) -> None:
        for producer in self._producers:
            producer.end()
        if self._client is not None:
            await self._client.close()

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
    """Cancel all other tasks of the loop until none is left: a task may begin another one at its end."""
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in left:
            task.cancel()
        # A task that goes on although it was cancelled is cancelled again.
        await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
