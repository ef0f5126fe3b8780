"""Counts the calls of all methods, with their messages, durations and ends.

It stands before everything that may refuse a call, so that refusals count. It wraps each handler once, which
an interceptor of grpc.aio would do for each call, and counts a message where gRPC encodes or decodes it.

Streams count as one call, whose duration is that of the stream; their messages count one by one. The duration
of a call with a single request begins once the wait for the request is over: a slow line is no slow server.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from stratalog.base.clock import Clock
from stratalog.server.meters.method_counts import CallEnd, MethodCounts

_Context = grpc.aio.ServicerContext[Any, Any]
_Handler = Callable[[Any, _Context], Awaitable[Any]]

_SHAPES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
_DETAILS_KEY = "grpc-status-details-bin"
_MAX_KEPT_COUNT = 1000
"""Wrapped handlers that are kept, far above the number of methods."""

OK = CallEnd("OK")
CANCELLED = CallEnd("CANCELLED")
"""The client has gone, or its deadline has passed, or the server has stopped."""
UNKNOWN = CallEnd("UNKNOWN")


_waited_s: ContextVar[float] = ContextVar("waited")
"""When the wait for the single request of the current task's call was over."""


def note_wait(now_s: float) -> None:
    """Note that the single request of the call that the current task handles has come, or will not come."""
    _waited_s.set(now_s)


class MethodName(NamedTuple):
    """The name of a method."""

    service: str
    """Without its package."""
    method: str


class CallMeter:
    """Counts calls. Belongs to the event loop; other threads may read the counts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[MethodName, MethodCounts] = {}

    def counts(self) -> Mapping[MethodName, MethodCounts]:
        """The counts of the methods that were called. Any thread may call."""
        return self._counts.copy()

    def metering(self, service: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        """A service whose calls are counted; its handlers take a request and a context, and send the answers
        of a stream by the context."""
        return _MeteredService(self, service)

    def metered(self, path: str, handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler of the method with this full name, with its calls counted."""
        service, _, method = path.rpartition("/")
        counts = self._counts.setdefault(
            MethodName(service.rpartition("/")[2].rpartition(".")[2], method), MethodCounts()
        )
        # gRPC's handlers are named tuples, which its stubs do not say.
        one = cast(Any, handler)
        changes: dict[str, Any] = {
            shape: self._counting(call, counts) for shape in _SHAPES if (call := getattr(one, shape))
        }
        if one.request_deserializer is not None:
            changes["request_deserializer"] = _counting_received(one.request_deserializer, counts)
        changes["response_serializer"] = _counting_sent(one.response_serializer, counts)
        return cast("grpc.RpcMethodHandler[Any, Any]", one._replace(**changes))

    def _counting(self, handler: _Handler, counts: MethodCounts) -> _Handler:
        now_s = self._clock.monotonic_s

        @functools.wraps(handler)
        async def handling(request: Any, context: _Context) -> Any:
            counts.started_count += 1
            counts.open_count += 1
            begin_s = now_s()
            end = UNKNOWN
            try:
                answer = await handler(request, context)
                end = OK
                return answer
            except grpc.aio.AbortError:
                end = _end_of(context)
                raise
            except asyncio.CancelledError:
                end = CANCELLED
                raise
            finally:
                counts.add_end(end, now_s() - _waited_s.get(begin_s))

        return handling


class _MeteredService(grpc.GenericRpcHandler):
    """The handlers of another service, with their calls counted. Belongs to the event loop."""

    def __init__(self, meter: CallMeter, inner: grpc.GenericRpcHandler) -> None:
        self._meter = meter
        self._inner = inner
        self._kept: dict[tuple[str, int], tuple[object, grpc.RpcMethodHandler[Any, Any]]] = {}
        """Handlers of the inner service with what was made of them, by their method, because methods share
        refusals, and their identity: to hash a handler would take longer than to wrap it."""

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = self._inner.service(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        kept = self._kept.get((method, id(handler)))
        if kept is not None:
            return kept[1]
        metered = self._meter.metered(method, handler)
        if len(self._kept) < _MAX_KEPT_COUNT:
            self._kept[method, id(handler)] = (handler, metered)
        return metered


def _counting_received(decode: Callable[[bytes], object], counts: MethodCounts) -> Callable[[bytes], object]:
    def decoding(data: bytes) -> object:
        counts.received_count += 1
        counts.received_bytes += len(data)
        return decode(data)

    return decoding


def _counting_sent(encode: Callable[[object], bytes] | None, counts: MethodCounts) -> Callable[[Any], bytes]:
    def encoding(message: Any) -> bytes:
        data: bytes = message if encode is None else encode(message)
        counts.sent_count += 1
        counts.sent_bytes += len(data)
        return data

    return encoding


def _end_of(context: _Context) -> CallEnd:
    """The end of a call that was aborted, with the reason in its details."""
    code = cast("grpc.StatusCode | int", context.code())
    name = code.name if isinstance(code, grpc.StatusCode) else _NAMES.get(code, UNKNOWN.code)
    for key, value in cast("tuple[tuple[str, bytes], ...]", context.trailing_metadata() or ()):
        if key == _DETAILS_KEY:
            info = ErrorInfo()
            if any(detail.Unpack(info) for detail in Status.FromString(value).details):
                return CallEnd(name, info.reason)
    return CallEnd(name)


_NAMES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}
