"""A server starts on rebuilt heads: with its own disk or without, and goes on."""

from __future__ import annotations

from pathlib import Path
from random import Random
from shutil import rmtree

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.randomness import SystemIdGenerator
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.restore.head_rebuild import HeadRebuild
from stratalog.remote.store_identity import StoreIdentity
from tests.support.service.service_bench import service_bench

HEADS = ("catalog/head", "shards/0000/head")


def rebuild_heads(store: MemoryObjectStore) -> None:
    rebuild = HeadRebuild(
        StoreActor(
            store=store,
            clock=SystemClock(),
            random_source=Random(0),
            ids=SystemIdGenerator(),
            identity=StoreIdentity.open(store),
            writer=Writer("rebuild", "test"),
        )
    )
    rebuild.write(rebuild.plan())


async def test_records_that_no_upload_has_reached_are_served_under_a_rebuilt_head(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("a")
        await bench.append("a", [b"x", b"y"])
        await bench.client.admin.upload(delete_local=True)
        for shard in bench.server.engine.tier.shards:
            shard.metadata.fold()
        await bench.append("a", [b"z"])
    store.delete_many(HEADS[1:])
    rebuild_heads(store)
    async with service_bench(tmp_path, store=store) as bench:
        assert await bench.values("a") == [[b"x", b"y", b"z"]]


@pytest.mark.parametrize("has_restarted", [True, False])
async def test_the_claim_of_a_new_store_outlasts_its_head(tmp_path: Path, *, has_restarted: bool) -> None:
    store = MemoryObjectStore(SystemClock())
    for _ in range(has_restarted):
        async with service_bench(tmp_path, store=store):
            pass
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("a", 1, {"min.durability": "disk"})
        await bench.append("a", [b"x"])
        await bench.client.admin.upload(["a"])
        await bench.append("a", [b"only here"])
    store.delete_many(HEADS[1:])
    rebuild_heads(store)
    async with service_bench(tmp_path, store=store) as bench:
        assert await bench.values("a") == [[b"x", b"only here"]]


@pytest.mark.parametrize("is_compacted", [False, True])
async def test_a_compaction_that_no_checkpoint_has_leaves_the_log(
    tmp_path: Path, *, is_compacted: bool
) -> None:
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


@pytest.mark.parametrize("has_data_dir", [True, False])
@pytest.mark.parametrize("is_folded", [True, False])
async def test_a_server_goes_on_with_rebuilt_heads(
    tmp_path: Path, has_data_dir: bool, is_folded: bool
) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("a")
        await bench.append("a", [b"x", b"y"])
        await bench.client.admin.upload(delete_local=True)
        if is_folded:
            bench.server.engine.topics.catalog.fold()
            for shard in bench.server.engine.tier.shards:
                shard.metadata.fold()
        await bench.append("a", [b"z"])
        await bench.client.admin.upload(delete_local=True)
    if not has_data_dir:
        rmtree(tmp_path / "data")
    store.delete_many(HEADS)
    rebuild_heads(store)
    for expected in ([b"x", b"y", b"z"], [b"x", b"y", b"z", b"more"]):
        async with service_bench(tmp_path, store=store) as bench:
            assert await bench.values("a") == [expected]
            if len(expected) == 3:
                await bench.append("a", [b"more"])
            await bench.client.admin.upload(delete_local=True)
            assert not (await bench.client.admin.verify()).findings
