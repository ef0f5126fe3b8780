"""The memory of plain reads: batches that decompress to far more than they have, and stalled readers."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import HEADER_SIZE, parse_header
from stratalog.record.record import Record
from stratalog.server.rpc.read.read_encoding import FetchedBatches, ReadEncoder
from stratalog.v1 import log_pb2, log_pb2_grpc
from tests.support.gate import Gate
from tests.support.service.plain_reads import PlainRead, read_plain, reason_of
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench, until

MIB = 1 << 20
SMALL_MEMORY: dict[str, Any] = {
    "max_request_bytes": MIB,
    "max_request_memory_bytes": 80 * MIB,
    "config": {"message.max.bytes": str(MIB)},
}
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]


def bomb(codec: Codec, count: int, value_bytes: int) -> bytes:
    value = bytes(value_bytes)
    return encode_batch([Record(0, 0, None, value) for _ in range(count)], codec=codec)


async def bring(bench: ServiceBench, batch: bytes, number: int = 0) -> None:
    """Store a batch as an import does: it may become larger than a client may send."""
    partition = bench.partition("t", number)
    moved = rebased(batch, partition.log_end_offset)
    await asyncio.to_thread(partition.log.appender.append_as_follower, moved)


async def with_batches(bench: ServiceBench, *batches: bytes) -> None:
    await bench.client.admin.create_topic("t", config={"max.message.bytes": str(8 * MIB)})
    for batch in batches:
        await bring(bench, batch)


def rebased(batch: bytes, base_offset: int) -> bytes:
    """The batch at another offset, which its checksum does not cover."""
    return parse_header(batch)._replace(base_offset=base_offset).pack() + batch[HEADER_SIZE:]


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


async def count_of(bench: ServiceBench, request: log_pb2.ReadRequest) -> int:
    count = 0
    async for response in bench.client.log.Read(request):
        count += sum(len(part.records) for part in response.partitions)
        assert response.ByteSize() < 1.1 * MIB
    return count


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
@pytest.mark.usefixtures("traced")
async def test_a_batch_is_never_in_memory_as_a_whole(tmp_path: Path, codec: Codec) -> None:
    async with service_bench(tmp_path) as bench:
        batch = bomb(codec, 1000, 100_000)
        await with_batches(bench, batch)
        assert len(batch) < MIB / 4
        await count_of(bench, log_pb2.ReadRequest(topic="t", max_record_count=1))
        tracemalloc.reset_peak()
        before_bytes, _ = tracemalloc.get_traced_memory()
        memory = bench.server.fetch_memory
        count = 0
        most_held_bytes = 0
        async for response in bench.client.log.Read(log_pb2.ReadRequest(topic="t")):
            count += sum(len(part.records) for part in response.partitions)
            most_held_bytes = max(most_held_bytes, memory.held_bytes)
        assert count == 1000
        _, peak_bytes = tracemalloc.get_traced_memory()
        # 100 MB of records.
        assert peak_bytes - before_bytes < 40 * MIB
        assert MIB < most_held_bytes < 40 * MIB
        # Records before the start are walked over in steps, in the same memory.
        tracemalloc.reset_peak()
        request = log_pb2.ReadRequest(topic="t", start=log_pb2.Position(tail_count=3))
        assert await count_of(bench, request) == 3
        _, peak_bytes = tracemalloc.get_traced_memory()
        assert peak_bytes - before_bytes < 40 * MIB
        await until(lambda: memory.held_bytes == 0)


@pytest.mark.parametrize("codec", COMPRESSED)
async def test_a_record_that_is_larger_than_a_response_is_alone(tmp_path: Path, codec: Codec) -> None:
    async with service_bench(tmp_path) as bench:
        batch = encode_batch([Record(0, 0, None, bytes(size)) for size in (5, 12 * MIB, 6)], codec=codec)
        await with_batches(bench, batch)
        options = [("grpc.max_receive_message_length", -1)]
        async with grpc.aio.insecure_channel(bench.client.address, options=options) as channel:
            stub = log_pb2_grpc.LogServiceStub(channel)
            read = PlainRead()
            async for response in stub.Read(log_pb2.ReadRequest(topic="t")):
                read.add(response)
        assert read.counts == [1, 1, 1]
        assert [len(one.value or b"") for one in read.records[0]] == [5, 12 * MIB, 6]
        await until(lambda: bench.server.fetch_memory.held_bytes == 0)


async def test_a_large_record_waits_for_room_and_a_larger_one_is_not_read(tmp_path: Path) -> None:
    async with service_bench(tmp_path, **SMALL_MEMORY) as bench:
        await bench.client.admin.create_topic("t", 2)
        for partition, size_bytes in enumerate((10 * MIB, 20 * MIB)):
            batch = encode_batch([Record(0, 0, None, bytes(size_bytes))], codec=Codec.GZIP)
            await bring(bench, batch, partition)
        memory = bench.server.fetch_memory
        read = await read_plain(bench, log_pb2.ReadRequest(topic="t", max_record_count=1, start=at_end()))
        assert read.records == {0: [], 1: []}
        small, large = (
            log_pb2.ReadRequest(topic="t", partitions=[log_pb2.ReadPartition(partition=number)])
            for number in range(2)
        )
        options = [("grpc.max_receive_message_length", -1)]
        async with grpc.aio.insecure_channel(bench.client.address, options=options) as channel:
            stub = log_pb2_grpc.LogServiceStub(channel)
            others = memory.lease(15 * MIB)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await anext(aiter(stub.Read(small)))
            assert reason_of(caught.value) == "OVERLOADED"
            others.close()
            response = await anext(aiter(stub.Read(small)))
            assert len(response.partitions[0].records[0].value) == 10 * MIB
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await anext(aiter(stub.Read(large)))
            assert reason_of(caught.value) == "RECORD_TOO_LARGE"
        await until(lambda: memory.held_bytes == 0)


def at_end() -> log_pb2.Position:
    return log_pb2.Position(spec=log_pb2.OFFSET_SPEC_LATEST)


async def test_a_partition_that_cannot_be_decoded_ends_a_read_that_waits_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    responses = ReadEncoder.responses

    def held(encoder: ReadEncoder, fetched: Iterable[FetchedBatches]) -> Iterator[bytes | None]:
        gate.pass_through()
        yield from responses(encoder, fetched)

    monkeypatch.setattr(ReadEncoder, "responses", held)
    gate.close()
    async with service_bench(tmp_path, **SMALL_MEMORY) as bench:
        await bench.client.admin.create_topic("t")
        batch = encode_batch([Record(0, 0, None, bytes(20 * MIB))], codec=Codec.GZIP)
        await bring(bench, batch)
        partitions = [log_pb2.ReadPartition(partition=number) for number in (0, 7)]
        request = log_pb2.ReadRequest(topic="t", follow=True, partitions=partitions)
        reading = asyncio.create_task(read_plain(bench, request))
        await until(gate.is_reached.is_set)
        # The next batches are waited for before these are decoded.
        await bench.until_waiting(1)
        gate.open()
        read = await reading
        assert read.errors == {0: "RECORD_TOO_LARGE", 7: "UNKNOWN_TOPIC_OR_PARTITION"}


async def test_a_reader_who_does_not_read_holds_its_window_and_nothing_after_it(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await with_batches(bench, *[bomb(Codec.ZSTD, 100, 100_000)] * 20)
        memory = bench.server.fetch_memory
        # A connection that measures its speed would buffer whole logs for its readers.
        unmeasured = [("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(bench.client.address, options=unmeasured) as channel:
            call = log_pb2_grpc.LogServiceStub(channel).Read(log_pb2.ReadRequest(topic="t"))
            first = await anext(aiter(call))
            assert len(first.partitions[0].records) >= 10
            await until(lambda: memory.held_bytes > MIB)
            # Work for others goes on, and the stalled read gets no further.
            for _ in range(3):
                request = log_pb2.ReadRequest(topic="t", max_record_count=50)
                assert await count_of(bench, request) == 50
            assert memory.held_bytes < 30 * MIB
            call.cancel()
            async with asyncio.timeout(PATIENCE_S):
                await until(lambda: memory.held_bytes == 0)
        await bench.until_waiting(0)
