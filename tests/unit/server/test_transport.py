"""A transport listens again when gRPC's server has ended by itself, until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import grpc
import pytest

from stratalog.base.clock import SystemClock
from stratalog.server.access.server_tls import ServerTls, TlsPaths
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.transport import FIRST_PAUSE_S, Transport, grpc_server, within_open_files
from tests.support.access.certificates import Authority
from tests.support.fuzz.http2_connection import call_of_path, send_bytes, tls_context
from tests.support.service.service_bench import PATIENCE_S, until

SETTINGS = ServerSettings(data_dir="/nowhere")
LOGGER = "stratalog.server.transport"
EMPTY = b""
AT_ONCE = (("grpc.initial_reconnect_backoff_ms", 20), ("grpc.min_reconnect_backoff_ms", 20))
"""A client that does not wait for long before it connects again."""


class Tls(NamedTuple):
    """TLS of both sides."""

    server: ServerTls
    channel: grpc.ChannelCredentials
    context: ssl.SSLContext
    """The client's, for what no gRPC library would send."""


def tls_in(folder: Path, *, is_mutual: bool) -> Tls:
    authority = Authority(folder, "ca")
    server = authority.issue("server", "127.0.0.1")
    root = Path(authority.path).read_bytes()
    if not is_mutual:
        channel = grpc.ssl_channel_credentials(root)
        return Tls(ServerTls(TlsPaths(*server), SystemClock()), channel, tls_context(authority.path))
    holder = authority.issue("holder")
    channel = grpc.ssl_channel_credentials(
        root, Path(holder.key).read_bytes(), Path(holder.cert).read_bytes()
    )
    context = tls_context(authority.path, *holder)
    return Tls(ServerTls(TlsPaths(*server, authority.path), SystemClock()), channel, context)


class Bench:
    """A transport with a call that stays open for as long as its client likes."""

    def __init__(self, tls: Tls | None = None) -> None:
        self._tls = tls
        self.before_make: list[Callable[[], object]] = []
        """The next server of gRPC is made behind the first one of these."""
        self.pauses: list[float] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        """Ends the pauses."""
        self.transport = Transport("127.0.0.1:0", tls and tls.server, self._make, self._pause)
        self.address = f"127.0.0.1:{self.transport.port}"

    async def start(self) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Wait": grpc.unary_stream_rpc_method_handler(cast(Any, _wait)),
            "Echo": grpc.unary_unary_rpc_method_handler(cast(Any, _echo)),
        }
        await self.transport.start([grpc.method_handlers_generic_handler("test", handlers)])

    def _make(self) -> grpc.aio.Server:
        if self.before_make:
            self.before_make.pop(0)()
        return grpc_server(SETTINGS)

    async def _pause(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        await self.may_go_on.wait()

    @asynccontextmanager
    async def open_call(self) -> AsyncGenerator[asyncio.Task[grpc.StatusCode]]:
        """A call that the server has begun to answer; the task ends with its status."""
        async with self._channel() as channel:
            call = cast(Any, channel).unary_stream("/test/Wait")(EMPTY)
            assert await call.read() == EMPTY
            yield asyncio.ensure_future(call.code())

    async def break_down(self) -> None:
        await send_bytes(self.address, call_of_path("/\udcff"), 0.1, self._tls and self._tls.context)

    async def answers(self) -> bool:
        async with self._channel(AT_ONCE) as channel:
            call = cast(Any, channel).unary_unary("/test/Echo")
            return bool(await call(b"x", wait_for_ready=True, timeout=PATIENCE_S) == b"x")

    def _channel(self, options: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(self.address, options=options)
        return grpc.aio.secure_channel(self.address, self._tls.channel, options=options)

    def is_free(self) -> bool:
        """Whether no socket listens on the port."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.transport.port)) == errno.ECONNREFUSED


async def _wait(_: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.write(EMPTY)
    await asyncio.Event().wait()


async def _echo(request: bytes, _: object) -> bytes:
    return request


@asynccontextmanager
async def started(tls: Tls | None = None) -> AsyncGenerator[Bench]:
    bench = Bench(tls)
    await bench.start()
    try:
        yield bench
    finally:
        bench.may_go_on.set()
        await bench.transport.stop(None)


def levels(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [record.levelno for record in caplog.records if record.name == LOGGER]


async def until_logged(caplog: pytest.LogCaptureFixture, count: int) -> None:
    await until(lambda: len(levels(caplog)) == count)


async def test_a_failed_server_is_replaced_though_a_call_is_open(caplog: pytest.LogCaptureFixture) -> None:
    async with started() as bench:
        for count in (1, 2):
            async with bench.open_call() as call:
                await bench.break_down()
                # Until it notices, the failed server may still answer.
                await until_logged(caplog, count)
                assert await bench.answers()
                async with asyncio.timeout(PATIENCE_S):
                    assert await call is grpc.StatusCode.UNAVAILABLE, "the log says that all have ended"
            assert levels(caplog) == [logging.WARNING] * count
        assert bench.pauses == []


@pytest.mark.parametrize("is_mutual", [False, True])
async def test_a_failed_server_with_tls_is_replaced_each_time(
    tmp_path: Path, is_mutual: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(tls_in(tmp_path, is_mutual=is_mutual)) as bench:
        assert await bench.answers()
        # An attempt that fails is not followed by another one.
        bench.may_go_on.clear()
        for count in (1, 2, 3):
            await bench.break_down()
            await until_logged(caplog, count)
            assert levels(caplog) == [logging.WARNING] * count
            assert await bench.answers()
        assert (bench.pauses, bench.transport.fault) == ([], "")


async def test_nothing_listens_after_the_stop_of_a_failed_server() -> None:
    async with started() as bench, bench.open_call() as call:
        await bench.break_down()
        await bench.transport.stop(None)
        async with asyncio.timeout(PATIENCE_S):
            assert await call is grpc.StatusCode.UNAVAILABLE
        assert bench.is_free()
        assert asyncio.all_tasks() <= {asyncio.current_task(), call}


async def test_a_port_that_cannot_be_had_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as other:
        async with started() as bench:

            def find_no_descriptor() -> None:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

            def lose_port() -> None:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                other.bind(("127.0.0.1", bench.transport.port))
                other.listen()
                bench.may_go_on.clear()

            bench.before_make = [find_no_descriptor, lose_port]
            await bench.break_down()
            await until(lambda: len(bench.pauses) == 2)
            assert bench.pauses == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S]
            assert levels(caplog) == [logging.ERROR] * 2
            assert os.strerror(errno.EMFILE) in caplog.text
            assert bench.transport.fault.startswith(f"nothing listens on {bench.address}: cannot listen")
            other.close()
            bench.may_go_on.set()
            assert await bench.answers()
            assert bench.transport.fault == ""
            assert levels(caplog) == [logging.ERROR] * 2 + [logging.WARNING]


async def test_a_stop_ends_the_attempts_to_listen(caplog: pytest.LogCaptureFixture) -> None:
    async with started() as bench:
        bench.may_go_on.clear()
        bench.before_make = [lambda: 1 / 0]
        await bench.break_down()
        await until(lambda: bool(bench.pauses))
        async with asyncio.timeout(PATIENCE_S):
            await bench.transport.stop(None)
        assert bench.is_free()
        assert levels(caplog) == [logging.ERROR]


class FailingServer:
    """A server of gRPC whose accepting loop fails when the test says so, or at the moment of its stop. The
    first stop raises the failure and ends no call."""

    def __init__(self) -> None:
        self.stops: list[float | None] = []
        self.failure = UnicodeDecodeError("utf-8", b"/\xff", 1, 2, "invalid start byte")
        self.fails, self.is_starting, self.may_start = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.is_watched = asyncio.Event()

    def add_insecure_port(self, _: str) -> int:
        return 0

    def add_generic_rpc_handlers(self, _: object) -> None:
        pass

    def add_registered_method_handlers(self, _: str, handlers: object) -> None:
        pass

    async def start(self) -> None:
        self.is_starting.set()
        await self.may_start.wait()

    async def wait_for_termination(self, _: float) -> bool:
        self.is_watched.set()
        # A wait with a limit that ends at the moment of its cancellation forgets the cancellation.
        with suppress(asyncio.CancelledError):
            await self.fails.wait()
        raise self.failure

    async def stop(self, grace_s: float | None) -> None:
        self.stops.append(grace_s)
        if len(self.stops) == 1:
            raise self.failure


@asynccontextmanager
async def started_failing(first: FailingServer, second: FailingServer) -> AsyncGenerator[Transport]:
    """A transport with the first server, which listens with the second one after a failure."""
    servers = [second, first]
    transport = Transport("127.0.0.1:0", None, lambda: cast(grpc.aio.Server, servers.pop()))
    first.may_start.set()
    await transport.start([])
    async with asyncio.timeout(PATIENCE_S):
        await first.is_watched.wait()
        yield transport


async def test_a_failure_at_the_moment_of_the_stop_does_not_disturb_the_stop() -> None:
    first, second = FailingServer(), FailingServer()
    async with started_failing(first, second) as transport:
        await transport.stop(3.0)
    assert first.stops == [3.0, 3.0], "the second one ends the calls"
    assert not second.is_starting.is_set()


async def test_a_stop_waits_for_the_server_that_begins_to_listen_and_stops_it() -> None:
    first, second = FailingServer(), FailingServer()
    async with started_failing(first, second) as transport:
        first.fails.set()
        await second.is_starting.wait()
        stopping = asyncio.create_task(transport.stop(3.0))
        await asyncio.sleep(0)
        second.may_start.set()
        await stopping
    assert first.stops == [None, None]
    assert second.stops == [3.0, 3.0]


@pytest.mark.parametrize(
    ("limit", "count"),
    [
        (1_000_000, 4_096),
        (10_000, 4_096),
        (4_096, 1_792),
        (1_024, 256),
        # A quarter is for all else then.
        (600, 150),
        (8, 2),
        (1, 1),
    ],
)
def test_connections_leave_descriptors_for_files(
    limit: int, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    found = within_open_files(SETTINGS, limit)
    assert found.max_connection_count == count
    warned = [record.args for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == ([] if count == SETTINGS.max_connection_count else [(4_096, limit, count)])
    # A bound that fits stays as it is.
    few = ServerSettings(data_dir="/nowhere", max_connection_count=1)
    assert within_open_files(few, limit) is few
