"""Traces of calls: OpenTelemetry's instrumentation of gRPC, if the environment asks for it.

A span for each call continues the caller's trace, and requests to the object store that a call waits for
have spans below it. Background work has none: it serves many calls at once, and would fill a trace store.

The instrumentation takes handlers of streams that yield their answers. Ours send them by the context, so each
is put into a generator that yields nothing. It does not see that a call was cancelled, or that its time is
over, so each handler notes that. Names and attributes of spans are OpenTelemetry's. No metadata of
a call is in a span, so its token is not, either.

Spans are sent by a thread of OpenTelemetry's exporter. Where the collector does not answer it drops them.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import grpc

from stratalog.base.errors import InvalidConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_EXPORTER = "OTEL_TRACES_EXPORTER"
_ASKING = (_EXPORTER, "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Variables that ask for traces if one of them is set."""
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
"""The names of exporters by protocol."""
_EXPORTERS_GROUP = "opentelemetry_traces_exporter"
_STREAMS = ("unary_stream", "stream_stream")
_SINGLE = ("unary_unary", "stream_unary")
_CODE = "rpc.grpc.status_code"
_SCOPE = "stratalog.objectstore"

_Handler = Callable[[Any, Any], Awaitable[Any]]


class CallTracing:
    """Makes spans of the calls of a server. Thread-safe."""

    def __init__(self, provider: TracerProvider) -> None:
        """`provider` makes the spans, and has what exports them; `close` shuts it down."""
        from opentelemetry import trace

        # It has no types.
        instrumentation: Any = import_module("opentelemetry.instrumentation.grpc")
        filters: Any = import_module("opentelemetry.instrumentation.grpc.filters")
        self._provider = provider
        self._current_span = trace.get_current_span
        self._tracer = provider.get_tracer(_SCOPE)
        is_traced: Any = filters.negate(filters.health_check())
        self.interceptor: grpc.aio.ServerInterceptor = _StreamsAsGenerators(
            instrumentation.aio_server_interceptor(provider, is_traced)
        )
        """Stands before all handlers."""

    def span_of(self, verb: str, key: str) -> AbstractContextManager[object]:
        """A span of a request to the store, if a call waits for it."""
        if not self._current_span().is_recording():
            return nullcontext()
        return self._tracer.start_as_current_span(f"object store {verb}", attributes={"stratalog.key": key})

    def close(self) -> None:
        """Send the spans that wait, and make no more. May wait for the collector for some seconds."""
        self._provider.shutdown()


def tracing_of_environment(environment: Mapping[str, str]) -> CallTracing | None:
    """The traces that OpenTelemetry's variables ask for; None by default. Raises InvalidConfigError if they
    ask for what is not installed."""
    exporter_name = environment.get(_EXPORTER, "otlp")
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or exporter_name == "none"
    if is_disabled or not any(environment.get(name) for name in _ASKING):
        return None
    try:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise _not_installed(exporter_name, str(error)) from None
    if exporter_name == "otlp":
        protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), "grpc")
        exporter_name = _OTLP.get(protocol, protocol)
    found = tuple(entry_points(group=_EXPORTERS_GROUP, name=exporter_name))
    if not found:
        raise _not_installed(exporter_name, "no such exporter")
    # The environment's name of the service is stronger.
    resource = Resource({"service.name": "stratalog"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=Resource.create().merge(resource))
    provider.add_span_processor(BatchSpanProcessor(found[0].load()()))
    return CallTracing(provider)


class _StreamsAsGenerators(grpc.aio.ServerInterceptor):
    """Another interceptor, which gets streams as generators. Belongs to the event loop."""

    def __init__(self, inner: grpc.aio.ServerInterceptor) -> None:
        self._inner = inner

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        async def adapted(details: grpc.HandlerCallDetails) -> Any:
            handler: Any = await continuation(details)
            if handler is None:
                return None
            behaviors = {
                shape: (_as_generator if shape in _STREAMS else _noting_cancellations)(behavior)
                for shape in (*_STREAMS, *_SINGLE)
                if inspect.iscoroutinefunction(behavior := getattr(handler, shape))
            }
            return handler._replace(**behaviors)

        return await self._inner.intercept_service(adapted, handler_call_details)


def _noting_cancellations(handler: _Handler) -> _Handler:
    from opentelemetry import trace

    @functools.wraps(handler)
    async def noting(request: Any, context: Any) -> Any:
        try:
            return await handler(request, context)
        except asyncio.CancelledError:
            left_s = context.time_remaining()
            is_late = left_s is not None and left_s <= 0
            code = grpc.StatusCode.DEADLINE_EXCEEDED if is_late else grpc.StatusCode.CANCELLED
            trace.get_current_span().set_attribute(_CODE, code.value[0])
            raise

    return noting


def _as_generator(handler: _Handler) -> Callable[[Any, Any], AsyncIterator[Any]]:
    noting = _noting_cancellations(handler)

    @functools.wraps(handler)
    async def generating(request: Any, context: Any) -> AsyncIterator[Any]:
        await noting(request, context)
        answers: tuple[object, ...] = ()
        for answer in answers:
            yield answer

    return generating


def _not_installed(exporter: str, reason: str) -> InvalidConfigError:
    return InvalidConfigError(
        "the environment asks for traces, and the packages for them are missing; install the extra otel, or"
        " set OTEL_SDK_DISABLED=true",
        name=_EXPORTER,
        value=exporter,
        reason=reason,
    )
