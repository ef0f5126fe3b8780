"""The requests of calls with a single request, which are read once the call has its place.

gRPC would read such a request before it calls the handler. A call whose request never comes would be in no
count then, and its caller unknown, and twenty connections of a stranger could take all calls of the server.
So all methods are registered with gRPC as ones with a stream of requests: their handlers are called as soon
as the headers have come, and read the one request here. On the wire both forms are the same.

A request may take as long as it needs, because a large one may come over a slow line. Those of health checks
are tiny, and strangers send them, so they have a patience. At a stop, calls whose request has not come are
ended at once: they have had no effect.

A call is ended by a status. What waits for the request returns then, because the call is over; to cancel it
would leave gRPC's half of the read behind.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from stratalog.base.clock import Clock
from stratalog.base.errors import InvalidRequestError, LogStoreError, StoppingError
from stratalog.server.meters.call_meter import note_wait
from stratalog.server.rpc.call_guard import Context, guarded
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.method_handlers import Handlers, begun_at_once, is_stream_of_requests, only_call

CLOSING_PATIENCE_S = 0.25
"""The request of a call that begins while the server stops has this long to come."""

_Handler = Callable[[Any, Context], Awaitable[Any]]


class AwaitedRequests:
    """Reads single requests. Belongs to the event loop; other threads may read `count`."""

    def __init__(self, clock: Clock, statuses: ErrorStatuses) -> None:
        self._now_s = clock.monotonic_s
        self.statuses = statuses
        self._waiting: set[Context] = set()
        """The calls whose request has not come."""
        self._endings: dict[Context, asyncio.Future[None]] = {}
        """The refusals that are on their way."""
        self._is_closing = False

    @property
    def count(self) -> int:
        """The calls whose request has not come."""
        return len(self._waiting)

    async def read(self, context: Context, patience_s: float | None = None) -> Any:
        """The request of a call. Raises InvalidRequestError if there is none. If it has not come in time, or
        the server stops, the call ends, and AbortError is raised."""
        if self._is_closing:
            patience_s = CLOSING_PATIENCE_S
        timer = None
        if patience_s is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(patience_s, self._end_waiting, context, patience_s)
        self._waiting.add(context)
        try:
            request = await context.read()
            ending = self._endings.get(context)
            if ending is not None:
                # The request has come while the refusal was on its way, and the next read raises that.
                await asyncio.wait({ending})
                request = await context.read()
        finally:
            self._waiting.discard(context)
            # Also where none has come: a client that sends none is no slow server.
            note_wait(self._now_s())
            if timer is not None:
                timer.cancel()
        if request is grpc.aio.EOF:
            # So it is, too, where the call was cancelled: that comes with the end of its requests.
            await asyncio.sleep(0)
            raise InvalidRequestError("the call has ended without a message; send one request")
        return request

    def reading(self, handlers: Handlers, patience_s: float | None = None) -> Handlers:
        """The handlers in the form in which gRPC calls them at once; those of single requests read theirs."""
        return {
            name: handler
            if is_stream_of_requests(handler)
            else begun_at_once(handler, self._reading(only_call(handler), patience_s))
            for name, handler in handlers.items()
        }

    def end(self, context: Context, refuse: Callable[[], Awaitable[None]]) -> None:
        """End a call whose request has not come, by a refusal that aborts it."""

        async def ending() -> None:
            try:
                await refuse()
            except grpc.aio.AbortError:
                pass

        if context not in self._endings:
            self._endings[context] = asyncio.ensure_future(ending())
            self._endings[context].add_done_callback(lambda _: self._endings.pop(context))

    def close(self) -> None:
        """End all calls whose request has not come, because the server stops."""
        self._is_closing = True
        for context in tuple(self._waiting):
            self._end_waiting(context, CLOSING_PATIENCE_S)

    @guarded
    async def refuse(self, error: LogStoreError, _context: Context) -> None:
        """End a call with the error."""
        raise error

    def _end_waiting(self, context: Context, patience_s: float) -> None:
        if context not in self._waiting:
            return
        error: LogStoreError
        if self._is_closing:
            error = StoppingError("the server is stopping; send the request again to the next server")
        else:
            error = InvalidRequestError(
                "the message of the call has not come in time; send it with the call", patience_s=patience_s
            )
        self.end(context, partial(self.refuse, error, context))

    def _reading(self, call: _Handler, patience_s: float | None) -> _Handler:
        @functools.wraps(call)
        async def handling(_requests: object, context: Context) -> Any:
            try:
                request = await self.read(context, patience_s)
            except LogStoreError as error:
                return await self.refuse(error, context)
            return await call(request, context)

        return handling
