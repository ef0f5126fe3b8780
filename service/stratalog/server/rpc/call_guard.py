"""Turns the errors of handlers into gRPC statuses. Every handler of every servicer is wrapped in this.

The engine's errors end the call with the status of ``stratalog.server.rpc.status`` and an ``ErrorInfo`` in
the trailing metadata; anything else is a defect: INTERNAL, with a bounded message, and a traceback in the
log. A decorator and not an interceptor: grpc.aio interceptors wrap every message of a stream and cost the
data plane measurably.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

import grpc

from stratalog.server.rpc.status import (
    ERROR_METADATA_KEY,
    details_of,
    error_info,
    log_if_unexpected,
    status_of,
)

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
_Parameters = ParamSpec("_Parameters")
_Response = TypeVar("_Response")


def guarded(
    handler: Callable[_Parameters, Awaitable[_Response]],
) -> Callable[_Parameters, Awaitable[_Response]]:
    """Wrap a method of (self, request, context) that returns one response, or sends many by `send`."""

    @functools.wraps(handler)
    async def guarding(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Response:
        try:
            return await handler(*args, **kwargs)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - every failure becomes a status
            await abort(cast(Context, args[-1]), error, handler.__qualname__)

    return guarding


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


async def _while_connected(sending: Awaitable[None]) -> None:
    try:
        await sending
    except Exception as error:
        logger.debug("a response could not be sent, because the call has ended: %s", error)
        raise asyncio.CancelledError from error


async def abort(context: Context, error: Exception, where: str) -> NoReturn:
    """End the call with the status of `error`."""
    log_if_unexpected(error, where)
    metadata = ((ERROR_METADATA_KEY, error_info(error).SerializeToString()),)
    await context.abort(status_of(error), details_of(error), metadata)
    raise AssertionError("abort always raises")
