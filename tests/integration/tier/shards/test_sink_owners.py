"""Writes of Spark to a topic whose partitions belong to two servers, and so does the staging topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.base.clock import SystemClock
from stratalog.objectstore.memory import MemoryObjectStore
from tests.support.service.service_bench import PATIENCE_S, service_bench
from tests.support.spark.sink_world import Accident, SinkWorld, table

PARTITION_COUNT = 4


@pytest.mark.timeout(PATIENCE_S * 2)
async def test_each_row_is_written_once_whichever_server_has_its_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of the staged rows copies those of its own partitions, and the driver appends the others."""
    monkeypatch.setattr("stratalog.pipeline.sink.target_batches.BATCH_BYTES", 200)
    store = MemoryObjectStore(SystemClock())
    async with (
        service_bench(tmp_path / "0", store=store, shard_count=2, own_shards=(0,)) as first,
        service_bench(tmp_path / "1", store=store, own_shards=(1,)) as second,
    ):
        await first.client.topics.create("t", partitions=PARTITION_COUNT)
        await second.refresh()
        await first.refresh()
        world = SinkWorld(first, topic="t")
        rows = [(f"key-{number}", b"%d" % number) for number in range(60)]
        for batch, accident in enumerate((None, Accident(1), Accident(3, is_stored=True))):
            task = await world.stage([table(rows)])
            if accident is not None:
                assert await world.dies(batch, [task], accident)
            await world.commit(batch, [task])
        written = [record.value async for record in first.client.consume("t", until="latest")]
        assert sorted(written, key=str) == sorted([value for _, value in rows] * 3, key=str)
