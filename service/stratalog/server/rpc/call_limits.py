"""Caps the calls that are open at once, for each kind of call, so that no kind keeps the others out.

Consumers hold a stream or a long poll each, and producers a stream for each of their partitions: without caps
of their own a thousand of either would leave no call to the other side, and none to the administrator. Health
checks are of no kind and are never counted. Streams that watch the health are a kind of their own, because
strangers may open them. Each connection may have some, however many the others have: a client of gRPC that
checks the health of its connections opens one on each.

One connection may have a part of them at most, so that a client that opens calls without end keeps no other
one out. The transport has a cap on streams of its own, which is higher: beyond it the client's transport lets
calls wait without a word. It bounds the calls whose message does not come. One principal may have a part of
each kind; the gate of access asks for that, because it knows the principal.

A single append at `object` is an append until its request is checked, and then one that waits for its commit:
see `call_counts`.

A call beyond its cap is refused before its message is read. It is counted once its message has arrived; so
calls that come together may pass the first look, and the second one refuses them.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, cast

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
from stratalog.server.configuration.settings import MAX_CONNECTION_WATCH_COUNT, ServerSettings
from stratalog.server.rpc.call_guard import Context, guarded
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.method_handlers import SHAPES, Handlers

_Handler = Callable[[Any, Context], Awaitable[Any]]

_KINDS: Mapping[str, CallKind | None] = {
    "Append": CallKind.APPEND,
    "AppendStream": CallKind.APPEND,
    "CopyBatches": CallKind.APPEND,
    "Fetch": CallKind.READ,
    "FetchStream": CallKind.READ,
    "Read": CallKind.READ,
    "Check": None,
    "List": None,
    "Watch": CallKind.WATCH,
}
"""By the method's name; None: not counted."""


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
        }
        self.counts = {kind: CallCounts(kind, limit) for kind, limit in limits.items()}
        self._connections = CallerCounts(settings.max_connection_call_count)
        self._watched = CallerCounts(MAX_CONNECTION_WATCH_COUNT)
        self.commits = CommitCalls(
            self.counts[CallKind.COMMIT], CallerCounts(share_of(settings.max_connection_call_count))
        )

    def connections(self, kind: CallKind) -> CallerCounts:
        """The calls of each connection among which one of the kind counts."""
        return self._watched if kind is CallKind.WATCH else self._connections

    def limiting(self, service: str, handlers: Handlers) -> grpc.GenericRpcHandler:
        """The handlers of a service behind the caps, in the form in which gRPC takes them."""
        methods: dict[str, _Method] = {}
        for name, handler in handlers.items():
            kind = _KINDS.get(name, CallKind.ADMIN)
            method = _FreeMethod(handler) if kind is None else _LimitedMethod(self, kind, handler)
            methods[f"/{service}/{name}"] = method
        return _LimitedService(methods)

    @guarded
    async def refuse(self, kind: CallKind, _context: Context) -> None:
        """End a call of the kind as one too many."""
        counts = self.counts[kind]
        counts.refused_count += 1
        option = "--max-connections" if kind is CallKind.WATCH else f"--max-{kind.value}-calls"
        raise OverloadedError(
            "too many calls of this kind are open; close some, send it again after a pause, or raise"
            f" {option} of the server",
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


class _Method(Protocol):
    """A method of a service."""

    def handler(self) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler of a call that begins now."""
        ...


class _FreeMethod:
    """A method without a cap. Immutable."""

    def __init__(self, handler: grpc.RpcMethodHandler[Any, Any]) -> None:
        self._handler = handler

    def handler(self) -> grpc.RpcMethodHandler[Any, Any]:
        """The only one."""
        return self._handler


class _LimitedMethod:
    """A method behind the cap of its kind. Belongs to the event loop."""

    def __init__(self, limits: CallLimits, kind: CallKind, handler: grpc.RpcMethodHandler[Any, Any]) -> None:
        self._limits = limits
        self._kind = kind
        self._counts = limits.counts[kind]
        # gRPC's handlers are named tuples, which its stubs do not say.
        one = cast(Any, handler)
        counted = {shape: self._counting(call) for shape in SHAPES if (call := getattr(one, shape))}
        self._handler = cast("grpc.RpcMethodHandler[Any, Any]", one._replace(**counted))
        # A handler of streams begins before the first message is read, whichever form the client's call has.
        self._refusal: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(self._refuse)

    def handler(self) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler of a call that begins now."""
        if self._kind is CallKind.APPEND:
            self._limits.turns.expect_append()
        return self._refusal if self._counts.is_full else self._handler

    def _counting(self, handler: _Handler) -> _Handler:
        counts, connections = self._counts, self._limits.connections(self._kind)
        commits = self._limits.commits

        @functools.wraps(handler)
        async def handling(request: Any, context: Context) -> Any:
            if counts.is_full:
                return await self._refuse(request, context)
            peer = context.peer()
            if not connections.enter(peer):
                return await self._limits.refuse_on_connection(self._kind, context)
            call = OpenCall(counts, peer, commits)
            set_call(call)
            try:
                return await handler(request, context)
            finally:
                call.end()
                connections.leave(peer)

        return handling

    async def _refuse(self, _request: object, context: Context) -> None:
        await self._limits.refuse(self._kind, context)


class _LimitedService(grpc.GenericRpcHandler):
    """The methods of a service by their full names."""

    def __init__(self, methods: Mapping[str, _Method]) -> None:
        self._methods = methods

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = self._methods.get(handler_call_details.method)
        return None if method is None else method.handler()
