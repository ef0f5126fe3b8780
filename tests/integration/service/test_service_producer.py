"""The Python client against a real server: order, failures, reconnection, and the synchronous face."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, Self

import pytest

from stratalog.base.errors import (
    InvalidRequestError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
    UnsupportedOperationError,
)
from stratalog.base.types import Durability, TopicPartition
from stratalog.client.append_sender import AppendSender
from stratalog.client.channel import ServerChannel
from stratalog.client.client import Client
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.partition_lane import PartitionLane
from stratalog.client.producer import BatchOutcome
from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.retry import RetryPolicy
from stratalog.client.sealed_batch import Acknowledged, SealedBatch
from stratalog.client.sync import SyncClient
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.key_partition import partition_for_key
from stratalog.record.record import Record
from stratalog.server.append.append_pipeline import AppendPipeline
from stratalog.server.append.stream_lane import StreamAnswer
from stratalog.v1 import log_pb2
from tests.support.service.server_process import ServerProcess
from tests.support.service.service_bench import ServiceBench, service_bench

PATIENT = RetryPolicy(deadline_s=60.0)
SMALL_BATCHES = ProducerSettings(batch_bytes=200, linger_ms=0)


async def test_records_of_a_key_keep_their_order_and_their_partition(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 5)
    async with bench.client.producer(SMALL_BATCHES) as producer:
        for number in range(1000):
            await producer.post("t", b"key-%d" % (number % 17), b"%d" % number)
    seen: dict[bytes, list[int]] = {}
    for partition, records in enumerate(await bench.read_all("t")):
        for record in records:
            assert record.key is not None
            assert record.value is not None
            assert partition_for_key(record.key, 5) == partition
            seen.setdefault(record.key, []).append(int(record.value))
    assert seen == {b"key-%d" % key: list(range(key, 1000, 17)) for key in range(17)}


@pytest.mark.parametrize("codec", Codec)
async def test_a_record_arrives_with_everything_it_had(bench: ServiceBench, codec: Codec) -> None:
    await bench.client.admin.create_topic("t")
    settings = ProducerSettings(codec=codec, durability=Durability.DISK)
    async with bench.client.producer(settings) as producer:
        headers = [("h", b"x"), ("h", None)]
        acknowledged = await (await producer.send("t", b"k", b"v" * 500, timestamp_ms=77, headers=headers))
        assert acknowledged == (TopicPartition("t", 0), 0, Durability.DISK)
        await producer.post("t", b"k", None)
    [[record, tombstone]] = await bench.read_all("t")
    assert record == Record(0, 77, b"k", b"v" * 500, (("h", b"x"), ("h", None)))
    assert tombstone.is_tombstone


async def test_records_without_a_key_spread_over_the_partitions(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 3)
    async with bench.client.producer(SMALL_BATCHES) as producer:
        for _ in range(100):
            await producer.post("t", None, bytes(50))
    counts = [len(records) for records in await bench.read_all("t")]
    assert sum(counts) == 100
    assert min(counts) > 10


async def test_a_failure_that_was_not_asked_about_is_raised_by_the_flush(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", config={"max.message.bytes": "1000"})
    producer = bench.client.producer(SMALL_BATCHES)
    for size_bytes in (10, 5000, 6000, 10):
        await producer.post("t", None, bytes(size_bytes))
    with pytest.raises(RecordTooLargeError):
        await producer.flush()
    await producer.flush()
    assert [len(records) for records in await bench.read_all("t")] == [2]


async def test_what_cannot_be_sent_is_refused_at_once(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 2)
    producer = bench.client.producer()
    with pytest.raises(UnknownTopicOrPartitionError):
        await producer.post("nope", None, b"x")
    with pytest.raises(UnknownTopicOrPartitionError):
        await producer.post("t", None, b"x", partition=2)
    with pytest.raises(InvalidRequestError):
        await producer.post("t", None, b"x", timestamp_ms=-3)
    refused = bench.client.producer(ProducerSettings(durability=Durability.OBJECT))
    with pytest.raises(UnsupportedOperationError):
        await (await refused.send("t", None, b"x"))


@pytest.mark.parametrize(
    ("misfit", "error"),
    [
        ({"key": "text"}, TypeError),
        ({"value": "text"}, TypeError),
        ({"headers": None}, TypeError),
        ({"headers": [(None, b"x")]}, TypeError),
        ({"headers": [("name", "text")]}, TypeError),
        ({"headers": [("name",)]}, ValueError),
        ({"headers": [("\udc80", b"x")]}, UnicodeEncodeError),
        ({"timestamp_ms": 1.5}, InvalidRequestError),
        ({"timestamp_ms": 2**63}, InvalidRequestError),
    ],
)
@pytest.mark.parametrize("linger_ms", [0, 3_600_000])
async def test_what_can_be_no_record_is_refused_at_once_and_harms_no_other(
    bench: ServiceBench, misfit: dict[str, Any], error: type[Exception], linger_ms: int
) -> None:
    given: dict[str, Any] = {"key": b"k", "value": b"v", **misfit}
    bytes_like: Any = bytearray(b"bytes-like")
    await bench.client.admin.create_topic("t")
    outcomes: list[BatchOutcome] = []
    producer = bench.client.producer(ProducerSettings(linger_ms=linger_ms), on_outcome=outcomes.append)
    futures: list[asyncio.Future[Acknowledged]] = []
    for number in range(10):
        # The first record of a batch, and a later one.
        for _ in range(2):
            with pytest.raises(error):
                _ = await producer.send("t", **given)
        futures.append(await producer.send("t", b"k", b"%d" % number, headers=[("name", None)]))
        if number % 3 == 2:
            await asyncio.wait_for(producer.flush(), 30)
    futures.append(await producer.send("t", b"k", bytes_like))
    await asyncio.wait_for(producer.close(), 30)
    assert [future.result().offset for future in futures] == [*range(11)]
    assert await bench.values("t") == [[*(b"%d" % n for n in range(10)), b"bytes-like"]]
    assert producer.buffered_bytes == 0
    assert sum(outcome.record_count for outcome in outcomes) == 11


async def test_a_batch_that_is_too_large_as_it_is_stored_makes_no_other_smaller(bench: ServiceBench) -> None:
    """It was much smaller when it was sent than those that come then."""
    config = {"compression.type": "uncompressed", "max.message.bytes": "100000"}
    await bench.client.admin.create_topic("t", config=config)
    outcomes: list[BatchOutcome] = []
    settings = ProducerSettings(batch_bytes=300_000, linger_ms=3_600_000, codec=Codec.ZSTD)
    producer = bench.client.producer(settings, on_outcome=outcomes.append)
    source = random.Random(1)
    batches = [[bytes(80_000)] * 2, *([source.randbytes(50) for _ in range(200)] for _ in range(2))]
    for values in batches:
        for value in values:
            await producer.post("t", None, value)
        # Not the flush, which waits for what is under way.
        producer._seal(TopicPartition("t", 0))  # pyright: ignore[reportPrivateUsage]  # no flush
    await producer.flush()
    counts = [outcome.record_count for outcome in outcomes]
    assert counts == [1, 1, 200, 200]


async def test_a_callback_that_fails_harms_no_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(outcome: BatchOutcome) -> None:
        raise ValueError(outcome.first_tag)

    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t")
        producer = bench.client.producer(SMALL_BATCHES, on_outcome=fail)
        futures = [await producer.send("t", None, b"%03d" % number) for number in range(100)]
        await asyncio.wait_for(producer.flush(), 30)
        assert [future.result().offset for future in futures] == [*range(100)]
    assert "`on_outcome` of a producer failed for a batch of t-0" in caplog.text


async def test_a_sender_that_fails_by_a_defect_leaves_no_send_waiting(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.client.admin.create_topic("t")
    producer = bench.client.producer(SMALL_BATCHES)

    def fail(_lane: PartitionLane, _sequence: int, _ack: log_pb2.AppendResponse) -> None:
        raise ValueError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLane, "acknowledge", fail)
        futures = [await producer.send("t", None, b"%03d" % number) for number in range(100)]
        await asyncio.wait_for(producer.flush(), 30)
        assert all(future.done() for future in futures)
    lost = [future for future in futures if future.exception() is not None]
    assert len(lost) > 10
    assert f"sending to {bench.client.address} failed" in caplog.text
    # What is sent from then on gets its own answers.
    before = await bench.client.latest("t")
    last = await producer.send("t", None, b"last")
    await asyncio.wait_for(producer.close(), 30)
    assert last.result().offset >= min(before.values(), default=0)
    [records] = await bench.read_all("t")
    assert records[last.result().offset].value == b"last"


async def test_a_full_buffer_makes_the_sender_wait(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    producer = bench.client.producer(ProducerSettings(max_buffered_bytes=10_000, linger_ms=3_600_000))
    for _ in range(10):
        await producer.post("t", None, bytes(2000), partition=0)
        if producer.buffered_bytes > 10_000:
            break
    blocked = asyncio.create_task(producer.post("t", None, b"blocked", partition=0))
    await asyncio.sleep(0)
    assert not blocked.done()
    await producer.flush()
    await blocked
    assert producer.buffered_bytes < 10_000
    await producer.close()
    assert producer.buffered_bytes == 0


async def test_leaving_with_an_error_abandons_what_is_open(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    futures: list[asyncio.Future[Acknowledged]] = []

    async def fail() -> None:
        async with bench.client.producer(ProducerSettings(linger_ms=3_600_000)) as producer:
            futures.append(await producer.send("t", None, b"x"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert futures[0].cancelled()
    assert await bench.read_all("t") == [[]]


async def test_a_session_without_news_stands_at_once(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench, asyncio.timeout(60):
        await bench.client.admin.create_topic("t")
        request = log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="t")])
        call = bench.client.log.FetchStream(request)
        await call.wait_for_connection()
        call.cancel()


class QueuedBatches:
    """Batches of one record each, queued for a server that nothing was ever sent to over this channel."""

    def __init__(self, address: str, retry: RetryPolicy, count: int) -> None:
        self._channel = ServerChannel(address)
        partition = TopicPartition("t", 0)
        sender = AppendSender(
            self._channel, None, retry, lambda _batch, _error: None, lambda _batch, _halves: None
        )
        self.acknowledged: list[asyncio.Future[Acknowledged]] = []
        for number in range(count):
            batch = encode_batch([Record(0, 0, None, b"%d" % number)])
            future: asyncio.Future[Acknowledged] = asyncio.get_running_loop().create_future()
            sender.send(SealedBatch(partition, batch, [number], [(0, future)], len(batch)))
            self.acknowledged.append(future)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()


def count_streams(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The number of streams of appends that the server has served from now on."""
    count = 0
    answers = AppendPipeline.answers

    def counting(pipeline: AppendPipeline) -> AsyncGenerator[StreamAnswer, None]:
        nonlocal count
        count += 1
        return answers(pipeline)

    monkeypatch.setattr(AppendPipeline, "answers", counting)
    return lambda: count


async def test_a_producer_has_one_stream_for_all_partitions(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.client.admin.create_topic("t", 12)
    stream_count = count_streams(monkeypatch)
    async with bench.client.producer(ProducerSettings(batch_bytes=200, linger_ms=3_600_000)) as producer:
        for number in range(1200):
            await producer.post("t", None, b"%05d" % number + bytes(50), partition=number % 12)
    # No batch was acknowledged before the last one was queued, so the stream never was idle.
    assert stream_count() == 1
    for partition, values in enumerate(await bench.values("t")):
        assert [int((value or b"")[:5]) for value in values] == list(range(partition, 1200, 12))


async def test_a_partition_that_fails_or_waits_delays_no_other(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.client.admin.create_topic("deleted")
    await bench.client.admin.create_topic("t", 3)
    await bench.client.admin.create_topic("narrow", config={"max.message.bytes": "300"})
    stream_count = count_streams(monkeypatch)
    outcomes: list[BatchOutcome] = []
    producer = bench.client.producer(
        ProducerSettings(batch_bytes=1000, linger_ms=3_600_000), on_outcome=outcomes.append
    )
    await producer.post("deleted", None, b"known to the producer")
    await producer.flush()
    await bench.client.admin.delete_topic("deleted")
    before = stream_count()
    for number in range(300):
        await producer.post("deleted", None, bytes(100))
        await producer.post("narrow", None, b"%05d" % number + bytes(50))
        await producer.post("t", None, b"%05d" % number + bytes(100), partition=number % 3)
    with pytest.raises(UnknownTopicOrPartitionError):
        await producer.flush()
    assert stream_count() == before + 1
    for outcome in outcomes[1:]:
        is_lost = outcome.topic_partition.topic == "deleted"
        assert isinstance(outcome.error, UnknownTopicOrPartitionError) == is_lost
        assert is_lost or outcome.error is None
    [narrow] = await bench.values("narrow")
    assert [int((value or b"")[:5]) for value in narrow] == list(range(300))
    for partition, values in enumerate(await bench.values("t")):
        assert [int((value or b"")[:5]) for value in values] == list(range(partition, 300, 3))
    assert producer.buffered_bytes == 0


async def test_what_was_not_sent_goes_out_once_the_server_is_back(tmp_path: Path) -> None:
    with ServerProcess(f"{tmp_path}/data") as server:
        address = server.address
        server.add_options("--listen", address)
        async with Client(address) as client:
            await client.admin.create_topic("t")
        server.kill()
        async with QueuedBatches(address, PATIENT, 20) as queued, asyncio.timeout(120):
            await asyncio.to_thread(server.start)
            assert [(await future).offset for future in queued.acknowledged] == list(range(20))


async def test_a_server_that_stays_away_fails_all_that_waits_at_the_deadline() -> None:
    async with QueuedBatches("127.0.0.1:1", RetryPolicy(deadline_s=0.2), 100) as queued, asyncio.timeout(60):
        for outcome in await asyncio.gather(*queued.acknowledged, return_exceptions=True):
            assert isinstance(outcome, ServerUnavailableError)


async def test_a_stream_that_broke_takes_no_batch_of_the_next_one(tmp_path: Path) -> None:
    with ServerProcess(f"{tmp_path}/data") as server:
        server.add_options("--listen", server.address)
        async with Client(server.address, retry=PATIENT) as client, asyncio.timeout(60):
            await client.admin.create_topic("t", 2)
            producer = client.producer(SMALL_BATCHES)
            await (await producer.send("t", None, b"before", partition=1))
            os.kill(server.pid, signal.SIGSTOP)
            lost = await producer.send("t", None, b"unknown", partition=0)
            # The batch leaves, and the transport waits for the next one.
            for _ in range(1000):
                await asyncio.sleep(0)
            server.kill()
            with pytest.raises(ServerUnavailableError):
                await lost
            await asyncio.to_thread(server.start)
            values = [b"%03d" % number + bytes(150) for number in range(30)]
            acknowledged = [await producer.send("t", None, value, partition=0) for value in values]
            offsets = [(await future).offset for future in acknowledged]
            found = {
                record.offset: record.value async for record in client.consume("t", until=30, partitions=[0])
            }
            assert [found[offset] for offset in offsets] == values


async def test_the_synchronous_face_does_the_same(bench: ServiceBench) -> None:
    await asyncio.to_thread(use_synchronously, bench.client.address)


def use_synchronously(address: str) -> None:
    with SyncClient(address) as client:
        client.run(client.client.admin.create_topic("t"))
        answer = client.append("t", 0, [Record(0, 5, b"k", b"v"), Record(0, 6, b"k", None)])
        assert (answer.base_offset, answer.last_offset) == (0, 1)
        assert [record.timestamp_ms for record in client.consume("t", until="latest")] == [5, 6]
        for _ in client.consume("t"):
            break
        with pytest.raises(UnknownTopicOrPartitionError):
            client.append("nope", 0, [Record(0, 5, b"k", b"v")])
