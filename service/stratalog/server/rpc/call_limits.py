"""Caps the calls that are open at once, for each kind of call, so that no kind keeps the others out.

Consumers hold a stream or a long poll each, and producers a stream for each of their partitions: without caps
of their own a thousand of either would leave no call to the other side, and none to the administrator.

Strangers may ask for the health. Streams that watch it are a kind of their own, and each connection may have
some, however many the others have: a client of gRPC that checks the health of its connections opens one on
each. Health checks are a kind of their own, too, and however many are open, a connection may have some.

One connection may have a part of the others at most, so that a client that opens calls without end keeps no
other one out. The transport has a cap on streams of its own, which is higher: beyond it the client's
transport lets calls wait without a word. One principal may have a part of each kind; the gate of access asks
for that, because it knows the principal.

A single append at `object` is an append until its request is checked, and then one that waits for its commit:
see `call_counts`.

A call counts from its begin, before its message is read, to its end, when the transport has taken its answer.
A client may let neither happen. A call beyond its cap is refused before its message is read.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import grpc

from stratalog.base.errors import OverloadedError
from stratalog.server.answer_turns import AnswerTurns
from stratalog.server.call_counts import (
    CallCounts,
    CallerCounts,
    CallKind,
    CommitCalls,
    OpenCall,
    set_call,
    share_of,
)
from stratalog.server.configuration.settings import (
    MAX_CHECK_CALL_COUNT,
    MAX_CONNECTION_CHECK_COUNT,
    MAX_CONNECTION_WATCH_COUNT,
    ServerSettings,
)
from stratalog.server.rpc.call_guard import Context, guarded
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.method_handlers import (
    Handlers,
    begun_at_once,
    is_stream_of_requests,
    only_call,
)

_Handler = Callable[[Any, Context], Awaitable[Any]]

_KINDS: Mapping[str, CallKind] = {
    "Append": CallKind.APPEND,
    "AppendStream": CallKind.APPEND,
    "CopyBatches": CallKind.APPEND,
    "Fetch": CallKind.READ,
    "FetchStream": CallKind.READ,
    "Read": CallKind.READ,
    "Check": CallKind.CHECK,
    "List": CallKind.CHECK,
    "Watch": CallKind.WATCH,
}
"""By the method's name; `ADMIN`: all others."""

_ADVICE = {
    CallKind.WATCH: "raise --max-connections of the server",
    CallKind.CHECK: "use another connection",
}
_OTHER_ADVICE = "raise --max-{}-calls of the server"


class CallLimits:
    """Counts calls by kind, and refuses those beyond the caps. Belongs to the event loop; other threads may
    read `counts`."""

    def __init__(self, settings: ServerSettings, statuses: ErrorStatuses, turns: AnswerTurns) -> None:
        self.statuses = statuses
        self.turns = turns
        limits = {
            CallKind.APPEND: settings.max_append_call_count,
            CallKind.COMMIT: settings.max_append_call_count,
            CallKind.READ: settings.max_read_call_count,
            CallKind.ADMIN: settings.max_admin_call_count,
            CallKind.WATCH: settings.max_watch_call_count,
            CallKind.CHECK: MAX_CHECK_CALL_COUNT,
        }
        self.counts = {kind: CallCounts(kind, limit) for kind, limit in limits.items()}
        self._connections = CallerCounts(settings.max_connection_call_count)
        self._watched = CallerCounts(MAX_CONNECTION_WATCH_COUNT)
        self._checked = CallerCounts(MAX_CHECK_CALL_COUNT)
        self.commits = CommitCalls(
            self.counts[CallKind.COMMIT], CallerCounts(share_of(settings.max_connection_call_count))
        )

    def connections(self, kind: CallKind) -> CallerCounts:
        """The calls of each connection among which one of the kind counts."""
        match kind:
            case CallKind.WATCH:
                return self._watched
            case CallKind.CHECK:
                return self._checked
            case _:
                return self._connections

    def limiting(self, service: str, handlers: Handlers) -> grpc.GenericRpcHandler:
        """The handlers of a service behind the caps, in the form in which gRPC takes them. gRPC calls them
        before a message has come."""
        return _LimitedService(
            {
                f"/{service}/{name}": self._limited(_KINDS.get(name, CallKind.ADMIN), handler)
                for name, handler in handlers.items()
            }
        )

    @guarded
    async def refuse(self, kind: CallKind, _context: Context) -> None:
        """End a call of the kind as one too many."""
        counts = self.counts[kind]
        counts.refused_count += 1
        advice = _ADVICE.get(kind) or _OTHER_ADVICE.format(kind.value)
        raise OverloadedError(
            f"too many calls of this kind are open; close some, send it again after a pause, or {advice}",
            kind=kind.value,
            limit=counts.limit,
        )

    @guarded
    async def refuse_on_connection(self, kind: CallKind, _context: Context) -> None:
        """End a call as one too many of its connection."""
        self.counts[kind].refused_count += 1
        remedy = "" if kind is CallKind.WATCH else ", or raise max-connection-call-count of the server"
        raise OverloadedError(
            "too many calls of this connection are open; close some, use another connection, or send it again"
            f" after a pause{remedy}",
            kind="connection",
            limit=self.connections(kind).limit,
        )

    def _limited(
        self, kind: CallKind, handler: grpc.RpcMethodHandler[Any, Any]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        assert is_stream_of_requests(handler), "gRPC calls others once their message has come"
        call: _Handler = only_call(handler)
        counts, connections = self.counts[kind], self.connections(kind)
        own_count = MAX_CONNECTION_CHECK_COUNT if kind is CallKind.CHECK else 0

        @functools.wraps(call)
        async def handling(requests: Any, context: Context) -> Any:
            if kind is CallKind.APPEND:
                self.turns.expect_append()
            peer = context.peer()
            if counts.is_full and connections.of(peer) >= own_count:
                return await self.refuse(kind, context)
            if not connections.enter(peer):
                return await self.refuse_on_connection(kind, context)
            one = OpenCall(counts, peer, self.commits)
            set_call(one)

            def end(_task: object) -> None:
                one.end()
                connections.leave(peer)

            # Not when the handler returns: the answer is sent after that.
            cast("asyncio.Task[Any]", asyncio.current_task()).add_done_callback(end)
            return await call(requests, context)

        return begun_at_once(handler, handling)


class _LimitedService(grpc.GenericRpcHandler):
    """The methods of a service by their full names."""

    def __init__(self, methods: Handlers) -> None:
        self._methods = methods

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._methods.get(handler_call_details.method)
