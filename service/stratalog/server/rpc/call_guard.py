"""Turns the errors of handlers into gRPC statuses. Every handler of every servicer is wrapped in this.

The engine's errors end the call with the status of ``stratalog.server.rpc.status``, which is also in the
trailing metadata with its details; anything else is a defect: INTERNAL, with an id, and a traceback in the
log. A decorator and not an interceptor: grpc.aio interceptors wrap every message of a stream and cost the
data plane measurably.

A message that cannot be decoded is no defect: it reaches the handler as `UNDECODABLE`, and is refused there
like any other request without sense. gRPC's own answer would show the text of an exception.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from stratalog.base.errors import InvalidRequestError, forget_frames
from stratalog.base.message_fields import has_more_fields
from stratalog.server.append.append_decoding import Decoded, DecodedAppend
from stratalog.server.log_identity import named_partition
from stratalog.server.rpc.error_statuses import ErrorStatuses

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
UNDECODABLE = object()
"""Stands for a request that is not of the form of its message."""
TOO_LARGE = object()
"""Stands for a request that was not decoded, because it is larger than those of its kind."""
TOO_MANY = object()
"""Stands for a request with more elements than those of its kind."""
MAX_DECODED_BYTES = 4 << 20
"""The largest request without records."""
MAX_ELEMENT_COUNT = 20_000
"""The most fields of a request without records, and the most numbers in one of them: twice the largest list
of the contract. More, decoded on the event loop, would hold up all other calls, and take fifty times their
size."""

_Parameters = ParamSpec("_Parameters")
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class Servicer(Protocol):
    """An object with guarded handlers."""

    @property
    def statuses(self) -> ErrorStatuses: ...


def guarded(
    handler: Callable[_Parameters, Awaitable[_Response]],
) -> Callable[_Parameters, Awaitable[_Response]]:
    """Wrap a method of a `Servicer` with (request, context) that returns one response, or sends many by
    `send`."""

    @functools.wraps(handler)
    async def guarding(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Response:
        try:
            # The servicer, the request or the iterator over requests, and the context.
            require_decoded(args[1])
            return await handler(*args, **kwargs)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - every failure becomes a status
            statuses = cast(Servicer, args[0]).statuses
            taken = args[1]
            request = cast(DecodedAppend, taken).request if isinstance(taken, Decoded) else taken
            status = statuses.status(error, handler.__qualname__, named_partition(request))
            # A future of the handler has the error, and the error the handler's frame, with the request.
            forget_frames(error)
            await _abort(cast(Context, args[-1]), status)

    return guarding


def decoder(parse: Callable[[bytes], object], max_bytes: int | None) -> Callable[[bytes], object]:
    """A deserializer for gRPC: the message that `parse` makes, or `UNDECODABLE`; `TOO_LARGE` for more than
    `max_bytes`, and `TOO_MANY` for more than `MAX_ELEMENT_COUNT`, unless these bytes are None."""

    def decode(data: bytes) -> object:
        if max_bytes is not None and len(data) > max_bytes:
            return TOO_LARGE
        # An element has one byte at least, so a short request never has too many.
        is_long = max_bytes is not None and len(data) > MAX_ELEMENT_COUNT
        has_too_many = is_long and has_more_fields(data, MAX_ELEMENT_COUNT)
        if has_too_many is None:
            # protobuf may take it, but clients send no groups.
            return UNDECODABLE
        if has_too_many:
            return TOO_MANY
        try:
            request = parse(data)
        except DecodeError:
            return UNDECODABLE
        return TOO_MANY if is_long and _has_long_list(cast(Message, request)) else request

    return decode


def _has_long_list(request: Message) -> bool:
    """Whether a list has too many elements: packed numbers are one field."""
    # `ListFields` would copy the elements.
    return any(
        len(getattr(request, field.name)) > MAX_ELEMENT_COUNT
        for field in request.DESCRIPTOR.fields
        if field.is_repeated
    )


def require_decoded(request: object) -> None:
    """Raise InvalidRequestError for a request that could not be decoded, or was not."""
    if request is TOO_LARGE:
        raise InvalidRequestError(
            "the message is larger than any that has no records; ask for less at once",
            allowed=MAX_DECODED_BYTES,
        )
    if request is TOO_MANY:
        raise InvalidRequestError(
            "the message has more elements than any that has no records; ask for less at once",
            allowed=MAX_ELEMENT_COUNT,
        )
    if request is UNDECODABLE:
        raise InvalidRequestError("the message cannot be decoded; send it as the contract of the call says")


async def decoded(requests: AsyncIterator[_Request]) -> AsyncIterator[_Request]:
    """The requests of a stream, up to one that cannot be decoded. Raises InvalidRequestError for that one."""
    async for request in requests:
        require_decoded(request)
        yield request


async def announce(context: Context, headers: Sequence[tuple[str, str]] = ()) -> None:
    """Send the headers, which show the client that its stream is open, before any response. Ends the handler
    as `send` does.
    """
    await _while_connected(context.send_initial_metadata(tuple(headers)))


async def send(context: Context, response: object) -> None:
    """Send a response of a stream. Ends the handler like a cancellation where the client has gone meanwhile:
    the transport finds that out at a write before it tells the handler, and would log it as the handler's
    failure.
    """
    await _while_connected(context.write(response))


def call_at_end(close: Callable[[], None]) -> None:
    """Call `close` when the call of this handler has ended: its last answer is sent, or it was given up.

    The callbacks of gRPC's context would do the same, but a context holds them, and they hold the context:
    such a call, with the memory of the transport for it, stays until the garbage collector looks at objects
    that are as old. A server lets it do so rarely.
    """
    task = asyncio.current_task()
    assert task is not None, "a handler runs in the task of its call"
    task.add_done_callback(lambda _: close())


async def _while_connected(sending: Awaitable[None]) -> None:
    try:
        await sending
    except Exception as error:
        logger.debug("a response could not be sent, because the call has ended: %s", error)
        raise asyncio.CancelledError from error


async def _abort(context: Context, status: Status) -> NoReturn:
    """End the call with the status, and with its details in the trailing metadata."""
    rich = rpc_status.to_status(status)  # pyright: ignore[reportUnknownMemberType]  # its parameter has no type
    await abort(context, rich.code, rich.details, tuple(rich.trailing_metadata or ()))


async def abort(
    context: Context, code: grpc.StatusCode, details: str, trailers: Sequence[tuple[str, str | bytes]] = ()
) -> NoReturn:
    """End the call with these. Ends the handler as `send` does."""
    try:
        await context.abort(code, details, tuple(trailers))
    except grpc.aio.AbortError:
        raise
    except Exception as error:
        logger.debug("a refusal could not be sent, because the call has ended: %s", error)
        raise asyncio.CancelledError from error
    raise AssertionError("abort always raises")
