"""Memory and position of a consumer while it hands out many records out of a few kilobytes."""

from __future__ import annotations

from stratalog.base.types import TopicPartition
from stratalog.record.record import Record
from tests.support.service.service_bench import ServiceBench

T0 = TopicPartition("t", 0)


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
