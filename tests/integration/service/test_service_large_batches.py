"""Batches that are larger than their topic takes: a producer sends them in parts, and loses no order."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from stratalog.base.errors import RecordTooLargeError
from stratalog.client.producer import BatchOutcome
from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.sealed_batch import Acknowledged
from stratalog.record.codecs.compression import Codec
from tests.support.service.service_bench import ServiceBench

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
    assert await bench.values("t") == [values]
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


async def test_what_the_transport_refuses_puts_nothing_else_in_question(bench: ServiceBench) -> None:
    sizes = [50, 40 << 20, 60, 34 << 20, 70, 80]
    await bench.client.admin.create_topic("t")
    producer = bench.client.producer(ProducerSettings(batch_bytes=100, linger_ms=0))
    futures = [await producer.send("t", None, bytes(size_bytes)) for size_bytes in sizes]
    await producer.flush()
    for size_bytes, future in zip(sizes, futures, strict=True):
        error = future.exception()
        assert isinstance(error, RecordTooLargeError) == (size_bytes > 100), error
        if error is not None:
            assert "larger than the server accepts" in str(error)
    [records] = await bench.read_all("t")
    assert [len(record.value or b"") for record in records] == [50, 60, 70, 80]


async def test_a_batch_that_the_transport_refuses_goes_out_in_parts(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", config={"max.message.bytes": f"{16 << 20}"})
    producer = bench.client.producer(ProducerSettings(batch_bytes=40 << 20, linger_ms=3_600_000))
    for number in range(18):
        await producer.post("t", None, b"%02d" % number + bytes(2 << 20))
    await producer.flush()
    [records] = await bench.read_all("t")
    assert [int((record.value or b"")[:2]) for record in records] == list(range(18))
