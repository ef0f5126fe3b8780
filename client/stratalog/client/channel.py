"""The connection to the server that owns the data. The only place that turns failed calls into errors.

A store has one owner at a time. A server that was replaced refuses calls with `NOT_OWNER`, without effect,
and names its successor. The connection moves there, and a unary call is made again. A stream that was refused
fails with an error that is retriable, so its user opens another one, at the successor.

A client may know several addresses: those that it was given, and the last successor. If the server does not
answer, or leaves the requests of a stream without an answer, the connection moves on to the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import grpc
from google.rpc.status_pb2 import Status

from stratalog.base.errors import InvalidRequestError, LogStoreError, NotOwnerError
from stratalog.client.errors import (
    ClientClosedError,
    ServerUnavailableError,
    error_of_call,
    error_of_status,
    refusing_misfits,
    unreachable,
)
from stratalog.client.retry import Patience, RetryPolicy
from stratalog.v1 import log_pb2, partition_pb2

_T = TypeVar("_T")

CALL_TIMEOUT_S = 30.0
"""The deadline of a call that waits for nothing but the server."""

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # The server limits its responses by the request, but a single batch may be larger.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Each client has its own connection, so that sessions do not queue behind each other.
    ("grpc.use_local_subchannel_pool", 1),
    # Retry policies decide about pauses. The transport's own pauses, which grow to minutes, would defeat
    # them.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # The longest wait for a connection. A machine that is gone does not refuse it.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # A connection whose other end is gone without a word is noticed by the missing answer to a ping. The
    # server allows a ping every ten seconds while a call is open.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class ServerChannel:
    """A connection to the owner of the data. Belongs to one event loop."""

    def __init__(self, addresses: str, retry: RetryPolicy | None = None) -> None:
        """`addresses` is HOST:PORT, or several with commas between. Connects when first used. Without retries
        (a deadline of 0) it follows no owner. Raises InvalidRequestError.
        """
        self._retry = retry or RetryPolicy()
        self._given = tuple(map(_checked, addresses.split(",")))
        self._successor: str | None = None
        """The owner that a server has named last."""
        self._channels: dict[str, grpc.aio.Channel] = {}
        """The connections by address. They stay until the end, because calls may be open on them."""
        self._is_closed = False
        self._move(self._given[0])
        self.grpc = cast(grpc.aio.Channel, _StubChannel(lambda: self.current))
        """The channel to make stubs on. Each call goes to the server that is current when it begins; a unary
        call begins when it is awaited, and each time anew.
        """

    @property
    def address(self) -> str:
        """The current address."""
        return self._address

    @property
    def current(self) -> grpc.aio.Channel:
        """The channel to the current address. Its calls do not follow."""
        return self._channels[self._address]

    async def connect(self) -> None:
        """Connect once to the current address, or else to another known one, unless connected. Raises
        ServerUnavailableError, and ClientClosedError; nothing was sent then.
        """
        known = self._known
        for _ in known:
            address = self._address
            with self.open():
                is_reachable = await self._is_reachable()
            if is_reachable:
                return
            self._leave(address)
        raise unreachable(",".join(known))

    async def call(self, call: Awaitable[_T]) -> _T:
        """Await a unary call of a stub that was made on `grpc`, and follow the owner until the retry policy's
        deadline. Raises LogStoreError: a NotOwnerError has both servers, the last one that refused (`server`)
        and the one that it names (`endpoint`).
        """
        patience = Patience(self._retry)
        while True:
            if len(self._known) > 1:
                await self.connect()
            server = self._address
            try:
                with self.open():
                    response = await call
            except grpc.aio.AioRpcError as error:
                failure = self.failure(error, server)
                if not isinstance(failure, NotOwnerError):
                    raise failure from None
            else:
                refusal = self._refusal_in(response, server)
                if refusal is None:
                    return response
                failure = refusal
            await patience.bear(failure)

    def failure(self, failed: grpc.RpcError | Status, server: str) -> LogStoreError:
        """The error for a failed call to that address, or for a failed part of its answer. If the server
        names another owner, or did not answer, the connection moves on; NotOwnerError is retriable then.
        """
        error = error_of_status(failed) if isinstance(failed, Status) else error_of_call(failed, server)
        if isinstance(error, NotOwnerError):
            error.fields["server"] = server
            if self._follow(str(error.fields.get("endpoint", "")), server):
                # An instance attribute, because only this connection has another server to ask.
                vars(error)["retriable"] = True
        elif isinstance(error, ServerUnavailableError):
            self._leave(server)
        return error

    def no_answer(self, message: str, server: str) -> ServerUnavailableError:
        """The error for a stream to that address whose requests get no answer, although the transport has not
        failed. The connection moves on.
        """
        self._leave(server)
        return ServerUnavailableError(message, server=server)

    @contextmanager
    def open(self) -> Generator[None]:
        """A context for calls, which need an open connection. Raises ClientClosedError if `close` is called
        before them or during them, and the task was not cancelled.
        """
        self._require_open()
        try:
            yield
        except (asyncio.CancelledError, grpc.aio.UsageError):
            # The transport cancels the calls of a channel that is closed, and refuses new ones.
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self._require_open()
            raise

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError("the client was closed; make another client") from None

    async def close(self) -> None:
        self._is_closed = True
        for channel in self._channels.values():
            await channel.close()

    def _refusal_in(self, response: object, server: str) -> NotOwnerError | None:
        """The refusal of a part of the answer, if the owner can be followed."""
        for status in _failed_parts(response):
            if isinstance(error_of_status(status), NotOwnerError):
                failure = self.failure(status, server)
                if isinstance(failure, NotOwnerError) and failure.retriable:
                    return failure
        return None

    def _follow(self, endpoint: str, server: str) -> bool:
        """Move to the endpoint that the server names, unless another call has moved on already. Returns False
        if there is no other server to ask.
        """
        if self._retry.deadline_s == 0:
            return False
        try:
            successor = _checked(endpoint) if endpoint else None
        except InvalidRequestError:
            successor = None
        if successor is None:
            self._leave(server)
        elif self._address == server:
            self._successor = successor
            self._move(successor)
        return self._address != server

    def _leave(self, server: str) -> None:
        """Move to the next known address, unless another call has moved on already."""
        known = self._known
        if self._address == server:
            self._move(known[(known.index(server) + 1) % len(known)])

    def _move(self, address: str) -> None:
        if address not in self._channels:
            with refusing_misfits():
                self._channels[address] = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._address = address

    @property
    def _known(self) -> list[str]:
        successors = () if self._successor is None else (self._successor,)
        return list(dict.fromkeys((*self._given, *successors)))

    async def _is_reachable(self) -> bool:
        """Whether the current address can be connected to."""
        channel = self.current
        while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                return False
            await channel.wait_for_state_change(state)
        return True


class _UnaryCall:
    """A call that begins each time that it is awaited."""

    def __init__(self, begin: Callable[[], Awaitable[Any]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._begin().__await__()


class _StubChannel:
    """The methods of a channel that stubs use. Each call goes to the current channel."""

    def __init__(self, current: Callable[[], grpc.aio.Channel]) -> None:
        self._current = current

    def unary_unary(self, *method: Any, **codec: Any) -> Callable[..., _UnaryCall]:
        call = self._method("unary_unary", method, codec)

        def prepared(request: Any, **options: Any) -> _UnaryCall:
            return _UnaryCall(lambda: call(request, **options))

        return prepared

    def unary_stream(self, *method: Any, **codec: Any) -> Callable[..., Any]:
        return self._method("unary_stream", method, codec)

    def stream_stream(self, *method: Any, **codec: Any) -> Callable[..., Any]:
        return self._method("stream_stream", method, codec)

    def _method(self, kind: str, method: tuple[Any, ...], codec: dict[str, Any]) -> Callable[..., Any]:
        made: dict[grpc.aio.Channel, Callable[..., Any]] = {}

        def call(*requests: Any, **options: Any) -> Any:
            channel = self._current()
            if channel not in made:
                made[channel] = getattr(channel, kind)(*method, **codec)
            return made[channel](*requests, **options)

        return call


def _checked(address: str) -> str:
    host, separator, port = address.strip().rpartition(":")
    if not separator or not host or not port.isdecimal():
        raise InvalidRequestError("the server's address must be HOST:PORT", server=address)
    return address.strip()


def _failed_parts(response: object) -> Iterator[Status]:
    """The failures inside an answer with several results."""
    parts: Any = ()
    match response:
        case (
            log_pb2.FetchResponse()
            | partition_pb2.DeleteRecordsResponse()
            | partition_pb2.RollResponse()
            | partition_pb2.FlushResponse()
        ):
            parts = response.partitions
        case log_pb2.ListOffsetsResponse():
            parts = response.answers
        case log_pb2.MetadataResponse():
            parts = response.topics
        case _:
            pass
    for part in parts:
        if part.HasField("error"):
            yield part.error
