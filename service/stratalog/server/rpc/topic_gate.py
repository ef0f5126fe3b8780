"""Lets calls wait for a look at the catalog if they name a topic that this server does not know.

It stands before all handlers of servers that share a store, so that none of them refuses a topic that
another server has just created. At the only server of a store just imports and backfills of Spark create
topics beside it, so the calls with the most requests do without: who appends or fetches has asked for the
topic before. There a call goes on without the look if the store does not answer, and its handler says that
the topic is unknown: nothing but a job of Spark can have created it, and a look follows once the store
answers.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.message import Message

from stratalog.base.errors import StoreError
from stratalog.server.append.append_decoding import Decoded
from stratalog.server.rpc.call_guard import Context, guarded
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.method_handlers import Handlers
from stratalog.server.topics.missed_topics import MissedTopics
from stratalog.v1 import admin_pb2, log_pb2

_Request = TypeVar("_Request")
_Handler = Callable[[Any, Context], Awaitable[Any]]

_ONE_REQUEST = ("unary_unary", "unary_stream")
_MANY_REQUESTS = ("stream_unary", "stream_stream")


_PATIENCE_S = 5.0
"""How long the calls to an only server wait for a look, which it takes every few seconds anyway."""

_FREQUENT = frozenset({"Append", "AppendStream", "Fetch"})


class TopicGate:
    """Looks for unknown topics before it hands calls on. Belongs to the event loop."""

    def __init__(self, missed: MissedTopics, statuses: ErrorStatuses, *, is_of_only_server: bool) -> None:
        self._missed = missed
        self.statuses = statuses
        self._is_of_only_server = is_of_only_server
        self._left_out = _FREQUENT if is_of_only_server else frozenset[str]()

    def guarding(self, handlers: Handlers) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers behind this gate."""
        return {
            name: handler if name in self._left_out else self._guarding(handler)
            for name, handler in handlers.items()
        }

    def _guarding(self, handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
        # gRPC's handlers are named tuples, which its stubs do not say.
        one = cast(Any, handler)
        behind = {kind: self._behind(call) for kind in _ONE_REQUEST if (call := getattr(one, kind))}
        behind |= {kind: self._behind_each(call) for kind in _MANY_REQUESTS if (call := getattr(one, kind))}
        return cast("grpc.RpcMethodHandler[Any, Any]", one._replace(**behind))

    def _behind(self, handler: _Handler) -> _Handler:
        @functools.wraps(handler)
        async def handling(request: Any, context: Context) -> Any:
            await self._learn(request, context)
            return await handler(request, context)

        return handling

    def _behind_each(self, handler: _Handler) -> _Handler:
        @functools.wraps(handler)
        async def handling(requests: AsyncIterator[Any], context: Context) -> Any:
            return await handler(self._known(requests), context)

        return handling

    @guarded
    async def _learn(self, request: object, _context: Context) -> None:
        await self._look(topics_of(request))

    async def _look(self, names: Iterable[str]) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S if self._is_of_only_server else None):
                await self._missed.learn(names)
        except (StoreError, TimeoutError):
            if not self._is_of_only_server:
                raise

    async def _known(self, requests: AsyncIterator[_Request]) -> AsyncIterator[_Request]:
        """The requests of a stream, each after a look for its topic."""
        async for request in requests:
            try:
                await self._look(topics_of(request))
            except StoreError:
                # The handler refuses this request, and the others of the stream go on.
                pass
            yield request


def topics_of(request: object) -> Iterable[str]:
    """The topics that a request of a call names, and that should exist."""
    message = cast(object, request.request) if isinstance(request, Decoded) else request
    match message:
        case log_pb2.AppendRequest():
            # First: they are the most.
            return (message.topic,) if message.topic else ()
        case log_pb2.FetchRequest():
            return {one.topic for one in message.partitions}
        case log_pb2.CopyBatchesRequest():
            return {message.topic, *(one.topic for one in message.copies)} - {""}
        case log_pb2.ListOffsetsRequest():
            return {one.topic for one in message.queries}
        case admin_pb2.DescribeTopicsRequest():
            return message.names
        case admin_pb2.DeleteTopicRequest():
            return (message.name,)
        case admin_pb2.DescribeConfigsRequest() | admin_pb2.AlterConfigsRequest():
            return (message.resource.topic,) if message.resource.HasField("topic") else ()
        case Message():
            topic: str = getattr(message, "topic", "")
            topics: Iterable[str] = getattr(message, "topics", ())
            return (topic,) if topic else topics
        case _:
            return ()
