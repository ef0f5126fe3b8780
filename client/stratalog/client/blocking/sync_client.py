"""The synchronous client: the names of the asynchronous one, for threads without an event loop.

A client has an event loop in a thread of its own, which does all work.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

from stratalog.client.access.credentials import Credentials
from stratalog.client.blocking.client_calls import ClientCalls
from stratalog.client.blocking.loop_thread import LoopThread
from stratalog.client.blocking.sync_admin import SyncAdmin
from stratalog.client.blocking.sync_operations import SyncOperations
from stratalog.client.blocking.sync_topics import SyncTopics
from stratalog.client.client import Client
from stratalog.client.retry import RetryPolicy

_T = TypeVar("_T")


class SyncClient(ClientCalls):
    """A connection to the server of a store for code without an event loop: `Client` with the same names.
    Thread-safe: its own loop does all work.

    Example::

        with SyncClient("localhost:9190") as client:
            client.topics.create("clicks", partitions=3)
            with client.producer() as producer:
                producer.send("clicks", "user-1", "home")
            for record in client.consume("clicks"):
                print(record.value)
    """

    def __init__(
        self, address: str, *, retry: RetryPolicy | None = None, credentials: Credentials | None = None
    ) -> None:
        """`address` and `credentials` as for `Client`; connects when first used. Raises
        InvalidRequestError."""
        connection = AsyncExitStack()

        async def connect() -> Client:
            return await connection.enter_async_context(Client(address, retry=retry, credentials=credentials))

        thread = LoopThread(connection.aclose)
        try:
            client = thread.run(connect())
        except BaseException:
            thread.close()
            raise
        super().__init__(thread, client)
        self.operations = SyncOperations(thread, client.operations)
        """The long work that the server does."""
        self.admin = SyncAdmin(thread, client.admin)
        self.topics = SyncTopics(thread, client.topics)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the client's loop, and wait for its result."""
        return self._thread.run(work)

    def close(self) -> None:
        """Abandon the producers that were not closed, cancel everything else that still runs on the loop,
        and close the connection. Calls of other threads that wait raise ClientClosedError. May be repeated.
        """
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
