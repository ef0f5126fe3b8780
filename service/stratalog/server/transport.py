"""The transport: gRPC's server on the port, and the next one on the same port if gRPC's ends by itself.

gRPC's accepting loop fails at a call whose path is no UTF-8, which any stranger can send. From then on that
server refuses all connections, but the calls that are open stay open for as long as their clients like. So
the transport looks for the failure, ends those calls, and listens again with a new server of gRPC. If that
fails, as without a free descriptor, it says so and tries again after growing pauses, until it is stopped.
Meanwhile `fault` says why nothing listens, for the probe of readiness.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import grpc

from stratalog.segment.open_files import max_open_below
from stratalog.server import health_servicer
from stratalog.server.access.server_tls import ServerTls
from stratalog.server.configuration.settings import ServerSettings, listen_address
from stratalog.server.listen_port import cannot_listen, require_free
from stratalog.v1 import log_pb2

logger = logging.getLogger(__name__)

MAX_PENDING_CALL_COUNT = 100_000
"""Calls that have arrived and are not looked at yet. Their messages are not read."""

MIN_PING_INTERVAL_MS = 10_000
"""A client may ping a silent connection this often. Clients of ours do so every 30 seconds."""

LOOK_S = 0.25
"""Time between looks for a failure of gRPC's accepting loop. Without open calls it is noticed at once."""

END_S = 1.0
"""The calls of a failed server have this time to end before another server listens."""

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 5.0
"""The pause after a failure to listen again; it doubles with each failure in a row."""

OTHER_FILE_COUNT = 256
"""Descriptors for all that is neither a connection of gRPC nor a log file that stays open: the endpoint of
metrics, connections to the store, files in use beyond those, pipes. With a small limit of open files it is a
quarter of that."""

_METHODS_WITH_QUEUES = (
    (health_servicer.SERVICE_NAME, "Check"),
    (log_pb2.DESCRIPTOR.services_by_name["LogService"].full_name, "Append"),
)
"""gRPC accepts one call after the other out of each queue, and has one queue for all methods not in here.
A rush of appends fills its own, so other calls need not wait behind it."""


class Transport:
    """Listens on one port until it is stopped. Belongs to one event loop."""

    def __init__(
        self,
        listen: str,
        tls: ServerTls | None,
        make: Callable[[], grpc.aio.Server],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take the port of the address `listen`. `make` makes a server of gRPC, and `pause` waits for so many
        seconds. Raises InvalidConfigError (port in use)."""
        self._tls = tls
        self._make = make
        self._pause = pause
        self._handlers: Sequence[grpc.GenericRpcHandler] = ()
        self._grpc, self.port = self._listener(listen)
        self._address = f"{listen_address(listen)[0]}:{self.port}"
        self._watch: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Task[None]] = set()
        """The ends of failed servers."""
        self._opening = asyncio.Lock()
        """Held while another server begins to listen, and while a stop begins: it stops the newest one."""
        self._is_stopping = False
        self.fault = ""
        """Why nothing listens for now; empty: the port is listened on. Other threads may read it."""

    async def start(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Accept calls, which these handlers answer."""
        self._handlers = handlers
        await self._accept(self._grpc)
        self._watch = asyncio.create_task(self._replace_failed())

    async def stop(self, grace_s: float | None) -> None:
        """Accept nothing any more, and end the calls that are still open after the grace, or at once without
        one."""
        async with self._opening:
            self._is_stopping = True
            if self._watch is not None:
                self._watch.cancel()
        await _end(self._grpc, grace_s)
        ending = {*self._endings, *(() if self._watch is None else (self._watch,))}
        if ending:
            await asyncio.wait(ending)

    def _listener(self, address: str) -> tuple[grpc.aio.Server, int]:
        """A server of gRPC that has the port of the address, and the port. Raises InvalidConfigError."""
        require_free(address)
        server = self._make()
        try:
            if self._tls is None:
                return server, server.add_insecure_port(address)
            return server, server.add_secure_port(address, self._tls.credentials())
        except RuntimeError as error:
            raise cannot_listen(address, str(error)) from None

    async def _accept(self, server: grpc.aio.Server) -> None:
        for service, method in _METHODS_WITH_QUEUES:
            # No handler: the ones below have it. gRPC's stubs do not have the method.
            cast(Any, server).add_registered_method_handlers(service, {method: None})
        server.add_generic_rpc_handlers(self._handlers)
        await server.start()

    async def _replace_failed(self) -> None:
        """Listen again each time that gRPC's server has failed, until the stop."""
        while not self._is_stopping:
            try:
                # With open calls only the end of the time shows the failure.
                if not await self._grpc.wait_for_termination(LOOK_S):
                    return
            except Exception as error:  # noqa: BLE001 - whatever it is, the server accepts no call any more
                # A wait that ends at the moment of its cancellation forgets the cancellation.
                if not self._is_stopping:
                    await self._replace(error)

    async def _replace(self, cause: Exception) -> None:
        """End the failed server, and listen again as soon as possible."""
        is_path = isinstance(cause, UnicodeDecodeError)
        reason = "a call had a path that is no UTF-8" if is_path else str(cause) or repr(cause)
        self._report_fault(reason)
        ending = asyncio.create_task(_end(self._grpc, None))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        await asyncio.wait({ending}, timeout=END_S)
        pause_s = FIRST_PAUSE_S
        while True:
            async with self._opening:
                if await self._listens_again(reason, pause_s):
                    return
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _listens_again(self, reason: str, pause_s: float) -> bool:
        """Listen with a new server; False if that fails, and another attempt follows after the pause."""
        try:
            server, _ = self._listener(self._address)
            await self._accept(server)
        except Exception as error:  # noqa: BLE001 - without the port nothing is served, whatever failed here
            self._report_fault(str(error) or repr(error))
            logger.error(
                "gRPC has ended all connections (%s), and the server cannot listen on %s again; it tries that"
                " again in %.1f s: %s",
                reason,
                self._address,
                pause_s,
                str(error) or repr(error),
            )
            return False
        self._grpc = server
        self.fault = ""
        logger.warning(
            "gRPC has ended all connections (%s); the server listens on %s again", reason, self._address
        )
        return True

    def _report_fault(self, reason: str) -> None:
        self.fault = f"nothing listens on {self._address}: {reason}"


def max_connections_below(open_file_limit: int) -> int:
    """The number of connections that a process with this limit of open files has descriptors for, beside the
    log files that stay open and the descriptors of all else."""
    other_count = min(OTHER_FILE_COUNT, open_file_limit // 4)
    return max(1, open_file_limit - max_open_below(open_file_limit) - other_count)


def within_open_files(settings: ServerSettings, open_file_limit: int) -> ServerSettings:
    """The settings with as many connections as the limit of open files leaves room for, and with a warning if
    these are fewer. Strangers who only connect would take all descriptors otherwise."""
    wanted, count = settings.max_connection_count, max_connections_below(open_file_limit)
    if wanted <= count:
        return settings
    logger.warning(
        "max-connections is %d, and %d files may be open, sockets included, so %d connections are taken at"
        " most; raise the limit of open files (LimitNOFILE=, ulimit -Hn), or lower max-connections",
        wanted,
        open_file_limit,
        count,
    )
    return dataclasses.replace(settings, max_connection_count=count)


def grpc_server(
    settings: ServerSettings, interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
) -> grpc.aio.Server:
    """A server of gRPC within the bounds that the settings give it, without a port."""
    return grpc.aio.server(
        interceptors=interceptors,
        options=[
            ("grpc.max_receive_message_length", settings.max_receive_bytes),
            # Above the transport's own bound it cancels calls without a word, health checks among them.
            ("grpc.server.max_pending_requests", MAX_PENDING_CALL_COUNT),
            ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALL_COUNT),
            ("grpc.max_allowed_incoming_connections", settings.max_connection_count),
            ("grpc.max_concurrent_streams", settings.max_stream_count),
            # An answer is bounded by its request, but one batch may always be larger.
            ("grpc.max_send_message_length", -1),
            # Otherwise two servers share a port silently, and a client reaches either of them.
            ("grpc.so_reuseport", 0),
            # Clients ping a silent connection to notice that it is lost; gRPC would end the calls of those
            # that ping more often than every five minutes.
            ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
            # Both sides may ping a connection without calls, too.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.keepalive_time_ms", settings.keepalive_ms),
            ("grpc.keepalive_timeout_ms", settings.keepalive_timeout_ms),
            # The transport waits for the answer to a ping as long as this; its own default is a minute.
            ("grpc.http2.ping_timeout_ms", settings.keepalive_timeout_ms),
            ("grpc.http2.max_pings_without_data", 0),
            # It also bounds the wait for the first frame of HTTP/2, and so a connection that says nothing.
            ("grpc.server_handshake_timeout_ms", settings.handshake_timeout_ms),
            ("grpc.max_connection_idle_ms", settings.max_idle_ms),
        ],
        maximum_concurrent_rpcs=settings.max_call_count,
    )


async def _end(server: grpc.aio.Server, grace_s: float | None) -> None:
    """Stop a server of gRPC, as `Transport.stop` says."""
    try:
        await server.stop(grace_s)
    except Exception:  # noqa: BLE001 - it is the failure of the accepting loop, whatever that is
        # The first stop after the failure raises it, and leaves the calls alone.
        await server.stop(grace_s)
