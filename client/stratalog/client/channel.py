"""The connection to one server. The only place that turns failed calls into errors."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import grpc

from stratalog.base.errors import InvalidRequestError
from stratalog.client.errors import error_of_call, refusing_misfits, unreachable

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
    # A connection whose other end is gone without a word is noticed by the missing answer to a ping. The
    # server allows a ping every ten seconds while a call is open.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class ServerChannel:
    """A gRPC channel to `address`. Belongs to one event loop."""

    def __init__(self, address: str) -> None:
        """`address` is HOST:PORT. Raises InvalidRequestError. Connects when first used."""
        host, separator, port = address.rpartition(":")
        if not separator or not host or not port.isdecimal():
            raise InvalidRequestError("the server's address must be HOST:PORT", server=address)
        self.address = address
        with refusing_misfits():
            self.grpc = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)

    async def connect(self) -> None:
        """Connect once, unless connected. Raises ServerUnavailableError; nothing was sent then."""
        while (state := self.grpc.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                raise unreachable(self.address)
            await self.grpc.wait_for_state_change(state)

    async def call(self, call: Awaitable[_T]) -> _T:
        """Await a unary call. Raises LogStoreError."""
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error, self.address) from None

    async def close(self) -> None:
        await self.grpc.close()
