"""Calls whose message never comes, or whose answer is never read, count, and keep no other call out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2

from stratalog.base.errors import (
    AuthenticationFailedError,
    InvalidRequestError,
    LogStoreError,
    OverloadedError,
    StoppingError,
)
from stratalog.client.errors import error_of_call
from stratalog.server import health_servicer
from stratalog.server.call_counts import CallKind
from stratalog.server.configuration.settings import MAX_CONNECTION_CHECK_COUNT
from stratalog.server.rpc import call_limits
from stratalog.testing.manual_clock import ManualClock
from stratalog.v1 import log_pb2
from tests.support.access.certificates import CertificateFiles
from tests.support.access.guarded_site import GuardedSite
from tests.support.fuzz.http2_connection import unread_calls
from tests.support.service.health_check import require_health
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench, until

LOG, ADMIN = "/stratalog.v1.LogService", "/stratalog.v1.AdminService"
CHECK = "/grpc.health.v1.Health/Check"
PATHS = {
    CallKind.APPEND: f"{LOG}/Append",
    CallKind.READ: f"{LOG}/FetchStream",
    CallKind.ADMIN: f"{ADMIN}/ListTopics",
    CallKind.CHECK: CHECK,
    CallKind.WATCH: "/grpc.health.v1.Health/Watch",
}
OWN = (("grpc.use_local_subchannel_pool", 1),)
APPEND = log_pb2.AppendRequest(topic="t", records=log_pb2.Records(records=[log_pb2.Record(value=b"x")]))


@asynccontextmanager
async def own_connection(address: str) -> AsyncGenerator[grpc.aio.Channel]:
    """A connection that no other channel has."""
    async with grpc.aio.insecure_channel(address, options=OWN) as channel:
        yield channel


def begun(channel: grpc.aio.Channel, path: str, **options: Any) -> Any:
    """A call whose message is not sent."""
    return cast(Any, channel).stream_unary(path)(**options)


async def refusal_of(call: Any) -> LogStoreError:
    """The error that ends the call."""
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
    return error_of_call(caught.value, "")


async def until_open(bench: ServiceBench, kind: CallKind, count: int) -> None:
    await until(lambda: bench.server.calls[kind].open_count == count)


async def metrics_text(bench: ServiceBench) -> str:
    url = f"http://127.0.0.1:{bench.server.metrics_port}/metrics"
    with await asyncio.to_thread(urlopen, url) as answer:
        return cast(bytes, answer.read()).decode()


@asynccontextmanager
async def written(bench: ServiceBench, data: bytes) -> AsyncGenerator[None]:
    """A connection to which these bytes are written, and from which nothing is read."""
    _, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
    try:
        writer.write(data)
        yield
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("kind", PATHS)
async def test_a_call_counts_in_its_kind_before_its_message_comes(tmp_path: Path, kind: CallKind) -> None:
    async with (
        service_bench(tmp_path, metrics_listen="127.0.0.1:0") as bench,
        own_connection(bench.client.address) as channel,
    ):
        calls = [begun(channel, PATHS[kind]) for _ in range(3)]
        await until_open(bench, kind, 3)
        text = await metrics_text(bench)
        assert f'stratalog_server_open_calls{{kind="{kind.value}"}} 3.0' in text
        assert "stratalog_server_awaited_requests 3.0" in text
        for call in calls:
            call.cancel()
        await until_open(bench, kind, 0)
        assert bench.server.calls[kind].refused_count == 0


async def test_health_checks_without_messages_keep_no_check_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_limits, "MAX_CHECK_CALL_COUNT", 20)
    async with (
        service_bench(tmp_path) as bench,
        own_connection(bench.client.address) as ill,
    ):
        calls = [begun(ill, CHECK) for _ in range(20)]
        await until_open(bench, CallKind.CHECK, 20)
        error = await refusal_of(begun(ill, CHECK))
        assert isinstance(error, OverloadedError)
        assert error.fields == {"kind": "check", "limit": 20}
        assert bench.server.calls[CallKind.CHECK].refused_count == 1
        # Each other connection may have some, as that of a proxy with checks of several probes.
        await require_health(bench.client.address)
        await until_open(bench, CallKind.CHECK, 20)
        async with own_connection(bench.client.address) as other:
            own = [begun(other, CHECK) for _ in range(MAX_CONNECTION_CHECK_COUNT)]
            await until_open(bench, CallKind.CHECK, 20 + MAX_CONNECTION_CHECK_COUNT)
            assert (await refusal_of(begun(other, CHECK))).fields == {"kind": "check", "limit": 20}
            for late in own:
                await late.write(health_pb2.HealthCheckRequest().SerializeToString())
                await late.done_writing()
                assert await late.code() is grpc.StatusCode.OK
        for call in calls:
            call.cancel()
        await until_open(bench, CallKind.CHECK, 0)


@pytest.mark.parametrize("kind", [CallKind.CHECK, CallKind.APPEND, CallKind.ADMIN])
async def test_a_call_counts_until_its_answer_is_read(tmp_path: Path, kind: CallKind) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t")
        message = APPEND.SerializeToString() if kind is CallKind.APPEND else b""
        counts = bench.server.calls[kind]
        async with written(bench, unread_calls(PATHS[kind], message, 5)):
            await until(lambda: counts.open_count == 5 and not bench.server.awaited_request_count)
            await require_health(bench.client.address)
            # The others have ended, with answers that were read.
            assert await bench.append("t", [b"x"]) == (5 if kind is CallKind.APPEND else 0)
            await bench.topic_names()
            await until_open(bench, kind, 5)
        await until_open(bench, kind, 0)


async def test_the_message_of_a_health_check_has_to_come_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_servicer, "PATIENCE_S", 0.02)
    async with service_bench(tmp_path) as bench, own_connection(bench.client.address) as channel:
        # The message of this one may take long.
        append = begun(channel, f"{LOG}/Append")
        await until_open(bench, CallKind.APPEND, 1)
        for kind in (CallKind.CHECK, CallKind.WATCH):
            error = await refusal_of(begun(channel, PATHS[kind]))
            assert isinstance(error, InvalidRequestError)
            assert error.fields == {"patience_s": "0.02"}
            await until_open(bench, kind, 0)
        assert bench.server.calls[CallKind.APPEND].open_count == 1
        append.cancel()


@pytest.mark.parametrize("path", PATHS.values())
async def test_a_call_that_ends_without_a_message_is_refused(tmp_path: Path, path: str) -> None:
    async with service_bench(tmp_path) as bench, own_connection(bench.client.address) as channel:
        call = begun(channel, path)
        await call.done_writing()
        assert isinstance(await refusal_of(call), InvalidRequestError)
        await require_health(bench.client.address)


async def test_the_wait_for_a_message_that_never_comes_is_no_duration_of_the_server(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        service_bench(tmp_path, clock=clock, metrics_listen="127.0.0.1:0") as bench,
        own_connection(bench.client.address) as channel,
    ):
        call = begun(channel, PATHS[CallKind.APPEND])
        await until(lambda: bench.server.awaited_request_count == 1)
        clock.advance(60_000)
        call.cancel()
        await until_open(bench, CallKind.APPEND, 0)
        text = await metrics_text(bench)
        labels = 'method="Append",service="LogService"'
        assert f"stratalog_server_method_duration_secs_count{{{labels}}} 1.0" in text
        assert f"stratalog_server_method_duration_secs_sum{{{labels}}} 0.0" in text


async def test_a_stop_ends_calls_whose_message_has_not_come(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(PATIENCE_S):
            # The grace is longer.
            async with service_bench(tmp_path, shutdown_grace_s=10 * PATIENCE_S) as bench:
                channel = await stack.enter_async_context(own_connection(bench.client.address))
                calls = [begun(channel, path) for path in PATHS.values()]
                await until(lambda: bench.server.awaited_request_count == len(PATHS))
        for call in calls:
            assert isinstance(await refusal_of(call), StoppingError)


def one_call(path: str, token: str) -> Callable[[grpc.aio.Channel], Any]:
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    return lambda channel: begun(channel, path, metadata=metadata)


@asynccontextmanager
async def connected(
    site: GuardedSite, certificate: CertificateFiles | None = None
) -> AsyncGenerator[grpc.aio.Channel]:
    files = (site.authority.path, *(() if certificate is None else (certificate.key, certificate.cert)))
    trusted = grpc.ssl_channel_credentials(*(Path(one).read_bytes() for one in files))
    address = f"localhost:{site.server.port}"
    async with grpc.aio.secure_channel(address, trusted, options=OWN) as channel:
        yield channel


async def test_the_stranger_of_a_certificate_is_refused_before_the_message_comes(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path)
    stranger = site.authority.issue("stranger", "stranger.example")
    async with site.running(tls_client_ca=site.authority.path), connected(site, stranger) as channel:
        for kind in (CallKind.APPEND, CallKind.READ, CallKind.ADMIN):
            assert isinstance(await refusal_of(begun(channel, PATHS[kind])), AuthenticationFailedError)
        await until(lambda: all(one.open_count == 0 for one in site.server.calls.values()))
        assert site.refusals() == {"AUTHENTICATION_FAILED": 3}


async def test_calls_without_messages_are_those_of_their_principal(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path)
    async with site.running(max_append_call_count=4), connected(site) as channel:
        call = one_call(f"{LOG}/Append", site.tokens["ours"])
        calls = [call(channel) for _ in range(3)]
        appends = site.server.calls[CallKind.APPEND]
        await until(lambda: appends.principals.of("ours") == 3)
        error = await refusal_of(call(channel))
        assert error.fields == {"principal": "ours", "kind": "append", "limit": 3}
        # Another one has room.
        theirs = one_call(f"{LOG}/Append", site.tokens["theirs"])(channel)
        await until(lambda: appends.principals.of("theirs") == 1)
        theirs.cancel()
        # Whose token goes while its messages come has no place any more.
        del site.rules["ours"]
        site.write()
        await site.look()
        for one in calls:
            assert isinstance(await refusal_of(one), AuthenticationFailedError)
        await until(lambda: appends.open_count == 0)
        assert site.refusals() == {"AUTHENTICATION_FAILED": 3}
