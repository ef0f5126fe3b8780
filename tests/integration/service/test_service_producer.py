"""The Python client against a real server: order, failures, reconnection, and the synchronous face."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from stratalog.base.errors import (
    InvalidRequestError,
    LogStoreError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import Durability, TopicPartition
from stratalog.client.blocking.sync_client import SyncClient
from stratalog.client.channel import ServerChannel
from stratalog.client.client import Client
from stratalog.client.errors import BufferFullError, ServerUnavailableError
from stratalog.client.owner_channels import OwnerChannels
from stratalog.client.retry import RetryPolicy
from stratalog.client.sending.batch_receipt import BatchReceipt
from stratalog.client.sending.batch_router import BatchRouter
from stratalog.client.sending.partition_lane import PartitionLane
from stratalog.client.sending.sealed_batch import BatchContents, SealedBatch
from stratalog.record.ack import Ack
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import HEADER_SIZE
from stratalog.record.key_partition import partition_for_key
from stratalog.record.native.record_accumulator import Delivery
from stratalog.record.record import Record
from stratalog.server.append.append_pipeline import AppendPipeline
from stratalog.server.append.stream_lane import StreamAnswer
from stratalog.v1 import log_pb2
from tests.support.service.server_process import ServerProcess
from tests.support.service.service_bench import ServiceBench, service_bench
from tests.support.service.settled_batches import settled_batches

PATIENT = RetryPolicy(deadline_s=60.0)
SMALL_BATCHES: Any = {"batch_bytes": 200, "linger_ms": 0}
LONG_MS = 3_600_000


async def test_a_flush_waits_for_no_records_that_are_sent_meanwhile(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    async with bench.client.producer(**SMALL_BATCHES) as producer:
        before = producer.send("t", None, b"before")
        flushing = asyncio.ensure_future(producer.flush())
        sent_count = 1
        while not flushing.done():
            # There is always a batch on its way.
            producer.send("t", None, b"meanwhile")
            sent_count += 1
            await producer.ready()
            await asyncio.sleep(0)
            assert sent_count < 200_000, "the flush goes on for as long as records are sent"
        await flushing
        assert before.is_done
    [values] = await bench.values("t")
    assert len(values) == sent_count


async def test_records_of_a_key_keep_their_order_and_their_partition(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 5)
    async with bench.client.producer(**SMALL_BATCHES) as producer:
        for number in range(1000):
            producer.send("t", b"key-%d" % (number % 17), b"%d" % number)
    seen: dict[bytes, list[int]] = {}
    for partition, records in enumerate(await bench.read_all("t")):
        for record in records:
            assert record.key is not None
            assert record.value is not None
            assert partition_for_key(record.key, 5) == partition
            seen.setdefault(record.key, []).append(int(record.value))
    assert seen == {b"key-%d" % key: list(range(key, 1000, 17)) for key in range(17)}


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("codec", Codec)
async def test_a_record_arrives_with_everything_it_had(
    bench: ServiceBench, codec: Codec, idempotent: bool
) -> None:
    await bench.client.topics.create("t")
    compression = codec.name.lower()
    async with bench.client.producer(
        compression=compression, durability=Durability.DISK, idempotent=idempotent
    ) as producer:
        headers = [("h", b"x"), ("h", None)]
        ack = await producer.send("t", b"k", b"v" * 50_000, timestamp_ms=77, headers=headers)
        assert ack == Ack("t", 0, 0, 77, Durability.DISK)
        producer.send("t", "k", None, headers={"name": "text"})
    [[record, tombstone]] = await bench.read_all("t")
    assert record == Record(0, 77, b"k", b"v" * 50_000, (("h", b"x"), ("h", None)))
    assert (tombstone.key, tombstone.headers) == (b"k", (("name", b"text"),))
    assert tombstone.is_tombstone


async def test_records_without_a_key_spread_over_the_partitions(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 3)
    async with bench.client.producer(**SMALL_BATCHES) as producer:
        for _ in range(100):
            producer.send("t", None, bytes(50))
    counts = [len(records) for records in await bench.read_all("t")]
    assert sum(counts) == 100
    assert min(counts) > 10


async def test_a_failure_that_was_not_asked_about_is_raised_by_the_flush(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", config={"max.message.bytes": "1000"})
    producer = bench.client.producer(**SMALL_BATCHES)
    for size_bytes in (10, 5000, 6000, 10):
        producer.send("t", None, bytes(size_bytes))
    with pytest.raises(RecordTooLargeError):
        await producer.flush()
    await producer.flush()
    assert [len(records) for records in await bench.read_all("t")] == [2]


async def test_what_cannot_be_sent_is_refused(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 2)
    producer = bench.client.producer()
    with pytest.raises(UnknownTopicOrPartitionError):
        await producer.send("nope", None, b"x")
    for _ in range(2):
        with pytest.raises(UnknownTopicOrPartitionError) as caught:
            await producer.send("t", None, b"x", partition=2)
        assert caught.value.fields == {
            "topic": "t",
            "partition": 2,
            "partition_count": 2,
            "outcome": "not stored",
        }
    with pytest.raises(InvalidRequestError):
        producer.send("t", None, b"x", timestamp_ms=-3)
    await producer.flush()
    # Nothing awaits this one.
    producer.send("nope", None, b"x")
    with pytest.raises(UnknownTopicOrPartitionError):
        await producer.close()
    assert producer.buffered_bytes == 0
    await bench.client.admin.create_topic("local", config={"remote.storage.enable": "false"})
    refused = bench.client.producer(durability=Durability.OBJECT)
    with pytest.raises(InvalidRequestError):
        await refused.send("local", None, b"x")
    await refused.close()
    with pytest.raises(InvalidRequestError):
        bench.client.producer(compression="rot13")


async def test_what_can_be_no_record_is_refused_at_once_and_harms_no_other(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    producer = bench.client.producer(linger_ms=LONG_MS)
    misfit: Any = 5
    deliveries: list[Delivery] = []
    for number in range(10):
        # The first record of a batch, and a later one; before the topic is known, and then.
        for _ in range(2):
            with pytest.raises(TypeError):
                producer.send("t", b"k", misfit)
            with pytest.raises(InvalidRequestError):
                producer.send("t", b"k", b"v", timestamp_ms=2**63)
        deliveries.append(producer.send("t", b"k", b"%d" % number, headers=[("name", None)]))
        if number % 3 == 2:
            await asyncio.wait_for(producer.flush(), 30)
    deliveries.append(producer.send("t", b"k", bytearray(b"bytes-like")))
    await asyncio.wait_for(producer.close(), 30)
    assert [delivery.result().offset for delivery in deliveries] == [*range(11)]
    assert await bench.values("t") == [[*(b"%d" % n for n in range(10)), b"bytes-like"]]
    assert producer.buffered_bytes == 0


async def test_a_batch_that_is_too_large_as_it_is_stored_makes_no_other_smaller(bench: ServiceBench) -> None:
    """It was much smaller when it was sent than those that come then."""
    config = {"compression.type": "uncompressed", "max.message.bytes": "100000"}
    await bench.client.admin.create_topic("t", config=config)
    producer = bench.client.producer(batch_bytes=300_000, linger_ms=LONG_MS, compression="zstd")
    await producer.learn("t")
    settled = settled_batches(producer)
    source = random.Random(1)
    batches = [[bytes(80_000)] * 2, *([source.randbytes(50) for _ in range(200)] for _ in range(2))]
    for values in batches:
        for value in values:
            producer.send("t", None, value)
        # Not the flush, which waits for what is under way.
        producer.close_all()
    await producer.flush()
    assert [batch.record_count for batch in settled] == [1, 1, 200, 200]


async def test_a_sender_that_fails_by_a_defect_leaves_no_send_waiting(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.client.admin.create_topic("t")
    producer = bench.client.producer(**SMALL_BATCHES)

    def fail(_lane: PartitionLane, _sequence: int, _ack: log_pb2.AppendResponse) -> None:
        raise ValueError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLane, "acknowledge", fail)
        deliveries = [producer.send("t", None, b"%03d" % number) for number in range(100)]
        with pytest.raises(LogStoreError):
            await asyncio.wait_for(producer.flush(), 30)
        assert all(delivery.is_done for delivery in deliveries)
    assert f"sending to {bench.client.address} failed" in caplog.text
    # What is sent from then on gets its own answers.
    before = await bench.client.latest("t")
    last = producer.send("t", None, b"last")
    await asyncio.wait_for(producer.close(), 30)
    assert last.result().offset >= min(before.values(), default=0)
    [records] = await bench.read_all("t")
    assert records[last.result().offset].value == b"last"


async def test_a_full_buffer_refuses_records_until_there_is_room(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    producer = bench.client.producer(max_buffered_bytes=10_000, linger_ms=LONG_MS)
    for _ in ("the topic is unknown", "it is known"):
        for _ in range(5):
            producer.send("t", None, bytes(2000), partition=0)
        with pytest.raises(BufferFullError) as caught:
            producer.send("t", None, bytes(2000), partition=0)
        assert caught.value.fields["max_bytes"] == 10_000
        waiting = asyncio.create_task(producer.ready())
        await asyncio.sleep(0)
        assert not waiting.done()
        await producer.flush()
        await waiting
        assert producer.buffered_bytes == 0
    producer.send("t", None, b"x")
    await producer.close()


async def test_the_buffer_is_ready_for_several_records_though_all_linger(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 8)
    async with bench.client.producer(
        batch_bytes=2_000, max_buffered_bytes=10_000, linger_ms=LONG_MS
    ) as producer:
        for number in range(200):
            # The batches of all partitions together are larger than the buffer.
            await asyncio.wait_for(producer.ready(), 30)
            for _ in range(2):
                producer.send("t", None, bytes(900), partition=number % 8)
    assert sum(len(records) for records in await bench.read_all("t")) == 400


async def test_records_that_are_sent_before_the_topic_is_known_keep_their_order(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 3)
    async with bench.client.producer(linger_ms=0) as producer:
        early = [producer.send("t", "key", b"%03d" % number) for number in range(50)]
        assert producer.buffered_bytes > 0
        await early[7]
        late = [producer.send("t", "key", b"%03d" % number) for number in range(50, 100)]
        acks = [await delivery for delivery in (*early, *late)]
    assert [ack.offset for ack in acks] == list(range(100))
    values = (await bench.values("t"))[acks[0].partition]
    assert values == [b"%03d" % number for number in range(100)]


async def test_new_partitions_are_noticed(bench: ServiceBench) -> None:
    """A topic that is made anew has another number of partitions, and another id."""
    await bench.client.topics.create("t", partitions=1)
    async with bench.client.producer() as producer:
        await producer.send("t", "a", b"x")
        await bench.client.topics.delete("t")
        await bench.client.topics.create("t", partitions=4)
        ack = await producer.send("t", None, b"x", partition=3)
        assert (ack.partition, producer.partition_count("t")) == (3, 4)


async def test_threads_send_beside_the_event_loop(bench: ServiceBench) -> None:
    await bench.client.topics.create("t", partitions=2)
    async with bench.client.producer(batch_bytes=2000, linger_ms=0) as producer:
        await producer.learn("t")

        def send(name: bytes) -> None:
            for number in range(2000):
                producer.send("t", name, b"%04d" % number)

        await asyncio.gather(*(asyncio.to_thread(send, b"%d" % thread) for thread in range(4)))
    found: dict[bytes | None, list[int]] = {}
    for records in await bench.read_all("t"):
        for record in records:
            found.setdefault(record.key, []).append(int(record.value or b""))
    assert found == {b"%d" % thread: list(range(2000)) for thread in range(4)}


async def test_leaving_with_an_error_abandons_what_is_open(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    deliveries: list[Delivery] = []

    async def fail() -> None:
        async with bench.client.producer(linger_ms=LONG_MS) as producer:
            await producer.learn("t")
            deliveries.append(producer.send("t", None, b"x"))
            # Its topic is not known yet.
            deliveries.append(producer.send("other", None, b"x"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    for delivery in deliveries:
        with pytest.raises(LogStoreError) as caught:
            await delivery
        assert type(caught.value) is LogStoreError
    assert await bench.read_all("t") == [[]]


@pytest.mark.parametrize("idempotent", [True, False])
async def test_an_abandoned_producer_can_be_used_at_once(bench: ServiceBench, idempotent: bool) -> None:
    await bench.client.admin.create_topic("t", 2)
    producer = bench.client.producer(linger_ms=0, batch_bytes=100, idempotent=idempotent)
    await producer.learn("t")
    for turn in range(20):
        for number in range(50):
            producer.send("t", b"%d" % number, b"abandoned")
        # The streams of the turns stand at different points when they are abandoned.
        for _ in range(turn):
            await asyncio.sleep(0)
        producer.abandon()
        assert producer.buffered_bytes == 0
        kept = [producer.send("t", b"%d" % number, b"kept %d" % turn) for number in range(5)]
        await asyncio.wait_for(producer.flush(), 30)
        assert all(delivery.is_done for delivery in kept)
    await producer.close()
    values = [value for partition in await bench.values("t") for value in partition]
    for turn in range(20):
        assert values.count(b"kept %d" % turn) == 5


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
        router = BatchRouter(OwnerChannels(self._channel), None, retry, self)
        self.deliveries: list[Delivery] = []
        for number in range(count):
            batch = encode_batch([Record(0, 0, None, b"%d" % number)])
            receipt = BatchReceipt("t", 0)
            sealed = SealedBatch(
                TopicPartition("t", 0),
                receipt,
                0,
                BatchContents(1, 0, 0, Codec.NONE),
                len(batch),
                batch[HEADER_SIZE:],
            )
            self.deliveries.append(Delivery(receipt, 0, 0))
            router.send(sealed)

    def on_settled(self, batch: SealedBatch, error: LogStoreError | None) -> None: ...

    def on_split(self, batch: SealedBatch, parts: Sequence[SealedBatch]) -> None: ...

    def max_batch_bytes(self, topic: str) -> int | None: ...

    def on_stale(self, topic: str) -> None: ...

    def on_cancelled(self) -> None: ...

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
    async with bench.client.producer(batch_bytes=200, linger_ms=LONG_MS) as producer:
        await producer.learn("t")
        for number in range(1200):
            producer.send("t", None, b"%05d" % number + bytes(50), partition=number % 12)
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
    producer = bench.client.producer(batch_bytes=1000, linger_ms=LONG_MS)
    for topic in ("deleted", "t", "narrow"):
        await producer.learn(topic)
    settled = settled_batches(producer)
    await bench.client.admin.delete_topic("deleted")
    before = stream_count()
    for number in range(300):
        producer.send("deleted", None, bytes(100))
        producer.send("narrow", None, b"%05d" % number + bytes(50))
        producer.send("t", None, b"%05d" % number + bytes(100), partition=number % 3)
    with pytest.raises(UnknownTopicOrPartitionError):
        await producer.flush()
    assert stream_count() == before + 1
    for batch in settled:
        is_lost = batch.topic == "deleted"
        assert isinstance(batch.error, UnknownTopicOrPartitionError) == is_lost
        assert is_lost or batch.error is None
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
            assert [(await delivery).offset for delivery in queued.deliveries] == list(range(20))


async def test_a_server_that_stays_away_fails_all_that_waits_at_the_deadline() -> None:
    async with QueuedBatches("127.0.0.1:1", RetryPolicy(deadline_s=0.2), 100) as queued, asyncio.timeout(60):
        for outcome in await asyncio.gather(*queued.deliveries, return_exceptions=True):
            assert isinstance(outcome, ServerUnavailableError)
            assert outcome.fields["outcome"] == "not stored"


async def test_a_wrong_record_of_a_topic_not_yet_known_fails_alone(bench: ServiceBench) -> None:
    await bench.client.topics.create("t")
    async with bench.client.producer() as producer:
        with pytest.raises(InvalidRequestError):
            producer.send("t", "k", "bad", partition=-1)
        wrong = producer.send("t", "k", "bad", partition=1)
        right = producer.send("t", "k", "good")
        with pytest.raises(UnknownTopicOrPartitionError) as caught:
            await wrong
        assert caught.value.fields["outcome"] == "not stored"
        assert (await right).offset == 0
    assert producer.buffered_bytes == 0


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_stream_that_broke_takes_no_batch_of_the_next_one(tmp_path: Path, idempotent: bool) -> None:
    with ServerProcess(f"{tmp_path}/data") as server:
        server.add_options("--listen", server.address)
        async with Client(server.address, retry=PATIENT) as client, asyncio.timeout(60):
            await client.admin.create_topic("t", 2)
            producer = client.producer(**SMALL_BATCHES, idempotent=idempotent)
            await producer.send("t", None, b"before", partition=1)
            os.kill(server.pid, signal.SIGSTOP)
            lost = producer.send("t", None, b"unknown", partition=0)
            # The batch leaves, and the transport waits for the next one.
            for _ in range(1000):
                await asyncio.sleep(0)
            server.kill()
            if not idempotent:
                with pytest.raises(ServerUnavailableError):
                    await lost
            await asyncio.to_thread(server.start)
            if idempotent:
                assert (await lost).offset == 0
            values = [b"%03d" % number + bytes(150) for number in range(30)]
            deliveries = [producer.send("t", None, value, partition=0) for value in values]
            offsets = [(await delivery).offset for delivery in deliveries]
            end_offset = 31 if idempotent else 30
            found = {
                record.offset: record.value
                async for record in client.consume("t", until=end_offset, partitions=[0])
            }
            assert [found[offset] for offset in offsets] == values
            await producer.close()


async def test_the_synchronous_face_does_the_same(bench: ServiceBench) -> None:
    await asyncio.to_thread(use_synchronously, bench.client.address)


def use_synchronously(address: str) -> None:
    with SyncClient(address) as client:
        client.topics.create("t", partitions=2, config={"retention.ms": "-1"})
        assert client.topics.list() == ["t"]
        answer = client.append("t", 0, [Record(0, 5, b"k", b"v"), Record(0, 6, b"k", None)])
        assert (answer.base_offset, answer.last_offset) == (0, 1)
        assert [record.timestamp_ms for record in client.consume("t", until="latest")] == [5, 6]
        for _ in client.consume("t"):
            break
        with client.producer(linger_ms=0, max_buffered_bytes=1000) as producer:
            deliveries = [producer.send("t", value=bytes(300), partition=0) for _ in range(50)]
            assert [delivery.result(60).offset for delivery in deliveries] == list(range(2, 52))
            with pytest.raises(UnknownTopicOrPartitionError):
                producer.send("nope")
            producer.flush()
        consumer = client.consume("t", partitions=[0], until="latest")
        for number, record in enumerate(consumer):
            assert record.offset == number
            assert consumer.positions == {0: number + 1}
        assert consumer.positions == {0: 52}
        with pytest.raises(UnknownTopicOrPartitionError):
            client.append("nope", 0, [Record(0, 5, b"k", b"v")])
        client.topics.alter("t", {"retention.ms": None})
        client.topics.delete("t")
