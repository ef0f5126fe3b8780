"""One AppendStream: many requests in flight, applied and answered in order, none applied after a failure.

A reader task takes requests off the wire and submits them; the handler awaits their results in the same
order. Within one partition the writer keeps the order and stops at the first failure (``AppendSession``).
When the stream turns to another partition, the reader first waits for the requests in flight: the other
partition's writer would not know of a failure here in time.

The numbers of requests and of bytes in flight are bounded for each stream: beyond them the next request stays
on the wire, and the transport's flow control holds the client back. Once the requests of all connections take
half of the memory, a stream has one request in flight; so many streams slow down before one is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from stratalog.server.append.append_decoding import DecodedAppend
from stratalog.server.append.partition_writer import PartitionWriter
from stratalog.server.append.pending_append import AppendSession, PendingAppend
from stratalog.server.request_memory import RequestMemory

MAX_IN_FLIGHT_COUNT = 256
MAX_IN_FLIGHT_BYTES = 32 << 20
"""The request that reaches this is the last one in flight."""


Prepare = Callable[[DecodedAppend, AppendSession], tuple[PartitionWriter, PendingAppend]]
"""Checks a request, takes its memory, and returns the append with its writer. Raises LogStoreError."""


class AppendPipeline:
    """One AppendStream: its requests, applied and answered in order. Belongs to the event loop."""

    def __init__(
        self,
        requests: AsyncIterator[DecodedAppend],
        prepare: Prepare,
        memory: RequestMemory,
    ) -> None:
        """`prepare` takes the memory of a request from `memory`."""
        self._memory = memory
        self._requests = requests
        self._prepare = prepare
        self._session = AppendSession()
        self._in_flight: asyncio.Queue[PendingAppend | None] = asyncio.Queue()
        """In order; None at the end."""
        self._in_flight_count = 0
        self._in_flight_bytes = 0
        self._answered = asyncio.Event()
        self._failure: Exception | None = None

    async def answered(self) -> AsyncGenerator[PendingAppend, None]:
        """Yield the appends in the order of the requests, each one when its future has a result. Raises the
        first failure, after which no request is applied.
        """
        reader = asyncio.create_task(self._read())
        try:
            while (append := await self._in_flight.get()) is not None:
                await append.future
                self._in_flight_count -= 1
                self._in_flight_bytes -= append.size_bytes
                self._answered.set()
                yield append
            if self._failure is not None:
                raise self._failure
        finally:
            reader.cancel()
            self._abandon()

    async def _read(self) -> None:
        current: PartitionWriter | None = None
        try:
            async for request in self._requests:
                writer, append = self._prepare(request, self._session)
                if current is not None and current is not writer:
                    await self._turn(append)
                current = writer
                self._in_flight_count += 1
                self._in_flight_bytes += append.size_bytes
                self._in_flight.put_nowait(append)
                writer.submit(append)
                while not self._has_room():
                    await self._next_answer()
        except Exception as error:  # noqa: BLE001 - raised by `answered`, in its place in the order
            # The requests before this one are answered first; then the stream ends with this.
            self._failure = error
        finally:
            self._in_flight.put_nowait(None)

    async def _turn(self, append: PendingAppend) -> None:
        """Wait for the requests in flight, before `append` goes to another partition."""
        try:
            while self._in_flight_count > 0:
                await self._next_answer()
        except asyncio.CancelledError:
            # No writer will answer it.
            append.give_back_memory()
            raise

    async def _next_answer(self) -> None:
        self._answered.clear()
        await self._answered.wait()

    def _has_room(self) -> bool:
        """Whether to read another request. Always without one in flight: only an answer wakes this stream."""
        if self._in_flight_count == 0:
            return True
        within_bytes = self._in_flight_bytes < MAX_IN_FLIGHT_BYTES
        return within_bytes and self._in_flight_count < MAX_IN_FLIGHT_COUNT and not self._memory.is_scarce

    def _abandon(self) -> None:
        """Forget the requests in flight. They may be applied, unless the session is broken."""
        while not self._in_flight.empty():
            append = self._in_flight.get_nowait()
            if append is not None and not append.future.cancel():
                # Retrieve the result, or asyncio warns about an exception that was never retrieved.
                append.future.exception()
