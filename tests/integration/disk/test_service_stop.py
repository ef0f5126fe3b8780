"""A server that stops while the store is slow: uploads and compactions end early with an error for their
callers, and the next server makes up for what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from stratalog.base.clock import SystemClock
from stratalog.base.errors import StoppingError
from stratalog.base.types import TopicPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.store_faults import Operation
from tests.support.gate import Gate
from tests.support.service.service_bench import (
    PATIENCE_S,
    ServiceBench,
    service_bench,
    until,
    waiting_count,
)

PARTITION_COUNT = 20
CONFIG = {"cleanup.policy": "compact", "retention.ms": "-1"}
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
            await producer.post("t", b"key", b"%d" % number, partition=partition)


async def stop_while(
    bench: ServiceBench, transfers: Transfers, call: Callable[[], asyncio.Task[object]]
) -> BaseException | None:
    """Let the call come to a stand at the store, stop the server, let the store go on; returns the error of
    the call. A poll that ends shows that the server has begun to stop.
    """
    poll = asyncio.create_task(bench.client.fetch({TopicPartition("idle", 0): 0}, max_wait_ms=60_000))
    signals = bench.partition("idle", 0).signal
    await until(lambda: waiting_count(signals) == 1)
    transfers.stall()
    calling = call()
    await until(transfers.gate.is_reached.is_set)
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
        assert (uploaded.objects, uploaded.slices) == (1, PARTITION_COUNT)
        assert await bench.values("t") == [[b"0"]] * PARTITION_COUNT
