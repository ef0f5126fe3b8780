"""A server that opens its logs answers health checks and metrics, and refuses all else as retriable."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from stratalog.base.clock import SystemClock
from stratalog.base.errors import StartingError
from stratalog.client.client import Client
from stratalog.client.retry import RetryPolicy
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.server.app import Server
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.meters.method_counts import CallEnd
from stratalog.server.metrics.health_probes import LIVE_PATH, READY_PATH
from stratalog.server.partitions.directory_admin import DirectoryAdmin
from tests.support.gate import Gate
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.service.service_bench import PATIENCE_S, QUIET, service_bench, until

RECORD = Record(0, 0, None, b"x")


def refusals(server: Server) -> dict[str, int]:
    """The calls of a server that starts, by method. All were refused."""
    meter = server._metrics.methods  # pyright: ignore[reportPrivateUsage]  # only tests look
    assert meter is not None
    end = CallEnd("UNAVAILABLE", StartingError.code)
    ends = {name.method: dict(one.ends) for name, one in meter.counts().items() if name.method != "Check"}
    assert all(one.keys() <= {end} for one in ends.values())
    return {method: one.get(end, 0) for method, one in ends.items()}


async def test_health_and_metrics_are_served_while_logs_are_opened(tmp_path: Path) -> None:
    gate = Gate()

    def before(name: str, path: str) -> None:
        if name == "list_directory" and path.endswith("/t-0"):
            gate.pass_through()

    disk = HookedDisk(before)
    async with service_bench(tmp_path, filesystem=disk) as bench:
        await bench.client.admin.create_topic("t")
    gate.close()
    options: dict[str, Any] = {**QUIET, "data_dir": f"{tmp_path}/data", "metrics_listen": "127.0.0.1:0"}
    server = Server(ServerSettings(**options), filesystem=disk, has_processes=False)
    starting = asyncio.create_task(server.start())
    try:
        assert await asyncio.to_thread(gate.is_reached.wait, 30)
        address = f"127.0.0.1:{server.port}"
        async with (
            grpc.aio.insecure_channel(address) as channel,
            Client(address, retry=RetryPolicy(deadline_s=0)) as hasty,
            Client(address, retry=RetryPolicy(deadline_s=PATIENCE_S)) as patient,
        ):
            stub: Any = health_pb2_grpc.HealthStub(channel)
            check = health_pb2.HealthCheckRequest()
            assert (await stub.Check(check)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            for call in (hasty.admin.list_topics(), hasty.append("t", 0, [RECORD]), hasty.admin.upload()):
                with pytest.raises(StartingError) as caught:
                    await call
                assert caught.value.retriable
            # A call is counted behind its answer.
            await until(lambda: refusals(server) == {"ListTopics": 1, "Append": 1, "StartUpload": 1})
            origin = f"http://127.0.0.1:{server.metrics_port}"
            # The process must not be killed for its long start.
            for path in ("/metrics", LIVE_PATH):
                with await asyncio.to_thread(urllib.request.urlopen, origin + path) as answer:
                    assert answer.status == 200
            with pytest.raises(urllib.error.HTTPError) as not_ready:
                await asyncio.to_thread(urllib.request.urlopen, origin + READY_PATH)
            with not_ready.value:
                assert not_ready.value.code == 503
            for method in ("/stratalog.v1.Nope/Call", "/stratalog.v1.LogService/Nope"):
                unknown = cast(Any, channel).unary_unary(method)
                with pytest.raises(grpc.aio.AioRpcError) as failure:
                    await unknown(b"")
                assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED
            waiting = asyncio.create_task(patient.append("t", 0, [RECORD]))
            await until(lambda: refusals(server)["Append"] > 1)
            gate.open()
            await asyncio.wait_for(starting, PATIENCE_S)
            assert (await waiting).base_offset == 0
            assert (await stub.Check(check)).status == health_pb2.HealthCheckResponse.SERVING
    finally:
        gate.open()
        await starting
        await server.stop()


async def test_a_connection_too_many_is_closed(tmp_path: Path) -> None:
    async with service_bench(tmp_path, max_connection_count=2) as bench:
        await bench.client.admin.create_topic("t")
        readers = [await asyncio.open_connection("127.0.0.1", bench.server.port) for _ in range(4)]
        # A connection that stays gets the settings of the transport; the end of another comes at once.
        firsts = [await asyncio.wait_for(reader.read(1), PATIENCE_S) for reader, _ in readers]
        assert firsts.count(b"") == 3, "the client of the bench has one"
        assert await bench.topic_names() == ["t"]
        for _, writer in readers:
            writer.close()


async def test_a_server_that_is_replaced_while_it_starts_does_not_report_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, store = Gate(), MemoryObjectStore(SystemClock())
    gate.close()

    def held(_: DirectoryAdmin) -> None:
        gate.pass_through()

    monkeypatch.setattr(DirectoryAdmin, "resume_moves", held)
    server = Server(ServerSettings(**QUIET, data_dir=f"{tmp_path}/first"), store=store, has_processes=False)
    starting = asyncio.create_task(server.start())
    try:
        assert await asyncio.to_thread(gate.is_reached.wait, 30)
        monkeypatch.undo()
        async with (
            service_bench(tmp_path, store=store),
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
        ):
            await asyncio.to_thread(server.engine.tier.manager.refresh_pass)
            gate.open()
            await asyncio.wait_for(starting, PATIENCE_S)
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
    finally:
        gate.open()
        await starting
        await server.stop()
