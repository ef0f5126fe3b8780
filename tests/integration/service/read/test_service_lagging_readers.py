"""Many readers of old data, and a store that stands still: what they cost, and what they hold up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from stratalog.base.clock import SystemClock
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.server.request_memory import LEAST_FETCH_BYTES
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.store_faults import Operation
from stratalog.v1 import log_pb2
from tests.support.decoded_records import decode_all
from tests.support.gate import Gate
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench, until
from tests.support.tiered.counting_object_store import CountingObjectStore

MIB = 1 << 20
READER_COUNT = 100
PARTITION_COUNT = 20
BATCH_COUNT = 30
VALUE = bytes(8000)
MEMORY_BYTES = 2 * MIB
CACHE_BYTES = 8 * MIB


class World(NamedTuple):
    bench: ServiceBench
    gate: Gate
    store: CountingObjectStore

    @property
    def get_count(self) -> int:
        return self.store.total("GET", "shards/0000/data/").requests


@asynccontextmanager
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    """Tiered partitions of 240 KB each, and a gate before the data in the store."""
    gate = Gate()
    store = CountingObjectStore(MemoryObjectStore(SystemClock()))

    def before(operation: Operation) -> None:
        if operation.verb == "GET" and "/data/" in operation.key:
            gate.pass_through()

    config = {"remote.read.cache.bytes": str(CACHE_BYTES), "message.max.bytes": str(MIB)}
    async with service_bench(
        tmp_path,
        filesystem=MemoryFileSystem(),
        store=FaultyObjectStore(store, Random(0), before=before),
        max_request_bytes=MIB,
        max_request_memory_bytes=2 * MEMORY_BYTES,
        config=config,
    ) as bench:
        await bench.client.admin.create_topic("old", PARTITION_COUNT, {"max.message.bytes": str(MIB)})
        await bench.client.admin.create_topic("new", 1, {"max.message.bytes": str(MIB)})
        for partition in range(PARTITION_COUNT):
            for _ in range(BATCH_COUNT):
                await bench.append("old", [VALUE], partition=partition)
        await bench.client.admin.upload(["old"], delete_local=True)
        await bench.client.admin.empty_caches()
        store.reset()
        gate.close()
        try:
            yield World(bench, gate, store)
        finally:
            gate.open()


def fetch_of(partition: int, max_bytes: int) -> log_pb2.FetchRequest:
    one = log_pb2.FetchPartition(topic="old", partition=partition, start=log_pb2.Position(offset=0))
    return log_pb2.FetchRequest(partitions=[one], max_bytes=max_bytes)


async def read_to_the_end(bench: ServiceBench, partition: int) -> list[Record]:
    records: list[Record] = []
    async for answer in bench.client.log.FetchStream(fetch_of(partition, 100_000)):
        [found] = answer.partitions
        assert not found.HasField("error")
        records += decode_all(found.batches)
        if found.next_fetch_offset >= BATCH_COUNT:
            break
    return records


async def test_a_hundred_readers_of_old_data_hold_up_no_producer_and_keep_to_their_bounds(
    tmp_path: Path,
) -> None:
    others = set(threading.enumerate())
    async with world(tmp_path) as found:
        bench, memory = found.bench, found.bench.server.fetch_memory
        readers = [
            asyncio.create_task(read_to_the_end(bench, number % PARTITION_COUNT))
            for number in range(READER_COUNT)
        ]
        assert await asyncio.to_thread(found.gate.is_reached.wait, PATIENCE_S)
        for number in range(50):
            await asyncio.wait_for(bench.append("new", [b"%d" % number]), PATIENCE_S)
        assert len(await bench.values("new")) == 1, "what is local is read, too"
        assert not any(reader.done() for reader in readers)
        names = [thread.name for thread in threading.enumerate() if thread not in others]
        settings = bench.server.settings
        for pool in ("cold", "ahead"):
            count = sum(name.startswith(f"stratalog-{pool}") for name in names)
            assert count <= settings.cold_read_thread_count
        found.gate.open()
        peak_bytes = 0
        while not all(reader.done() for reader in readers):
            peak_bytes = max(peak_bytes, memory.held_bytes)
            await asyncio.wait(readers, timeout=0.01)
        for reader in readers:
            assert [(record.offset, record.value) for record in reader.result()] == [
                (offset, VALUE) for offset in range(BATCH_COUNT)
            ]
        # Each reader is owed a small answer, whatever the others hold, and may have one more on its way.
        assert 0 < peak_bytes <= memory.limit_bytes + 2 * READER_COUNT * LEAST_FETCH_BYTES
        data = bench.server.engine.tier.upkeep.reads.cache_stats.data
        assert data.size_bytes <= CACHE_BYTES
        await until(lambda: memory.held_bytes == 0)
        assert found.store.total("GET", "shards/0000/data/").size_bytes < 3 * PARTITION_COUNT * 250_000


@pytest.mark.parametrize("ends_by", ["cancellation", "deadline"])
async def test_a_fetch_that_is_cut_off_leaves_its_chunk_to_the_next_one(tmp_path: Path, ends_by: str) -> None:
    async with world(tmp_path) as found:
        timeout_s = 1.0 if ends_by == "deadline" else None
        cut_off = asyncio.ensure_future(found.bench.client.log.Fetch(fetch_of(3, MIB), timeout=timeout_s))
        assert await asyncio.to_thread(found.gate.is_reached.wait, PATIENCE_S)
        if ends_by == "cancellation":
            cut_off.cancel()
        await asyncio.wait([cut_off], timeout=PATIENCE_S)
        assert cut_off.cancelled() or cut_off.exception() is not None
        await until(lambda: found.bench.server.fetch_memory.held_bytes == 0)
        found.gate.open()
        answer = await asyncio.wait_for(found.bench.client.log.Fetch(fetch_of(3, MIB)), PATIENCE_S)
        assert decode_all(answer.partitions[0].batches)[0].value == VALUE
        assert found.get_count == 1, "the request that had begun"


async def test_readers_keep_the_rate_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their data wait, and appends do not. The rate is altered while they wait."""
    monkeypatch.setattr("stratalog.server.answer_turns.LONGEST_PAUSE_S", 0.01)
    key = "remote.log.manager.fetch.max.bytes.per.second"
    async with world(tmp_path) as lagging:
        bench = lagging.bench
        lagging.gate.open()
        await bench.client.admin.alter_configs({key: "1"})
        readers = [asyncio.create_task(read_to_the_end(bench, partition)) for partition in range(4)]
        for _ in range(100):
            await bench.append("new", [VALUE])
        assert not any(reader.done() for reader in readers)
        await bench.client.admin.alter_configs({key: str(1 << 40)})
        async with asyncio.timeout(PATIENCE_S):
            for records in await asyncio.gather(*readers):
                assert [record.value for record in records] == [VALUE] * BATCH_COUNT
