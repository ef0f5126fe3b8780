"""A server starts with its own disk on a rebuilt head: it goes on with the records that no upload has reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.base.clock import SystemClock
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from tests.integration.restore.test_service_rebuilt_head import HEADS, rebuild_heads
from tests.support.service.service_bench import service_bench


@pytest.mark.parametrize("is_compacted", [False, True])
async def test_a_compaction_that_no_checkpoint_has_leaves_the_log(tmp_path: Path, *, is_compacted: bool) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, store=store):
        pass
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("a", 1, {"cleanup.policy": "compact", "min.durability": "disk"})
        for value in (b"1", b"2"):
            records = [Record(0, 1000, b"k", value), Record(0, 1000, b"k", value + b"x")]
            await bench.client.append("a", 0, records)
            await bench.client.admin.upload(["a"])
        if is_compacted:
            assert await bench.client.admin.run_compaction(["a"])
        await bench.client.append("a", 0, [Record(0, 1000, b"k", b"only here")])
    store.delete_many(HEADS[1:])
    rebuild_heads(store)
    async with service_bench(tmp_path, store=store) as bench:
        assert not [one.reason for one in (await bench.client.admin.tier_status()).offline_partitions]
        assert (await bench.values("a"))[0][-1] == b"only here"
