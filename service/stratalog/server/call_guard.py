"""Turns what a handler raises into a gRPC status. Every handler of every servicer is wrapped in one of these.

The engine's errors end the call with the status of ``stratalog.server.status`` and an ``ErrorInfo`` in the
trailing metadata; anything else is a defect: INTERNAL, with a bounded message, and a traceback in the log. A
decorator and not an interceptor: grpc.aio interceptors wrap every message of a stream and cost the data plane
measurably.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

import grpc

from stratalog.server.status import ERROR_METADATA_KEY, details_of, error_info, log_if_unexpected, status_of

Context = grpc.aio.ServicerContext[Any, Any]
_Parameters = ParamSpec("_Parameters")
_Response = TypeVar("_Response")


def unary(
    handler: Callable[_Parameters, Awaitable[_Response]],
) -> Callable[_Parameters, Awaitable[_Response]]:
    """For handlers that return one response: methods of (self, request, context)."""

    @functools.wraps(handler)
    async def guarded(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Response:
        try:
            return await handler(*args, **kwargs)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - every failure becomes a status
            await abort(cast(Context, args[-1]), error, handler.__qualname__)

    return guarded


def streaming(
    handler: Callable[_Parameters, AsyncGenerator[_Response, None]],
) -> Callable[_Parameters, AsyncGenerator[_Response, None]]:
    """For handlers that are asynchronous generators of responses: methods of (self, request, context)."""

    @functools.wraps(handler)
    async def guarded(
        *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> AsyncGenerator[_Response, None]:
        try:
            # A cancelled call must release what the generator holds now, not when it is collected.
            async with aclosing(handler(*args, **kwargs)) as responses:
                async for response in responses:
                    yield response
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - every failure becomes a status
            await abort(cast(Context, args[-1]), error, handler.__qualname__)

    return guarded


async def abort(context: Context, error: Exception, where: str) -> NoReturn:
    """End the call with what `error` stands for."""
    log_if_unexpected(error, where)
    metadata = ((ERROR_METADATA_KEY, error_info(error).SerializeToString()),)
    await context.abort(status_of(error), details_of(error), metadata)
    raise AssertionError("abort always raises")
