"""Many large requests at once, over a disk that stands still and to readers who do not read: their memory
stays within its bound, no request is kept out for good, and all of the memory is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import OverloadedError
from stratalog.base.types import Durability, TopicPartition
from stratalog.client.client import Client
from stratalog.client.messages import AppendAck
from stratalog.client.retry import RetryPolicy
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.request_memory import MemoryLease, RequestMemory
from stratalog.v1 import log_pb2, log_pb2_grpc
from tests.support.gate import Gate
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench, until, waiting_count

VALUE_BYTES = 100_000
LIMITS: dict[str, Any] = {
    "max_request_bytes": 200_000,
    "max_request_memory_bytes": 1_000_000,
    "config": {"message.max.bytes": "150000"},
}
TOPIC_CONFIG = {"max.message.bytes": "150000"}
SHARE_BYTES = 500_000


def request(
    number: int, durability: log_pb2.Durability.ValueType, value_bytes: int = VALUE_BYTES
) -> log_pb2.AppendRequest:
    batch = encode_batch([Record(0, 0, b"%d" % number, bytes(value_bytes))])
    return log_pb2.AppendRequest(topic="t", partition=0, durability=durability, batches=batch)


class Stalled(NamedTuple):
    """A server whose writer of t-0 stands still in an fsync."""

    bench: ServiceBench
    gate: Gate
    append: asyncio.Task[AppendAck]
    """Waits for that fsync."""


@asynccontextmanager
async def stalled_bench(folder: Path) -> AsyncGenerator[Stalled, None]:
    """Fsyncs of logs stand still until the gate is opened."""
    gate = Gate()

    def before(name: str, path: str) -> None:
        if name == "sync" and path.endswith(".log"):
            gate.pass_through()

    disk, store = HookedDisk(before), MemoryObjectStore(SystemClock())
    async with service_bench(folder, filesystem=disk, store=store, **LIMITS) as bench:
        await bench.client.admin.create_topic("t", config=TOPIC_CONFIG)
        gate.close()
        append = asyncio.create_task(
            bench.client.append("t", 0, [Record(0, 0, b"first", b"")], durability=Durability.DISK)
        )
        await until(gate.is_reached.is_set)
        yield Stalled(bench, gate, append)


def count_refusals(memory: RequestMemory) -> Callable[[], int]:
    """How many leases were refused from now on."""
    count = 0
    lease = memory.lease

    def counting(size_bytes: int = 0) -> MemoryLease:
        nonlocal count
        try:
            return lease(size_bytes)
        except OverloadedError:
            count += 1
            raise

    memory.lease = counting  # type: ignore[method-assign]  # looks on
    return lambda: count


async def keys_of(bench: ServiceBench) -> list[bytes | None]:
    [records] = await bench.read_all("t")
    return [record.key for record in records]


async def test_appends_that_do_not_fit_are_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    async with stalled_bench(tmp_path) as (bench, gate, first):
        memory = bench.server.append_memory
        accepted_count = (SHARE_BYTES - memory.held_bytes) // VALUE_BYTES
        # The calls begin at once, and not when they are awaited.
        stub = log_pb2_grpc.LogServiceStub(bench.client.channel.current)
        calls = [
            stub.Append(request(number, log_pb2.DURABILITY_DISK), timeout=PATIENCE_S) for number in range(40)
        ]
        await until(lambda: sum(call.done() for call in calls) == 40 - accepted_count)
        assert SHARE_BYTES - 2 * VALUE_BYTES < memory.held_bytes <= SHARE_BYTES
        gate.open()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        refused = [error for error in outcomes if isinstance(error, grpc.aio.AioRpcError)]
        assert {error.code() for error in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert len(refused) == 40 - accepted_count
        await first
        stored = [
            b"%d" % n for n, outcome in enumerate(outcomes) if isinstance(outcome, log_pb2.AppendResponse)
        ]
        keys = await keys_of(bench)
        assert len(keys) == len(set(keys))
        assert set(keys) == {b"first", *stored}
        assert memory.held_bytes == 0


async def test_the_client_sends_again_what_was_refused(tmp_path: Path) -> None:
    async with service_bench(tmp_path, **LIMITS) as bench:
        await bench.client.admin.create_topic("t", config=TOPIC_CONFIG)
        memory = bench.server.append_memory
        full = memory.lease(SHARE_BYTES)
        with pytest.raises(OverloadedError) as caught:
            await bench.append("t", [b"no patience"])
        assert (caught.value.retriable, caught.value.fields["limit_bytes"]) == (True, SHARE_BYTES)
        async with bench.client.producer() as producer:
            with pytest.raises(OverloadedError):
                await producer.send("t", None, b"no patience")
        patience = RetryPolicy(deadline_s=PATIENCE_S, first_pause_s=0.001, max_pause_s=0.002)
        async with Client(bench.client.address, retry=patience) as client:
            refused = count_refusals(memory)
            append = asyncio.create_task(client.append("t", 0, [Record(0, 0, b"one", b"")]))
            producer = client.producer(batch_bytes=100, linger_ms=0)
            deliveries = [producer.send("t", b"%d" % number, bytes(50)) for number in range(30)]
            await until(lambda: refused() > 10)
            assert not append.done()
            assert not any(delivery.is_done for delivery in deliveries)
            full.close()
            await append
            await producer.flush()
            assert [(await delivery).partition for delivery in deliveries] == [0] * 30
        keys = [key for key in await keys_of(bench) if key != b"one"]
        assert keys == [b"%d" % number for number in range(30)], "once each, and in order"
        assert memory.held_bytes == 0


async def test_streams_are_slowed_down_and_not_refused(tmp_path: Path) -> None:
    async with stalled_bench(tmp_path) as (bench, gate, first):
        memory = bench.server.append_memory

        async def requests(stream: int) -> AsyncIterator[log_pb2.AppendStreamRequest]:
            for number in range(20):
                one = request(stream * 100 + number, log_pb2.DURABILITY_DISK, VALUE_BYTES // 5)
                yield log_pb2.AppendStreamRequest(
                    topic=one.topic,
                    partition=0,
                    durability=one.durability,
                    batches=one.batches,
                    sequence=number,
                )

        async def run(stream: int) -> list[int]:
            call = bench.client.log.AppendStream(requests(stream))
            return [response.ack.base_offset async for response in call]

        streams = [asyncio.create_task(run(stream)) for stream in range(3)]
        await until(lambda: memory.is_scarce)
        assert memory.held_bytes <= SHARE_BYTES
        gate.open()
        await first
        offsets = await asyncio.gather(*streams)
        assert [len(part) for part in offsets] == [20] * 3
        assert all(part == sorted(part) for part in offsets)
        assert len(set(await keys_of(bench))) == 61
        assert memory.held_bytes == 0


async def test_readers_who_do_not_read_leave_one_batch_for_all_others(tmp_path: Path) -> None:
    limits: dict[str, Any] = {**LIMITS, "max_fetch_bytes": 400_000}
    async with service_bench(tmp_path, **limits) as bench:
        await bench.client.admin.create_topic("t", config=TOPIC_CONFIG)
        for number in range(8):
            await bench.client.log.Append(request(number, log_pb2.DURABILITY_OS))
        memory = bench.server.fetch_memory
        wish = log_pb2.FetchRequest(
            partitions=[log_pb2.FetchPartition(topic="t", max_bytes=400_000)], max_bytes=400_000
        )

        async def fetched() -> int:
            [answer] = (await bench.client.log.Fetch(wish)).partitions
            return answer.next_fetch_offset

        # A connection that measures its speed would buffer whole logs for its readers.
        unmeasured = [("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(bench.client.address, options=unmeasured) as channel:
            lazy = [log_pb2_grpc.LogServiceStub(channel).FetchStream(wish) for _ in range(6)]
            await until(lambda: memory.held_bytes > SHARE_BYTES)
            assert memory.held_bytes <= SHARE_BYTES + 12 * (VALUE_BYTES + 1000), "one batch each beyond it"
            for _ in range(3):
                assert await fetched() >= 1
            assert await keys_of(bench) == [b"%d" % number for number in range(8)]
            assert await bench.append("t", [b"writers do not notice"]) == 8
            for call in lazy:
                call.cancel()
        async with asyncio.timeout(PATIENCE_S):
            # The server ends the calls one after the other.
            while await fetched() != 3:
                pass
        await until(lambda: memory.held_bytes == 0)


async def test_a_poll_holds_what_it_has_read_and_no_more(tmp_path: Path) -> None:
    async with service_bench(tmp_path, **LIMITS) as bench:
        await bench.client.admin.create_topic("t", config=TOPIC_CONFIG)
        await bench.append("t", [bytes(1000)])
        memory = bench.server.fetch_memory
        signal = bench.partition().signal
        positions = {TopicPartition("t", 0): 0}
        poll = asyncio.create_task(bench.client.fetch(positions, max_wait_ms=60_000, min_bytes=5000))
        await until(lambda: waiting_count(signal) == 1 and 0 < memory.held_bytes < 2000)
        poll.cancel()
        await until(lambda: memory.held_bytes == 0)
