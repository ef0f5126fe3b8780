"""A clean stop that uploads what the store lacks, and streams that watch the health meanwhile."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from stratalog.base.clock import SystemClock
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.store_faults import Operation
from tests.support.gate import Gate
from tests.support.service.service_bench import PATIENCE_S, service_bench, until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
DRAIN: dict[str, Any] = {"drain_upload_s": PATIENCE_S}


class CountedUploads:
    """A store that counts the data objects that are put, which stand still while the gate is closed."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.put_count = 0
        self.store = FaultyObjectStore(MemoryObjectStore(SystemClock()), Random(0), before=self._before)

    def _before(self, operation: Operation) -> None:
        if "/data/" in operation.key and operation.verb == "PUT":
            self.put_count += 1
            self.gate.pass_through()


@pytest.mark.parametrize("is_drained", [True, False])
async def test_a_drained_server_leaves_nothing_on_its_machine_alone(tmp_path: Path, is_drained: bool) -> None:
    uploads = CountedUploads()
    options = DRAIN if is_drained else {}
    async with service_bench(
        tmp_path, filesystem=MemoryFileSystem(), store=uploads.store, **options
    ) as bench:
        await bench.client.admin.create_topic("t", 3)
        await bench.client.admin.create_topic("local", 1, {"remote.storage.enable": "false"})
        for partition in range(3):
            await bench.append("t", [b"%d" % partition], partition)
        await bench.append("local", [b"x"])
    assert uploads.put_count == int(is_drained)
    # Another machine, with an empty disk.
    async with service_bench(tmp_path, filesystem=MemoryFileSystem(), store=uploads.store) as bench:
        values = await bench.values("t")
        assert values == ([[b"0"], [b"1"], [b"2"]] if is_drained else [[], [], []])


async def test_a_drain_ends_when_its_time_is_over_and_the_next_server_uploads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uploads, disk = CountedUploads(), MemoryFileSystem()
    async with service_bench(tmp_path, filesystem=disk, store=uploads.store, drain_upload_s=0.05) as bench:
        await bench.client.admin.create_topic("t", 3)
        for partition in range(3):
            await bench.append("t", [b"%d" % partition], partition)
        uploads.gate.close()
        stopping = asyncio.create_task(bench.server.stop())
        await until(uploads.gate.is_reached.is_set)
        with caplog.at_level(logging.WARNING):
            await until(lambda: bench.server._closing.stop.is_set)  # pyright: ignore[reportPrivateUsage]  # its time is over
            uploads.gate.open()
            await asyncio.wait_for(stopping, PATIENCE_S / 2)
    async with service_bench(tmp_path, filesystem=disk, store=uploads.store) as bench:
        assert await bench.values("t") == [[b"0"], [b"1"], [b"2"]]
        await bench.client.admin.upload()
        assert bench.partition("t").tiered_end_offset == 1


async def test_a_stop_ends_the_streams_that_watch_the_health(tmp_path: Path) -> None:
    async with (
        service_bench(tmp_path, shutdown_grace_s=PATIENCE_S) as bench,
        grpc.aio.insecure_channel(bench.client.address) as channel,
    ):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        listed = (await stub.List(vars(health_pb2)["HealthListRequest"]())).statuses
        assert {one.status for one in listed.values()} == {SERVING}
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="stratalog.v1.LogService"))
        assert (await watch.read()).status == SERVING
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub.Check(health_pb2.HealthCheckRequest(service="nope"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        begin_s = time.monotonic()
        await bench.server.stop()
        assert time.monotonic() - begin_s < PATIENCE_S / 2
        assert (await watch.read()).status == NOT_SERVING
        assert await watch.code() is grpc.StatusCode.UNAVAILABLE
