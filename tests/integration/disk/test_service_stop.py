"""A server that stops while the store is slow: uploads and compactions end early with an error for their
callers, and the next server makes up for what is missing.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import grpc
import pytest
from google.rpc.status_pb2 import Status
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from stratalog.base.clock import SystemClock
from stratalog.base.errors import StoppingError
from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.server import app
from stratalog.server.app import Server
from stratalog.server.configuration.settings import ServerSettings
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.store_faults import Operation
from stratalog.v1 import log_pb2
from tests.support.gate import Gate
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.service.error_details import error_info
from tests.support.service.service_bench import (
    PATIENCE_S,
    QUIET,
    ServiceBench,
    service_bench,
    until,
    waiting_count,
)

PARTITION_COUNT = 20
CONFIG = {"cleanup.policy": "compact", "retention.ms": "-1"}
APPEND = log_pb2.AppendStreamRequest(
    topic="t", partition=0, records=log_pb2.Records(records=[log_pb2.Record(value=b"x")])
)
DURABLE_APPEND = log_pb2.AppendStreamRequest(
    topic="t",
    partition=0,
    durability=log_pb2.DURABILITY_DISK,
    records=log_pb2.Records(records=[log_pb2.Record(value=b"x")]),
)
GRACE: dict[str, Any] = {"shutdown_grace_s": PATIENCE_S}


class Transfers:
    """Transfers of data of objects, which stand still while the gate is closed. Thread-safe."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.count = 0
        self.store = FaultyObjectStore(MemoryObjectStore(SystemClock()), Random(0), before=self._before)

    def stall(self) -> None:
        """Close the gate, and count from now on."""
        self.count = 0
        self.gate.close()

    def _before(self, operation: Operation) -> None:
        if "/data/" in operation.key and operation.verb in ("GET", "PUT"):
            self.count += 1
            self.gate.pass_through()


async def fill(bench: ServiceBench, number: int) -> None:
    for partition in range(PARTITION_COUNT):
        async with bench.client.producer() as producer:
            producer.send("t", b"key", b"%d" % number, partition=partition)


async def stop_while(
    bench: ServiceBench, transfers: Transfers, call: Callable[[], asyncio.Task[object]]
) -> BaseException | None:
    """Let the call come to a stand at the store, stop the server, let the store go on; returns the error of
    the call. A poll that ends shows that the server has begun to stop.
    """
    poll = asyncio.create_task(bench.client.fetch({TopicPartition("idle", 0): 0}, max_wait_ms=60_000))
    signals = bench.server.engine.topics.registry.partition("idle", 0).signal
    await until(lambda: waiting_count(signals) == 1)
    transfers.stall()
    calling = call()
    await until(transfers.gate.is_reached.is_set)
    # The client watches its operation.
    newest, *_ = bench.server.engine.operations.operations()
    await until(lambda: bool(newest._listeners))  # pyright: ignore[reportPrivateUsage]  # only tests look
    stopping = asyncio.create_task(bench.server.stop())
    await poll
    transfers.gate.open()
    async with asyncio.timeout(PATIENCE_S / 2):
        await asyncio.wait([calling])
        await stopping
    return calling.exception()


async def test_a_stop_ends_an_upload_and_the_next_server_uploads(tmp_path: Path) -> None:
    transfers, disk = Transfers(), MemoryFileSystem()
    async with service_bench(tmp_path, filesystem=disk, store=transfers.store, **GRACE) as bench:
        await bench.client.admin.create_topic("t", PARTITION_COUNT, CONFIG)
        await bench.client.admin.create_topic("idle")
        await fill(bench, 0)
        error = await stop_while(bench, transfers, lambda: asyncio.create_task(bench.client.admin.upload()))
        assert isinstance(error, StoppingError)
        assert error.retriable
        assert transfers.count == 1, "no other request"
    async with service_bench(tmp_path, filesystem=disk, store=transfers.store) as bench:
        uploaded = await bench.client.admin.upload(delete_local=True)
        assert (uploaded.object_count, uploaded.slice_count) == (1, PARTITION_COUNT)
        assert [[r.value for r in part] for part in await bench.read_all("t")] == [[b"0"]] * PARTITION_COUNT


async def test_a_stop_ends_a_compaction_of_many_partitions(tmp_path: Path) -> None:
    transfers, disk = Transfers(), MemoryFileSystem()
    async with service_bench(tmp_path, filesystem=disk, store=transfers.store, **GRACE) as bench:
        await bench.client.admin.create_topic("t", PARTITION_COUNT, CONFIG)
        await bench.client.admin.create_topic("idle")
        for number in range(3):
            await fill(bench, number)
            await bench.client.admin.upload(delete_local=True)
        error = await stop_while(
            bench, transfers, lambda: asyncio.create_task(bench.client.admin.run_compaction())
        )
        assert isinstance(error, StoppingError)
        assert transfers.count == 1, "no other request"
    async with service_bench(tmp_path, filesystem=disk, store=transfers.store) as bench:
        assert [len(part) for part in await bench.read_all("t")] == [3] * PARTITION_COUNT
        assert all(job.reason == "" for job in await bench.client.admin.run_compaction())
        assert [[r.value for r in part] for part in await bench.read_all("t")] == [[b"2"]] * PARTITION_COUNT


async def test_a_stop_ends_sessions_with_a_reason(tmp_path: Path) -> None:
    async with service_bench(tmp_path, **GRACE) as bench:
        await bench.client.admin.create_topic("t")
        responses = bench.fetch_stream({TopicPartition("t", 0): 0})
        session = asyncio.ensure_future(anext(responses))
        partition = bench.server.engine.topics.registry.partition("t", 0)
        await until(lambda: waiting_count(partition.signal) == 1)
        await bench.server.stop()
        with pytest.raises(StoppingError):
            await session


async def test_idle_streams_do_not_keep_a_stop_waiting(tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[log_pb2.AppendStreamRequest]:
        yield APPEND
        await asyncio.Event().wait()

    async with service_bench(tmp_path, **GRACE) as bench:
        await bench.client.admin.create_topic("t")
        async with grpc.aio.insecure_channel(bench.client.address) as channel:
            appends: Any = bench.client.log.AppendStream(endless())
            assert (await appends.read()).ack.base_offset == 0
            reflection: Any = reflection_pb2_grpc.ServerReflectionStub(cast(Any, channel))
            described = reflection.ServerReflectionInfo()
            await described.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            await described.read()
            async with asyncio.timeout(PATIENCE_S / 2):
                await bench.server.stop()
            for call in (appends, described):
                assert await call.code() is grpc.StatusCode.UNAVAILABLE
                details = dict(await call.trailing_metadata())["grpc-status-details-bin"]
                assert isinstance(details, bytes)
                assert error_info(Status.FromString(details)).reason == StoppingError.code


async def test_a_stop_answers_the_append_in_flight_before_it_ends_its_stream(tmp_path: Path) -> None:
    gate = Gate()

    def before(name: str, path: str) -> None:
        if name == "sync" and path.endswith(".log"):
            gate.pass_through()

    async def endless() -> AsyncIterator[log_pb2.AppendStreamRequest]:
        yield DURABLE_APPEND
        await asyncio.Event().wait()

    async with service_bench(tmp_path, filesystem=HookedDisk(before), **GRACE) as bench:
        await bench.client.admin.create_topic("t")
        await bench.client.admin.create_topic("idle")
        poll = asyncio.create_task(bench.client.fetch({TopicPartition("idle", 0): 0}, max_wait_ms=60_000))
        await bench.until_waiting(1, "idle")
        gate.close()
        appends: Any = bench.client.log.AppendStream(endless())
        assert await asyncio.to_thread(gate.is_reached.wait, PATIENCE_S)
        stopping = asyncio.create_task(bench.server.stop())
        await poll
        assert not appends.done()
        gate.open()
        async with asyncio.timeout(PATIENCE_S / 2):
            assert (await appends.read()).ack.base_offset == 0
            assert await appends.code() is grpc.StatusCode.UNAVAILABLE
            await stopping


async def test_a_signal_ends_the_upload_that_a_task_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`server start` does this on SIGTERM."""
    transfers = Transfers()

    def open_store(_url: str, **_options: object) -> ObjectStore:
        return transfers.store

    monkeypatch.setattr(app, "open_store", open_store)
    options: dict[str, Any] = {**QUIET, "data_dir": f"{tmp_path}/data", "upload_ms": 20}
    settings = ServerSettings(**options)
    ready: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
    run = app._serve  # pyright: ignore[reportPrivateUsage]  # `serve` makes a loop of its own
    serving = asyncio.create_task(run(settings, ready.set_result))
    server = await ready
    async with Client(f"127.0.0.1:{server.port}") as client:
        await client.admin.create_topic("t", 1, {"segment.bytes": "1048576", "remote.copy.max.age.ms": "1"})
        await client.admin.create_topic("idle")
        poll = asyncio.create_task(client.fetch({TopicPartition("idle", 0): 0}, max_wait_ms=60_000))
        partition = server.engine.topics.registry.partition("idle", 0)
        await until(lambda: waiting_count(partition.signal) == 1)
        transfers.stall()
        async with client.producer() as producer:
            for _ in range(30):
                producer.send("t", None, bytes(50_000))
        await until(transfers.gate.is_reached.is_set)
        signal.raise_signal(signal.SIGTERM)
        await poll
        transfers.gate.open()
        await asyncio.wait_for(serving, PATIENCE_S / 2)
    assert transfers.count == 1
