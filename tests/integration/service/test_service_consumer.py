"""Memory and position of a consumer while it hands out many records out of a few kilobytes."""

from __future__ import annotations

import tracemalloc

from stratalog.base.types import TopicPartition
from stratalog.client.isolation_level import IsolationLevel
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.record import Record
from tests.support.service.service_bench import ServiceBench

T0 = TopicPartition("t", 0)

MIB = 1 << 20


async def with_batches(bench: ServiceBench, batch_count: int, record_count: int, value_bytes: int) -> None:
    await bench.client.admin.create_topic("t")
    records = [Record(0, 5, b"k", bytes(value_bytes))] * record_count
    for _ in range(batch_count):
        await bench.client.append("t", 0, records, codec=Codec.ZSTD)


async def test_one_answer_that_decompresses_to_much_is_read_in_little_memory(bench: ServiceBench) -> None:
    await with_batches(bench, 12, 80, 100 << 10)
    ends = await bench.client.latest("t")
    tracemalloc.start()
    try:
        consumer = bench.client.consumer({T0: 0}, end_offsets=ends)
        offsets = [consumed.record.offset async for consumed in consumer]
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert offsets == list(range(960))
    assert peak_bytes < 32 * MIB, "twelve times 8 MiB were read"


async def test_a_consumer_stands_at_its_end_where_a_batch_reaches_over_it(bench: ServiceBench) -> None:
    await with_batches(bench, 1, 10, 1)
    consumer = bench.client.consumer({T0: 2}, end_offsets={T0: 6})
    assert [consumed.record.offset async for consumed in consumer] == [2, 3, 4, 5]
    assert consumer.positions == {T0: 6}


async def test_a_consumer_that_leaves_between_records_goes_on_behind_the_last_one(
    bench: ServiceBench,
) -> None:
    await bench.client.admin.create_topic("t", 2)
    for partition, record_count in [(0, 10), (1, 7), (0, 5)]:
        await bench.client.append("t", partition, [Record(0, 5, None, b"v")] * record_count)
    ends = await bench.client.latest("t")
    consumer = bench.client.consumer(dict.fromkeys(ends, 0), end_offsets=ends)
    found: dict[TopicPartition, list[int]] = {key: [] for key in ends}
    for _ in range(100):
        count = 0
        async for topic, partition, record in consumer:
            found[TopicPartition(topic, partition)].append(record.offset)
            assert consumer.positions == {key: len(offsets) for key, offsets in found.items()}
            count += 1
            if count == 3:
                break
        if count < 3:
            break
    assert found == {T0: list(range(15)), TopicPartition("t", 1): list(range(7))}
    assert consumer.positions == ends


async def test_positions_between_records_respect_what_is_left_out(bench: ServiceBench) -> None:
    """An aborted transaction lies between two records, and another behind the last one."""
    await bench.client.admin.create_topic("t")
    log = bench.server.engine.local.logs.log(T0)
    producer = BatchProducer(7, 0, 0, is_transactional=True)
    marker = EndTransactionMarker(ControlType.ABORT, 0)
    record = Record(0, 5, None, b"v")
    for offset in (0, 4):
        for batch in (
            encode_batch([record], base_offset=offset, leader_epoch=1),
            encode_batch([record] * 2, base_offset=offset + 1, leader_epoch=1, producer=producer),
            marker.to_batch(7, 0, 5, base_offset=offset + 3, leader_epoch=1),
        ):
            log.appender.append_as_follower(batch)
    consumer = bench.client.consumer({T0: 0}, end_offsets={T0: 8}, isolation=IsolationLevel.READ_COMMITTED)
    async for consumed in consumer:
        assert (consumed.record.offset, consumer.positions) == (0, {T0: 1})
        break
    found = [(consumed.record.offset, consumer.positions[T0]) async for consumed in consumer]
    assert found == [(4, 5)]
    assert consumer.positions == {T0: 8}
