"""Batches that are larger than their topic takes: a producer sends them in parts, and loses no order."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
from google.rpc.status_pb2 import Status

from stratalog.base.errors import LogStoreError, RecordTooLargeError
from stratalog.client.errors import error_of_status
from stratalog.record.native.record_accumulator import Delivery
from tests.support.service.service_bench import ServiceBench, service_bench
from tests.support.service.settled_batches import settled_batches

LONG_MS = 3_600_000
LIMITS = [{"segment.bytes": "20000"}, {"max.message.bytes": "1000"}]


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("limits", LIMITS, ids=["segment.bytes", "max.message.bytes"])
async def test_a_batch_that_is_too_large_goes_out_in_parts(
    bench: ServiceBench, limits: dict[str, str], compression: str, idempotent: bool
) -> None:
    # Of lines that compress badly the batch is too large in either codec.
    values = [hashlib.sha256(b"%d" % number).digest() for number in range(2000)]
    await bench.client.admin.create_topic("t", config=limits)
    producer = bench.client.producer(linger_ms=LONG_MS, compression=compression, idempotent=idempotent)
    await producer.learn("t")
    settled = settled_batches(producer)
    deliveries = [producer.send("t", None, value) for value in values]
    await producer.flush()
    assert producer.buffered_bytes == 0
    [records] = await bench.read_all("t")
    assert [record.value for record in records] == values
    assert [delivery.result().offset for delivery in deliveries] == list(range(2000))
    assert len(settled) > 1
    assert all(batch.error is None for batch in settled)
    assert sum(batch.record_count for batch in settled) == len(values)


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_record_that_is_too_large_alone_fails_alone(bench: ServiceBench, idempotent: bool) -> None:
    sizes = [5000 if number % 40 == 13 else 20 for number in range(200)]
    await bench.client.admin.create_topic("t", config={"max.message.bytes": "1000"})
    producer = bench.client.producer(linger_ms=LONG_MS, idempotent=idempotent)
    deliveries = [
        producer.send("t", None, b"%03d" % number + bytes(size_bytes))
        for number, size_bytes in enumerate(sizes)
    ]
    with pytest.raises(RecordTooLargeError):
        await producer.flush()
    [records] = await bench.read_all("t")
    stored = {record.offset: int((record.value or b"")[:3]) for record in records}
    assert list(stored.values()) == [number for number, size_bytes in enumerate(sizes) if size_bytes == 20]
    for number, delivery in enumerate(deliveries):
        if sizes[number] == 20:
            assert stored[(await delivery).offset] == number
            continue
        with pytest.raises(RecordTooLargeError) as caught:
            await delivery
        assert (caught.value.fields["name"], caught.value.fields["max_bytes"]) == ("max.message.bytes", 1000)
    assert producer.buffered_bytes == 0


async def test_the_size_that_was_refused_is_not_sent_again(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[LogStoreError] = []

    def counted(status: Status) -> LogStoreError:
        error = error_of_status(status)
        if isinstance(error, RecordTooLargeError):
            refused.append(error)
        return error

    monkeypatch.setattr("stratalog.client.channel.error_of_status", counted)
    await bench.client.admin.create_topic("t", config={"segment.bytes": "20000"})
    producer = bench.client.producer(batch_bytes=64 << 10, linger_ms=LONG_MS)
    for number in range(2000):
        producer.send("t", None, b"%04d" % number + bytes(400))
    await producer.flush()
    [records] = await bench.read_all("t")
    assert [int((record.value or b"")[:4]) for record in records] == list(range(2000))
    # 13 batches of 64 KiB: 64, 32, and perhaps what lies between the limit and 32.
    assert 2 <= len(refused) <= 4


async def test_what_waits_for_parts_is_forgotten_with_them(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", config={"max.message.bytes": "300"})
    deliveries: list[Delivery] = []

    async def fail() -> None:
        async with bench.client.producer(linger_ms=0) as producer:
            deliveries.extend([producer.send("t", None, b"%03d" % n) for n in range(500)])
            # The first parts are stored, the others wait.
            await deliveries[0]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert all(delivery.is_done for delivery in deliveries)
    with pytest.raises(LogStoreError) as caught:
        await deliveries[-1]
    assert type(caught.value) is LogStoreError


async def refuse_large_records(bench: ServiceBench, sizes: list[int], limit_bytes: int) -> None:
    """Send records of these sizes. Those above the limit fail, alone and in their turn."""
    await bench.client.admin.create_topic("t", config={"max.message.bytes": f"{limit_bytes}"})
    # The size of a compressed batch is known only when it is sent. This one compresses nothing.
    producer = bench.client.producer(
        batch_bytes=100, linger_ms=0, max_buffered_bytes=1 << 30, compression="snappy"
    )
    settled = settled_batches(producer)
    source = random.Random(1)
    deliveries = [producer.send("t", None, source.randbytes(size_bytes)) for size_bytes in sizes]
    with pytest.raises(RecordTooLargeError):
        await producer.flush()
    for size_bytes, delivery in zip(sizes, deliveries, strict=True):
        if size_bytes <= limit_bytes:
            assert (await delivery).offset >= 0
            continue
        with pytest.raises(RecordTooLargeError) as caught:
            await delivery
        assert "larger than the server accepts" in str(caught.value.fields["reason"])
        assert caught.value.fields["max_bytes"] == limit_bytes
    [records] = await bench.read_all("t")
    assert [len(record.value or b"") for record in records] == [size for size in sizes if size <= limit_bytes]
    failed = [batch.error is not None for batch in settled for _ in range(batch.record_count)]
    assert failed == [size_bytes > limit_bytes for size_bytes in sizes]


async def test_a_record_that_the_transport_would_refuse_fails_alone(bench: ServiceBench) -> None:
    await refuse_large_records(bench, [50, 40 << 20, 60, 34 << 20, 70, 80], 32 << 20)


async def test_a_small_limit_of_the_server_puts_no_other_record_in_doubt(tmp_path: Path) -> None:
    async with service_bench(tmp_path, max_request_bytes=2_000_000) as bench:
        sizes = [50, 5_000_000, 60, 61, 3_100_000, 62, 2_010_000, 5_000_000, 63]
        await refuse_large_records(bench, sizes, 2_000_000)


@pytest.mark.parametrize("limit_bytes", [2_500_000, 32 << 20])
async def test_a_batch_that_the_transport_would_refuse_goes_out_in_parts(
    tmp_path: Path, limit_bytes: int
) -> None:
    async with service_bench(tmp_path, max_request_bytes=limit_bytes) as bench:
        await bench.client.admin.create_topic("t", config={"max.message.bytes": f"{limit_bytes}"})
        producer = bench.client.producer(batch_bytes=40 << 20, linger_ms=LONG_MS)
        for number in range(18):
            producer.send("t", None, b"%02d" % number + bytes(2 << 20))
        await producer.flush()
        [records] = await bench.read_all("t")
        assert [int((record.value or b"")[:2]) for record in records] == list(range(18))
