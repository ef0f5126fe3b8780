"""The handlers of a service, as they are registered with gRPC.

Generated code would register them too, but with deserializers that raise: a message that cannot be decoded
would end its call before our handler, with the text of an exception.

The server answers health checks while it opens its logs. Its own services are there from the start, too, and
refuse every call until they are opened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, cast

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from stratalog.base.errors import StartingError
from stratalog.server.rpc.call_guard import MAX_DECODED_BYTES, Context, decoder, guarded
from stratalog.server.rpc.error_statuses import ErrorStatuses

Handlers: TypeAlias = "Mapping[str, grpc.RpcMethodHandler[Any, Any]]"
"""The handlers of a service by the names of its methods."""

_Call = Callable[[Any, Context], Awaitable[Any]]

SHAPES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
"""The names of a handler's calls; one of them is set."""

METHODS_WITH_RECORDS = frozenset({"Append", "AppendStream"})
"""Their decoders leave records as they are, and the setting of the largest request bounds them."""

_MAKERS: dict[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler[Any, Any]]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""By whether the client and the server stream."""


def described_handlers(
    servicer: object, service: ServiceDescriptor
) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """The handlers that generated code would register: methods of `servicer` with the methods' own names."""
    return {method.name: _handler(servicer, method) for method in service.methods}


def refusing_undecodable(handlers: Handlers) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """The handlers with deserializers that return `UNDECODABLE` where the given ones raise DecodeError, and
    `TOO_LARGE` or `TOO_MANY` for what no request of its kind needs."""
    # gRPC's handlers are named tuples, which its stubs do not say.
    return {
        name: cast(Any, handler)._replace(
            request_deserializer=decoder(
                cast(Any, handler).request_deserializer,
                None if name in METHODS_WITH_RECORDS else MAX_DECODED_BYTES,
            )
        )
        for name, handler in handlers.items()
    }


def _handler(servicer: object, method: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
    make = _MAKERS[method.client_streaming, method.server_streaming]
    request_class, response_class = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    return make(getattr(servicer, method.name), request_class.FromString, response_class.SerializeToString)


def only_call(handler: grpc.RpcMethodHandler[Any, Any]) -> _Call:
    """The call of a handler, in whichever shape it is."""
    calls: tuple[_Call | None, ...] = tuple(getattr(handler, shape) for shape in SHAPES)
    return next(call for call in calls if call is not None)


def is_stream_of_requests(handler: grpc.RpcMethodHandler[Any, Any]) -> bool:
    """Whether gRPC calls the handler before a message has come."""
    # gRPC's handlers have fields that its stubs do not say.
    return cast(bool, cast(Any, handler).request_streaming)


def begun_at_once(handler: grpc.RpcMethodHandler[Any, Any], call: _Call) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler with this call in place of its own, which gRPC calls before a message has come."""
    one = cast(Any, handler)
    return _MAKERS[True, one.response_streaming](call, one.request_deserializer, one.response_serializer)


class LateServices(grpc.GenericRpcHandler):
    """Services that are registered before they can be served. Belongs to the event loop."""

    def __init__(self, services: Collection[ServiceDescriptor], statuses: ErrorStatuses) -> None:
        """Their calls are refused until `open`. Methods that they do not have are unknown from the start."""
        self.statuses = statuses
        self._methods = frozenset(
            f"/{service.full_name}/{method.name}" for service in services for method in service.methods
        )
        self._services: Sequence[grpc.GenericRpcHandler] | None = None
        # A handler of streams begins before the first message is read, whichever form the client's call has.
        self._refusal: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(self._refuse)

    def open(self, services: Sequence[grpc.GenericRpcHandler]) -> None:
        """Serve from now on."""
        self._services = services

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a call that begins now."""
        if self._services is None:
            return self._refusal if handler_call_details.method in self._methods else None
        for one in self._services:
            handler = one.service(handler_call_details)
            if handler is not None:
                return handler
        return None

    @guarded
    async def _refuse(self, _requests: object, _context: Context) -> None:
        raise StartingError("the server is opening its logs; send it again after a pause")
