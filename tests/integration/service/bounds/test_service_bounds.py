"""Each bound of a server refuses one more in words, and lets what is there go on, and health answer."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import grpc
import pytest

from stratalog.base.errors import (
    InvalidConfigError,
    InvalidRequestError,
    LimitExceededError,
    LogStoreError,
    OverloadedError,
    RecordTooLargeError,
)
from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.client.errors import error_of_call
from stratalog.client.retry import RetryPolicy
from stratalog.log.config_key import MAX_VALUE_LENGTH
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import LEAST_SENT_BYTES, Codec
from stratalog.record.record import Record
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.catalog.topic_entry import TopicEntry
from stratalog.server import app
from stratalog.server.call_counts import CallKind
from stratalog.server.metrics.health_probes import LIVE_PATH, READY_PATH
from stratalog.v1 import log_pb2, log_pb2_grpc
from tests.support.access.guarded_site import GuardedSite
from tests.support.service.health_check import require_health, require_health_over
from tests.support.service.service_bench import ServiceBench, catalog_elsewhere, service_bench, until

FETCH = log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="t")], max_wait_ms=60_000, min_bytes=1)


async def refusal_of(call: Any) -> LogStoreError:
    """The error that ends the call."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_of_call(caught.value, "")


async def test_topics_are_bounded(tmp_path: Path) -> None:
    async with service_bench(tmp_path, max_topic_count=2) as bench:
        for name in ("a", "b"):
            await bench.client.admin.create_topic(name)
        with pytest.raises(LimitExceededError) as refusal:
            await bench.client.admin.create_topic("c")
        assert refusal.value.fields == {"topic_count": 3, "max_topic_count": 2}
        assert not refusal.value.retriable
        await require_health(bench.client.address)
        # A topic that goes makes room; partitions are no topics.
        await bench.client.admin.delete_topic("a")
        await bench.client.admin.create_topic("c")
        await bench.client.admin.add_partitions("c", 3)
        assert await bench.topic_names() == ["b", "c"]


async def test_partitions_of_all_topics_are_bounded(tmp_path: Path) -> None:
    async with service_bench(tmp_path, max_total_partition_count=5) as bench:
        await bench.client.admin.create_topic("a", 3)
        for call in (
            bench.client.admin.create_topic("b", 3),
            bench.client.admin.add_partitions("a", 6),
        ):
            with pytest.raises(LimitExceededError) as refusal:
                await call
            assert refusal.value.fields == {"partition_count": 6, "max_partition_count": 5}
        await bench.client.admin.create_topic("b", 1)
        await bench.client.admin.add_partitions("b", 2)
        # The present number is no growth.
        await bench.client.admin.add_partitions("b", 2)
        with pytest.raises(LimitExceededError):
            await bench.client.admin.add_partitions("b", 3)
        await require_health(bench.client.address)
    # What is there is served, also by a server with a lower bound.
    async with service_bench(tmp_path, max_total_partition_count=1, max_topic_count=1) as bench:
        assert await bench.topic_names() == ["a", "b"]
        await bench.append("b", [b"x"], partition=1)


async def test_partitions_that_the_catalog_has_already_do_not_count_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service_bench(tmp_path, max_total_partition_count=2) as bench:
        await bench.client.admin.create_topic("t")
        real_alter = Catalog.alter

        def alter(catalog: Catalog, topic_id: UUID, **changes: Any) -> TopicEntry:
            # As where the commit is stored and its answer is lost: the catalog is looked at once more.
            monkeypatch.setattr(Catalog, "alter", real_alter)
            catalog_elsewhere(bench.server.engine.tier.store).alter(topic_id, partition_count=2)
            return catalog.alter(topic_id, **changes)

        monkeypatch.setattr(Catalog, "alter", alter)
        await bench.client.admin.add_partitions("t", 2)
        assert Catalog.alter is real_alter
        await bench.append("t", [b"x"], partition=1)


async def test_names_and_values_are_bounded(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t" * 249)
        with pytest.raises(InvalidRequestError):
            await bench.client.admin.create_topic("t" * 250)
        long_name = "n" * 3_000_000
        for changes in (
            # Kafka's parsers take spaces and zeros, and what was taken stays in the catalog.
            {"retention.ms": " " * MAX_VALUE_LENGTH + "1"},
            {"min.cleanable.dirty.ratio": "0" * 1_000_000},
            {"compaction.strategy.header": "h" * 1_000_000},
            {long_name: "1"},
        ):
            with pytest.raises(InvalidConfigError) as refusal:
                await bench.client.admin.create_topic("u", 1, changes)
            assert len(str(refusal.value)) < 5_000
        with pytest.raises(LogStoreError):
            await bench.client.append(long_name, 0, [Record(0, 0, None, b"x")])
        assert await bench.topic_names() == ["t" * 249]
        await require_health(bench.client.address)


async def test_headers_are_bounded_by_the_size_of_their_record(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", config={"max.message.bytes": "100000"})
    many = tuple(("", b"") for _ in range(40_000))
    await bench.client.append("t", 0, [Record(0, 0, None, None, many)])
    for headers in (many * 2, (("k" * 100_000, b""),), (("k", bytes(100_000)),)):
        with pytest.raises(RecordTooLargeError):
            await bench.client.append("t", 0, [Record(0, 0, None, None, headers)])


async def test_producers_are_bounded(tmp_path: Path) -> None:
    def batch(producer_id: int, sequence: int = 0) -> bytes:
        record = Record(0, int(time.time() * 1000), None, b"x")
        return encode_batch([record], producer=BatchProducer(producer_id, 0, sequence))

    async with service_bench(tmp_path, max_partition_producer_count=3, max_producer_count=5) as bench:
        await bench.client.admin.create_topic("t", 2)
        ids = [
            (await bench.client.log.InitProducer(log_pb2.InitProducerRequest())).producer_id for _ in range(6)
        ]
        for producer_id in ids[:3]:
            await bench.client.append_batches("t", 0, batch(producer_id))
        with pytest.raises(LimitExceededError) as refusal:
            await bench.client.append_batches("t", 0, batch(ids[3]))
        fields = refusal.value.fields
        assert fields == fields | {"producer_count": 4, "max_producer_count": 3, "topic": "t", "partition": 0}
        for producer_id in ids[3:5]:
            await bench.client.append_batches("t", 1, batch(producer_id))
        async with Client(bench.client.address, retry=RetryPolicy(deadline_s=0)) as impatient:
            with pytest.raises(OverloadedError) as overload:
                await impatient.append_batches("t", 1, batch(ids[5]))
        assert overload.value.fields["max_producer_count"] == 5
        # Known ones go on, and so do appends without an id.
        await bench.client.append_batches("t", 0, batch(ids[0], 1))
        await bench.append("t", [b"x"], partition=1)
        await require_health(bench.client.address)


@asynccontextmanager
async def own_connection(address: str) -> AsyncGenerator[Any]:
    """A stub of a connection that no other channel has."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield log_pb2_grpc.LogServiceStub(cast(Any, channel))


async def test_calls_of_a_connection_are_bounded(tmp_path: Path) -> None:
    async with (
        service_bench(tmp_path, max_connection_call_count=3) as bench,
        own_connection(bench.client.address) as one,
        own_connection(bench.client.address) as other,
    ):
        await bench.client.admin.create_topic("t")
        streams = [one.FetchStream(FETCH) for _ in range(3)]
        reads = bench.server.calls[CallKind.READ]
        await until(lambda: reads.open_count == 3)
        ask = log_pb2.ListOffsetsRequest()
        for call in (one.Fetch(FETCH), one.FetchStream(FETCH).read(), one.ListOffsets(ask)):
            error = await refusal_of(call)
            assert isinstance(error, OverloadedError)
            assert error.retriable
            assert error.fields == {"kind": "connection", "limit": 3}
        # The other connection is not affected, and a call that ends makes room.
        await other.ListOffsets(ask)
        await require_health(bench.client.address)
        streams[0].cancel()
        await until(lambda: reads.open_count == 2)
        await one.ListOffsets(ask)
        for stream in streams:
            stream.cancel()
        await until(lambda: reads.open_count == 0)
        assert await one.ListOffsets(ask) is not None


async def test_calls_whose_messages_never_come_leave_room_for_other_connections(tmp_path: Path) -> None:
    """They count, and the bound of a connection holds them."""
    counts: dict[str, Any] = {
        "max_append_call_count": 100,
        "max_read_call_count": 100,
        "max_admin_call_count": 100,
        "max_connection_call_count": 50,
        "max_connection_count": 10,
    }
    async with AsyncExitStack() as stack:
        bench = await stack.enter_async_context(service_bench(tmp_path, **counts))
        await bench.client.admin.create_topic("t")
        options = (("grpc.use_local_subchannel_pool", 1),)
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(bench.client.address, options=options)
        )
        # More than the server has room for over all connections.
        begun = cast(Any, channel).stream_unary("/stratalog.v1.LogService/Append")
        calls = [begun() for _ in range(bench.server.settings.max_call_count + 50)]
        # Which of them the transport lets through is its own choice.
        waits = [asyncio.ensure_future(call.wait_for_connection()) for call in calls]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        await until(lambda: bench.server.awaited_request_count == counts["max_connection_call_count"])
        await require_health(bench.client.address)
        await bench.append("t", [b"x"])
        for one in (*waits, *calls):
            one.cancel()


async def test_appends_go_on_beside_a_thousand_readers_at_the_end_of_the_log(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        bench = await stack.enter_async_context(service_bench(tmp_path, metrics_listen="127.0.0.1:0"))
        await bench.client.admin.create_topic("t")
        stubs = [await stack.enter_async_context(own_connection(bench.client.address)) for _ in range(4)]
        reads = bench.server.calls[CallKind.READ]
        streams = [stubs[number % 4].FetchStream(FETCH) for number in range(reads.limit)]
        await until(lambda: reads.open_count == reads.limit)
        await require_health(bench.client.address)
        url = f"http://127.0.0.1:{bench.server.metrics_port}/metrics"
        with await asyncio.to_thread(urllib.request.urlopen, url) as answer:
            assert b'stratalog_server_open_calls{kind="read"} 1000.0' in answer.read()
        error = await refusal_of(stubs[0].Fetch(FETCH))
        assert error.fields == {"kind": "read", "limit": reads.limit}
        for number in range(3):
            assert await bench.append("t", [b"x"]) == number
        # All of them see it.
        for stream in streams[:: reads.limit // 20]:
            assert (await stream.read()).partitions[0].next_fetch_offset > 0
        await bench.client.admin.list_topics()
        for stream in streams:
            stream.cancel()


async def test_health_answers_where_the_memory_of_requests_is_full(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t")
        with closing(bench.server.append_memory.lease(bench.server.append_memory.limit_bytes)):
            with pytest.raises(OverloadedError) as refusal:
                await bench.append("t", [b"x"])
            assert refusal.value.fields["limit_bytes"] == bench.server.append_memory.limit_bytes
            await require_health(bench.client.address)
        assert await bench.append("t", [b"x"]) == 0


async def test_batches_are_unpacked_within_their_bound_and_the_memory_of_requests(tmp_path: Path) -> None:
    def zeros(size_bytes: int) -> bytes:
        record = Record(0, int(time.time() * 1000), None, bytes(size_bytes))
        return encode_batch([record], codec=Codec.ZSTD)

    bomb, large, small = zeros(100 << 20), zeros(8 << 20), zeros(100)
    assert len(bomb) < 4_000
    async with (
        service_bench(tmp_path) as bench,
        Client(bench.client.address, retry=RetryPolicy(deadline_s=0)) as impatient,
    ):
        await bench.client.admin.create_topic("t")
        for request in (bomb, zeros(4 << 20) * 300):
            with pytest.raises(RecordTooLargeError) as too_large:
                await impatient.append_batches("t", 0, request)
            max_bytes = too_large.value.fields["max_bytes"]
            assert isinstance(max_bytes, int)
            assert max_bytes <= LEAST_SENT_BYTES
        memory = bench.server.append_memory
        with closing(memory.lease(memory.limit_bytes - (4 << 20))):
            with pytest.raises(OverloadedError) as refusal:
                await impatient.append_batches("t", 0, large)
            assert refusal.value.fields["limit_bytes"] == memory.limit_bytes
            await impatient.append_batches("t", 0, small)
            await require_health(bench.client.address)
        await impatient.append_batches("t", 0, large)
        await until(lambda: memory.held_bytes == 0)


async def test_health_answers_those_who_are_connected_where_no_other_may_connect(tmp_path: Path) -> None:
    async with (
        service_bench(tmp_path, max_connection_count=2, metrics_listen="127.0.0.1:0") as bench,
        grpc.aio.insecure_channel(bench.client.address) as channel,
        own_connection(bench.client.address) as late,
    ):
        await bench.client.admin.list_topics()
        await require_health_over(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await late.ListOffsets(log_pb2.ListOffsetsRequest())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await require_health_over(channel)
        for path in (LIVE_PATH, READY_PATH):
            url = f"http://127.0.0.1:{bench.server.metrics_port}{path}"
            with await asyncio.to_thread(urllib.request.urlopen, url) as answer:
                assert answer.read() == b"ok\n"


async def test_strangers_who_connect_leave_descriptors_for_files_and_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few descriptors there is room for fewer connections than `--max-connections` allows."""
    monkeypatch.setattr(app, "open_file_limit", lambda: 16)
    async with AsyncExitStack() as stack:
        bench = await stack.enter_async_context(service_bench(tmp_path, metrics_listen="127.0.0.1:0"))
        assert bench.server.settings.max_connection_count == 4
        await bench.client.admin.list_topics()
        closed: list[asyncio.Task[bytes]] = []
        for _ in range(6):
            reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
            stack.callback(writer.close)
            closed.append(asyncio.create_task(until_closed(reader)))
        # One connection is the client's.
        await until(lambda: sum(one.done() for one in closed) == 3)
        await bench.client.admin.create_topic("t")
        for path in (LIVE_PATH, READY_PATH):
            url = f"http://127.0.0.1:{bench.server.metrics_port}{path}"
            with await asyncio.to_thread(urllib.request.urlopen, url) as answer:
                assert answer.read() == b"ok\n"
        for one in closed:
            one.cancel()


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """Read to the end."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def endless() -> AsyncIterator[log_pb2.AppendStreamRequest]:
    await asyncio.Event().wait()
    yield log_pb2.AppendStreamRequest()


async def test_streams_of_a_principal_are_bounded(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path)
    site.extra["ours"] = "quota = { open_streams = 2 }"
    site.write()
    topic = TopicPartition("ours.t", 0)
    fetch = log_pb2.FetchRequest(
        partitions=[log_pb2.FetchPartition(topic="ours.t")], max_wait_ms=60_000, min_bytes=1
    )
    async with site.running() as server, site.client("admin") as admin:
        await admin.admin.create_topic("ours.t")
        async with site.client("ours") as one, site.client("ours") as other:
            streams: list[Any] = [one.log.FetchStream(fetch), other.log.AppendStream(endless())]
            for stream in streams:
                await stream.initial_metadata()
            for stream in (one.log.FetchStream(fetch), other.log.AppendStream(endless())):
                error = await refusal_of(stream.read())
                assert isinstance(error, OverloadedError)
                assert error.fields == {"principal": "ours", "quota": "open_streams", "limit": 2}
            # Single calls and other principals go on.
            await one.append("ours.t", 0, [Record(0, 0, None, b"x")])
            assert (await admin.latest("ours.t"))[topic] == 1
            open_count = server.calls[CallKind.READ].open_count
            assert open_count == 1
            streams[0].cancel()
            await until(lambda: server.calls[CallKind.READ].open_count == 0)
            again: Any = other.log.FetchStream(fetch)
            assert (await again.read()).partitions[0].next_fetch_offset == 1
            for stream in (*streams, again):
                stream.cancel()
