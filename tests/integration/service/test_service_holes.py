"""Where compaction has left nothing, a reader goes on."""

from __future__ import annotations

import asyncio

from stratalog.base.types import TopicPartition
from stratalog.record.record import Record
from tests.support.service.service_bench import ServiceBench

KEYED = TopicPartition("keyed", 0)


async def test_a_session_steps_over_a_hole_at_the_end(bench: ServiceBench) -> None:
    config = {"cleanup.policy": "compact", "delete.retention.ms": "0"}
    await bench.client.admin.create_topic("keyed", 1, config)
    await bench.client.append("keyed", 0, [Record(0, 1000, b"k", None)])
    for _ in range(2):
        await bench.client.admin.upload([], delete_local=True)
        await bench.client.admin.run_compaction(["keyed"])
    async with asyncio.timeout(20):
        async for response in bench.client.fetch_stream({KEYED: 0}):
            [answer] = response.partitions
            assert (answer.batches, answer.next_fetch_offset) == (b"", 1)
            break
        assert await bench.read_all("keyed") == [[]]
