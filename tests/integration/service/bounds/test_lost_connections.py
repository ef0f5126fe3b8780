"""Connections that are lost or do nothing give back their places and those of their calls."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from stratalog.client.channel import CHANNEL_OPTIONS
from stratalog.server.call_counts import CallKind
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.transport import grpc_server
from stratalog.v1 import log_pb2, log_pb2_grpc
from tests.support.access.certificates import Authority
from tests.support.service.health_check import require_health
from tests.support.service.service_bench import PATIENCE_S, service_bench, until

FETCH = log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="t")], max_wait_ms=60_000, min_bytes=1)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EMPTY_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
OWN = (("grpc.use_local_subchannel_pool", 1),)
CHUNK_BYTES = 1 << 16


class DeafProxy:
    """Forwards connections to an address until it is deaf. Belongs to one event loop."""

    def __init__(self, target: str) -> None:
        """`target` is HOST:PORT."""
        self.is_deaf = False
        """From now on it passes nothing on, in either direction, and closes nothing."""
        self.closed_count = 0
        """Connections that the target has closed."""
        self._host, _, self._port = target.rpartition(":")
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection."""
        target_reader, target_writer = await asyncio.open_connection(self._host, int(self._port))
        there = asyncio.create_task(self._pass_on(reader, target_writer))
        back = asyncio.create_task(self._pass_on(target_reader, writer))
        self._tasks |= {there, back}
        await asyncio.wait({back})
        self.closed_count += 1

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                if not self.is_deaf:
                    writer.write(chunk)
                    await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()


@asynccontextmanager
async def deaf_proxy(target: str) -> AsyncGenerator[tuple[DeafProxy, str]]:
    """A proxy before the address `target`, and its own address."""
    proxy = DeafProxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield proxy, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await proxy.close()


async def test_the_calls_of_a_client_that_is_gone_without_a_word_end(tmp_path: Path) -> None:
    short: dict[str, Any] = {"max_read_call_count": 1, "keepalive_ms": 300, "keepalive_timeout_ms": 500}
    async with (
        service_bench(tmp_path, **short) as bench,
        deaf_proxy(bench.client.address) as (proxy, address),
        grpc.aio.insecure_channel(address, options=OWN) as channel,
    ):
        await bench.client.admin.create_topic("t")
        stream: Any = log_pb2_grpc.LogServiceStub(cast(Any, channel)).FetchStream(FETCH)
        reads = bench.server.calls[CallKind.READ]
        await until(lambda: reads.open_count == 1)
        # A client that lives answers the pings of its quiet stream.
        await asyncio.sleep(2.0)
        assert reads.open_count == 1
        assert not stream.done()
        proxy.is_deaf = True
        await until(lambda: reads.open_count == 0)
        await until(lambda: proxy.closed_count == 1)


@pytest.mark.parametrize("has_tls", [False, True])
async def test_connections_that_do_nothing_make_room(tmp_path: Path, has_tls: bool) -> None:
    """Silent in the handshake of TLS, before the preface, before the settings, and without calls."""
    settings: dict[str, Any] = {"max_connection_count": 4, "handshake_timeout_ms": 500, "max_idle_ms": 500}
    if has_tls:
        cert, key = Authority(tmp_path, "ca").issue("server", "127.0.0.1")
        settings |= {"tls_cert": cert, "tls_key": key}
    async with AsyncExitStack() as stack:
        # The client of the bench has no TLS, and connects when it is first used.
        bench = await stack.enter_async_context(service_bench(tmp_path / "server", **settings))
        host, _, port = bench.client.address.rpartition(":")
        strangers: list[asyncio.StreamReader] = []
        for first in (b"", b"\x16\x03\x01", PREFACE, PREFACE + EMPTY_SETTINGS):
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            writer.write(first)
            strangers.append(reader)
        async with asyncio.timeout(PATIENCE_S):
            for stranger in strangers:
                await until_closed(stranger)
        if not has_tls:
            await require_health(bench.client.address)


async def until_closed(reader: asyncio.StreamReader) -> None:
    """Read to the end."""
    try:
        while await reader.read(1 << 16):
            pass
    except ConnectionResetError:
        return


async def test_a_client_comes_back_after_its_idle_connection_was_closed(tmp_path: Path) -> None:
    async with (
        service_bench(tmp_path, max_idle_ms=300) as bench,
        grpc.aio.insecure_channel(bench.client.address, options=OWN) as channel,
    ):
        await channel.channel_ready()
        async with asyncio.timeout(PATIENCE_S):
            await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        assert channel.get_state() is grpc.ChannelConnectivity.IDLE
        await bench.client.admin.create_topic("t")
        assert await bench.append("t", [b"x"]) == 0


def unknown_to_grpc(names: Iterable[str]) -> set[str]:
    """The names that gRPC's library does not contain: it ignores an option that it does not know."""
    library = Path(str(importlib.import_module("grpc._cython.cygrpc").__file__)).read_bytes()
    return {name for name in names if name.encode() + b"\0" not in library}


def test_grpc_knows_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, int]] = []

    def note(options: list[tuple[str, int]], **_: object) -> None:
        given.extend(options)

    monkeypatch.setattr(grpc.aio, "server", note)
    grpc_server(ServerSettings(data_dir="/nowhere"))
    assert unknown_to_grpc(["grpc.no_such_option"])
    names = {name for name, _ in (*given, *CHANNEL_OPTIONS)}
    assert unknown_to_grpc(names) == set()
