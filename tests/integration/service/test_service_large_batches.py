"""Batches that are larger than their topic takes: a producer sends them in parts, and loses no order."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from google.rpc.status_pb2 import Status

from stratalog.base.errors import LogStoreError, RecordTooLargeError
from stratalog.client.errors import error_of_status
from stratalog.client.producer import BatchOutcome
from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.sealed_batch import Acknowledged
from stratalog.record.codecs.compression import Codec
from tests.support.service.service_bench import ServiceBench, service_bench

ALL_AT_ONCE = ProducerSettings(linger_ms=3_600_000)
LIMITS = [{"segment.bytes": "20000"}, {"max.message.bytes": "1000"}]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("limits", LIMITS, ids=["segment.bytes", "max.message.bytes"])
async def test_a_batch_that_is_too_large_goes_out_in_parts(
    bench: ServiceBench, limits: dict[str, str], codec: Codec
) -> None:
    # Of lines that compress badly the batch is too large in either codec.
    values = [hashlib.sha256(b"%d" % number).digest() for number in range(2000)]
    await bench.client.admin.create_topic("t", config=limits)
    outcomes: list[BatchOutcome] = []
    settings = ProducerSettings(linger_ms=3_600_000, codec=codec)
    producer = bench.client.producer(settings, on_outcome=outcomes.append)
    for tag, value in enumerate(values):
        await producer.post("t", None, value, tag=tag)
    await producer.flush()
    assert producer.buffered_bytes == 0
    [records] = await bench.read_all("t")
    assert [record.value for record in records] == values
    assert len(outcomes) > 1
    expected_tag = 0
    for outcome in outcomes:
        assert (outcome.first_tag, outcome.error) == (expected_tag, None)
        expected_tag += outcome.record_count
    assert expected_tag == len(values)


async def test_a_record_that_is_too_large_alone_fails_alone(bench: ServiceBench) -> None:
    sizes = [5000 if number % 40 == 13 else 20 for number in range(200)]
    await bench.client.admin.create_topic("t", config={"max.message.bytes": "1000"})
    outcomes: list[BatchOutcome] = []
    producer = bench.client.producer(ALL_AT_ONCE, on_outcome=outcomes.append)
    futures: list[asyncio.Future[Acknowledged]] = []
    for number, size_bytes in enumerate(sizes):
        futures.append(await producer.send("t", None, b"%03d" % number + bytes(size_bytes)))
    await producer.flush()
    [records] = await bench.read_all("t")
    stored = {record.offset: int((record.value or b"")[:3]) for record in records}
    assert list(stored.values()) == [number for number, size_bytes in enumerate(sizes) if size_bytes == 20]
    for number, future in enumerate(futures):
        error = future.exception()
        if error is None:
            assert stored[future.result().offset] == number
            continue
        assert sizes[number] == 5000
        assert isinstance(error, RecordTooLargeError)
        assert "max.message.bytes" in str(error.fields["reason"])
    assert sum(outcome.record_count for outcome in outcomes) == len(sizes)
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

    monkeypatch.setattr("stratalog.client.append_sender.error_of_status", counted)
    await bench.client.admin.create_topic("t", config={"segment.bytes": "20000"})
    producer = bench.client.producer(ProducerSettings(batch_bytes=64 << 10, linger_ms=3_600_000))
    for number in range(2000):
        await producer.post("t", None, b"%04d" % number + bytes(400))
    await producer.flush()
    [records] = await bench.read_all("t")
    assert [int((record.value or b"")[:4]) for record in records] == list(range(2000))
    # 13 batches of 64 KiB: 64, 32, and perhaps what lies between the limit and 32.
    assert 2 <= len(refused) <= 4


async def test_what_waits_for_parts_is_forgotten_with_them(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", config={"max.message.bytes": "300"})
    futures: list[asyncio.Future[Acknowledged]] = []

    async def fail() -> None:
        async with bench.client.producer(ProducerSettings(linger_ms=0)) as producer:
            futures.extend([await producer.send("t", None, b"%03d" % n) for n in range(500)])
            # The first parts are stored, the others wait.
            await futures[0]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert all(future.done() for future in futures)
    assert futures[-1].cancelled()


async def refuse_large_records(bench: ServiceBench, sizes: list[int], limit_bytes: int) -> None:
    """Send records of these sizes. Those above the limit fail, alone and in their turn."""
    await bench.client.admin.create_topic("t")
    outcomes: list[BatchOutcome] = []
    producer = bench.client.producer(
        ProducerSettings(batch_bytes=100, linger_ms=0), on_outcome=outcomes.append
    )
    futures = [await producer.send("t", None, bytes(size_bytes)) for size_bytes in sizes]
    await producer.flush()
    for size_bytes, future in zip(sizes, futures, strict=True):
        error = future.exception()
        assert isinstance(error, RecordTooLargeError) == (size_bytes > limit_bytes), error
        if isinstance(error, RecordTooLargeError):
            assert "larger than the server accepts" in str(error.fields["reason"])
            assert error.fields["max_bytes"] == limit_bytes
    [records] = await bench.read_all("t")
    assert [len(record.value or b"") for record in records] == [size for size in sizes if size <= limit_bytes]
    failed = [outcome.error is not None for outcome in outcomes for _ in range(outcome.record_count)]
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
        producer = bench.client.producer(ProducerSettings(batch_bytes=40 << 20, linger_ms=3_600_000))
        for number in range(18):
            await producer.post("t", None, b"%02d" % number + bytes(2 << 20))
        await producer.flush()
        [records] = await bench.read_all("t")
        assert [int((record.value or b"")[:2]) for record in records] == list(range(18))
