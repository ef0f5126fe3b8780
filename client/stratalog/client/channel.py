"""The connection to the server that owns the data. The only place that turns failed calls into errors.

A store has one owner at a time. A server that was replaced refuses calls with `NOT_OWNER`, without effect,
and names its successor. The connection moves there, and a unary call is made again. A stream that was refused
fails with an error that is retriable, so its user opens another one, at the successor.

A client may know several addresses: those that it was given, and the last successor. If the server does not
answer, leaves the requests of a stream without an answer, or opens its logs, the connection moves on to the
next one.

A unary call has one budget, the deadline of the retry policy: for connections, for the way to the owner, and
for repetitions. Any call is repeated after a refusal without effect. Reads, look-ups and changes that may be
made twice are repeated after every retriable error. Others are not: after a failed connection the outcome of
an append is unknown, and repeating it could store its records twice.

A server that hangs would use up the whole budget. So an attempt of a call that may be repeated has only a
share of it while there is another address to try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, Protocol, TypeVar, cast

import grpc
from google.rpc.status_pb2 import Status

from stratalog.base.errors import (
    InvalidRequestError,
    LogStoreError,
    NotOwnerError,
    OverloadedError,
    StartingError,
)
from stratalog.client.access.credentials import CallHeaders, Credentials, Metadata
from stratalog.client.errors import (
    ClientClosedError,
    ServerUnavailableError,
    error_of_call,
    error_of_status,
    refusing_misfits,
    unreachable,
)
from stratalog.client.retry import Patience, RetryPolicy

_T = TypeVar("_T")

CALL_TIMEOUT_S = 30.0
"""The deadline of a call that waits for nothing but the server."""

CONNECT_TIMEOUT_S = 5.0
"""The longest wait for a connection to one address. A machine that is gone does not refuse it."""

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
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_TIMEOUT_S * 1000)),
    # A connection whose other end is gone without a word is noticed by the missing answer to a ping. The
    # server allows a ping every ten seconds while a call is open.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # The transport waits for the answer to a ping as long as this; its own default is a minute.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)

_WITHOUT_EFFECT = (NotOwnerError, OverloadedError)
"""Refusals of a whole request."""


class AnswerPart(Protocol):
    """One of several results of an answer, each of which may have failed."""

    @property
    def error(self) -> Status: ...

    def HasField(self, field_name: Literal["error"], /) -> bool: ...  # noqa: N802 - protobuf's name


def no_parts(_: object) -> Iterable[AnswerPart]:
    """The parts of an answer that has only one result."""
    return ()


class ServerChannel:
    """A connection to the owner of the data. Belongs to one event loop."""

    follows: ClassVar[bool] = True
    """Whether it moves on to another server by itself."""

    def __init__(
        self, addresses: str, retry: RetryPolicy | None = None, credentials: Credentials | None = None
    ) -> None:
        """`addresses` is HOST:PORT, or several with commas between. Connects when first used. Without retries
        (a deadline of 0) it follows no owner. Raises InvalidRequestError.
        """
        self._retry = retry or RetryPolicy()
        self.credentials = credentials or Credentials()
        """The credentials of its calls, for each server that it goes to."""
        self._given = tuple(map(_checked, addresses.split(",")))
        self._successor: str | None = None
        """The owner that a server has named last."""
        self._channels: dict[str, grpc.aio.Channel] = {}
        """The connections by address. They stay until the end, because calls may be open on them."""
        self._is_closed = False
        self._move(self._given[0])
        self.grpc = cast(grpc.aio.Channel, _StubChannel(lambda: self.current, CallHeaders(self.credentials)))
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

    @property
    def retry(self) -> RetryPolicy:
        """The policy of its calls."""
        return self._retry

    async def connect(self, patience: Patience) -> None:
        """Connect to the current address, or else to another known one, unless connected, within the deadline
        of the patience, or five seconds if that is longer. Raises ServerUnavailableError, and
        ClientClosedError; nothing was sent then.

        The deadline is divided: each address has the same share of the time that is left.
        """
        end_s = patience.end_s(asyncio.get_running_loop().time(), CONNECT_TIMEOUT_S)
        known = self._known
        for left_count in range(len(known), 0, -1):
            address = self._address
            now_s = asyncio.get_running_loop().time()
            with self.open():
                is_reachable = await self._is_reachable(now_s + max(0.0, end_s - now_s) / left_count)
            if is_reachable:
                return
            self._leave(address)
        raise unreachable(",".join(known))

    async def call(
        self,
        call: Awaitable[_T],
        *,
        is_repeatable: bool = False,
        parts: Callable[[_T], Iterable[AnswerPart]] = no_parts,
        wait_s: float = 0.0,
    ) -> _T:
        """Await a unary call of a stub that was made on `grpc`. Until the retry policy's deadline it follows
        the owner, and is made again after refusals without effect; if it is repeatable, after all retriable
        errors. `parts` are the results in its answer: it is also made again if the owner of one has changed,
        and has to be repeatable then. `wait_s` is the time for which a sound server may wait by the request.

        Raises LogStoreError: a NotOwnerError has both servers, the last one that refused (`server`) and the
        one that it names (`endpoint`).
        """
        patience = Patience(self._retry)
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        silence_count = 0
        while True:
            share_s = self._share_s(silence_count, patience.end_s(start_s) - loop.time())
            timeout_s = share_s + wait_s if is_repeatable and share_s is not None else None
            try:
                return await self.attempt(call, patience, parts, timeout_s)
            except LogStoreError as error:
                if not (is_repeatable or isinstance(error, _WITHOUT_EFFECT)):
                    raise
                silence_count += isinstance(error, ServerUnavailableError)
                failure = error
            await patience.bear(failure, start_s)

    def _share_s(self, silence_count: int, left_s: float) -> float | None:
        """The time of an attempt while there is another address to try, after so many attempts without an
        answer, with so much of the budget left. None: the transport's timeout ends it. So a server that is
        slow, but the only one that answers, is asked again without hurry.
        """
        address_count = len(self._known)
        share_s = self._retry.deadline_s / address_count
        return share_s if silence_count < address_count - 1 and 0 < share_s < left_s else None

    async def attempt(
        self,
        call: Awaitable[_T],
        patience: Patience,
        parts: Callable[[_T], Iterable[AnswerPart]] = no_parts,
        timeout_s: float | None = None,
    ) -> _T:
        """Make the call once, at the current address, for callers that repeat it by themselves. `patience` is
        that of `connect`, `parts` those of `call`. Without an answer in `timeout_s` the connection moves on.
        Raises LogStoreError.
        """
        if len(self._known) > 1:
            await self.connect(patience)
        server = self._address
        try:
            with self.open():
                async with asyncio.timeout(timeout_s):
                    response = await call
        except TimeoutError:
            raise self.no_answer("the server did not answer in time; try again", server) from None
        except grpc.aio.AioRpcError as error:
            raise self.failure(error, server) from None
        self._require_owner(parts(response), server)
        return response

    def failure(self, failed: grpc.RpcError | Status, server: str) -> LogStoreError:
        """The error for a failed call to that address, or for a failed part of its answer. If the server
        names another owner, did not answer, or is not open yet, the connection moves on; NotOwnerError is
        retriable then.
        """
        error = error_of_status(failed) if isinstance(failed, Status) else error_of_call(failed, server)
        if isinstance(error, NotOwnerError):
            error.fields["server"] = server
            if self._follow(str(error.fields.get("endpoint", "")), server):
                error.retriable = True
        elif isinstance(error, ServerUnavailableError | StartingError):
            self._leave(server)
        return error

    def no_answer(self, message: str, server: str) -> ServerUnavailableError:
        """The error for a call to that address that gets no answer, although the transport has not failed.
        The connection moves on.
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
            raise ClientClosedError from None

    async def close(self) -> None:
        self._is_closed = True
        for channel in self._channels.values():
            await channel.close()

    def _require_owner(self, parts: Iterable[AnswerPart], server: str) -> None:
        """Raise the NotOwnerError of a part if the owner can be followed."""
        for part in parts:
            if part.HasField("error") and isinstance(error_of_status(part.error), NotOwnerError):
                refusal = self.failure(part.error, server)
                if refusal.retriable:
                    raise refusal

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
                self._channels[address] = self.credentials.channel(address, CHANNEL_OPTIONS)
        self._address = address

    @property
    def _known(self) -> list[str]:
        successors = () if self._successor is None else (self._successor,)
        return list(dict.fromkeys((*self._given, *successors)))

    async def _is_reachable(self, until_s: float) -> bool:
        """Whether the current address can be connected to until that time."""
        channel = self.current
        try:
            async with asyncio.timeout_at(until_s):
                while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        return False
                    await channel.wait_for_state_change(state)
        except TimeoutError:
            return False
        return True


class _UnaryCall:
    """A call that begins each time that it is awaited."""

    def __init__(self, begin: Callable[[], Awaitable[Any]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._begin().__await__()


class _StubChannel:
    """The methods of a channel that stubs use. Each call goes to the current channel, with the headers of
    its time."""

    def __init__(self, current: Callable[[], grpc.aio.Channel], headers: CallHeaders) -> None:
        self._current = current
        self._headers = headers

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
            headers = self._headers.now()
            if headers:
                given: Metadata = options.get("metadata") or ()
                options = {**options, "metadata": (*given, *headers)}
            return made[channel](*requests, **options)

        return call


def _checked(address: str) -> str:
    host, separator, port = address.strip().rpartition(":")
    if not separator or not host or "/" in host or not port.isdecimal():
        raise InvalidRequestError(
            "the server's address must be HOST:PORT, without a scheme or a path", server=address
        )
    return address.strip()
