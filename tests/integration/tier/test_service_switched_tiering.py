"""Tiering that is switched on for a topic with records, and what the status shows of it and of pauses."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import InvalidConfigError, InvalidRequestError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.server.metrics.server_metrics import ServerMetrics
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault, Operation
from tests.support.service.service_bench import ServiceBench, service_bench, until

OFF = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
ON = {"remote.storage.enable": "true"}
LOCAL = {"remote.storage.enable": "false", "segment.bytes": "1024"}


async def append(bench: ServiceBench, first: int, count: int) -> None:
    for number in range(first, first + count):
        await bench.client.append(
            "t", 0, [Record(0, 1000 + number, b"k%d" % (number % 3), b"%d" % number * 50)]
        )


@pytest.mark.parametrize("policy", ["delete", "compact"])
async def test_a_topic_with_records_becomes_tiered(tmp_path: Path, policy: str) -> None:
    """All that the log has then goes to the store, from its log start on, and outlasts the local disk."""
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "0", store=store) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, {**LOCAL, "cleanup.policy": policy})
        await append(bench, 0, 40)
        if policy == "delete":
            await admin.delete_records("t", 0, 7)
        before = await bench.values("t")
        await admin.alter_configs({"remote.storage.enable": "true"}, "t")
        assert await bench.values("t") == before
        [status] = (await admin.tier_status()).topics
        assert (status.oldest_partition, status.oldest_partition_upload_ms) == (0, -1)
    async with service_bench(tmp_path / "0", store=store) as bench:
        # A restart in between changes nothing.
        await bench.client.admin.upload()
        await append(bench, 40, 2)
        await bench.client.admin.upload(delete_local=True)
        after = await bench.values("t")
        assert after[0][: len(before[0])] == before[0]
        assert len(after[0]) == len(before[0]) + 2
        [log] = await bench.client.admin.describe_log("t")
        assert (log.log_start_offset, log.tiered_end_offset) == (7 if policy == "delete" else 0, 42)
    async with service_bench(tmp_path / "1", store=store) as bench:
        assert await bench.values("t") == after


async def test_a_topic_in_the_store_stays_tiered(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, {"segment.bytes": "1024"})
        await append(bench, 0, 30)
        await admin.upload()
        with pytest.raises(InvalidConfigError) as caught:
            await admin.alter_configs({"remote.storage.enable": "false"}, "t")
        assert "remote.log.copy.disable" in str(caught.value), "the key that ends its uploads"
        await admin.alter_configs({"remote.log.copy.disable": "true"}, "t")
        await append(bench, 30, 5)
        assert len((await bench.values("t"))[0]) == 35
        [status] = (await admin.tier_status()).topics
        assert status.copy_disabled
        assert (status.lag_ms, status.oldest_partition) == (-1, -1)


def tier_of(bench: ServiceBench) -> TieredPartition:
    return bench.partition().shard.metadata.state().partition(bench.partition().topic_id_partition)


@pytest.mark.parametrize("is_local", [True, False], ids=["local copies", "only in the store"])
@pytest.mark.parametrize("restarts", [False, True], ids=["", "restart"])
async def test_tiering_is_switched_off_on_and_off(tmp_path: Path, *, is_local: bool, restarts: bool) -> None:
    """Records of the disk stay, and go to the store again later; those that only the store had are gone."""
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "0", store=store) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, {"segment.bytes": "1024"})
        await append(bench, 0, 40)
        await admin.upload(delete_local=not is_local)
        await append(bench, 40, 2)
        start = bench.partition().local_log_start_offset
        assert start == (0 if is_local else 40)
        [before] = await bench.values("t")
        altered = await admin.alter_configs(OFF, "t")
        assert {one.name: one.value for one in altered} == OFF
        assert await bench.values("t") == [before], "nothing is gone before the pass"
        [status] = (await admin.tier_status()).topics
        assert status.copy_disabled
        if not restarts:
            await bench.run_task("tier-drop")
    async with service_bench(tmp_path / "0", store=store) as bench:
        admin = bench.client.admin
        if restarts:
            assert tier_of(bench).slices, "the server was down when the configuration changed"
            await bench.run_task("tier-drop")
            [row] = [one for one in (await admin.tier_status()).passes if one.name == "tier-drop"]
            assert (row.last_done["partitions"], row.backlog.piece_count) == (1, 0)
        assert not tier_of(bench).slices
        assert not bench.partition().is_tiered
        assert (await admin.tier_status()).topics == ()
        assert await bench.values("t") == [before[start:]]
        [log] = await admin.describe_log("t")
        assert (log.log_start_offset, log.tiered_end_offset) == (start, 0)
        assert not bench.partition().shard.metadata.state().objects, "the collector deletes them"
        await append(bench, 42, 8)
        await admin.alter_configs(ON, "t")
        await admin.upload(delete_local=True)
        [again] = await bench.values("t")
        assert again == [*before[start:], *again[-8:]]
        assert tier_of(bench).slices[0].base_offset == start
        assert tier_of(bench).tiered_end_offset == 50
    async with service_bench(tmp_path / "1", store=store) as bench:
        assert await bench.values("t") == [again], "the store has all of it again"
        await bench.client.admin.alter_configs({"remote.storage.enable": "false"}, "t")
        await append(bench, 50, 1)
        await bench.run_task("tier-drop")
        assert len((await bench.values("t"))[0]) == 1
        assert bench.partition().log_start_offset == 50


async def test_tiering_that_is_switched_on_again_at_once_goes_on_where_it_was(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, {"segment.bytes": "1024"})
        await append(bench, 0, 40)
        await admin.upload()
        before = await bench.values("t")
        await admin.alter_configs(OFF, "t")
        await admin.alter_configs(ON, "t")
        await bench.run_task("tier-drop")
        assert tier_of(bench).tiered_end_offset == 40
        await admin.upload(delete_local=True)
        assert bench.partition().local_log_start_offset == 40
        assert await bench.values("t") == before


async def test_records_that_were_deleted_stay_so_when_the_tier_goes(tmp_path: Path) -> None:
    """Also those in the middle of a segment, and if the server dies before it has noted that on its disk."""
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "0", store=store) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, {"segment.bytes": "1024"})
        await append(bench, 0, 40)
        await admin.upload()
        await admin.alter_configs(OFF, "t")
        await admin.delete_records("t", 0, 7)
        partition = bench.partition()
        shard, catalog = partition.shard, bench.server.engine.topics.catalog
        shard.metadata.drop_tier(
            {partition.topic_id_partition: 7}, epoch=shard.leader_epoch(), catalog_seq=catalog.seq
        )
        shutil.copytree(tmp_path / "0", tmp_path / "1")
    async with service_bench(tmp_path / "1", store=store) as bench:
        assert not bench.partition().is_tiered
        assert bench.partition().log_start_offset == 7
        [found] = await bench.values("t")
        assert found[0] == b"7" * 50


async def test_a_tier_is_not_dropped_before_it_may_be(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, {"segment.bytes": "1024", "cleanup.policy": "compact"})
        await append(bench, 0, 40)
        await admin.upload()
        for changes, word in (
            ({"remote.storage.enable": "false"}, "remote.log.delete.on.disable"),
            (OFF, "cleanup.policy"),
            (OFF | {"cleanup.policy": "delete", "min.durability": "object"}, "min.durability"),
        ):
            with pytest.raises(InvalidConfigError) as caught:
                await admin.alter_configs(changes, "t")
            assert word in str(caught.value)
        await admin.alter_configs(OFF | {"cleanup.policy": "delete"}, "t")
        with pytest.raises(InvalidConfigError):
            # The local log would be cleaned while the store has its own part of it.
            await admin.alter_configs({"cleanup.policy": "compact"}, "t")
        await bench.run_task("tier-drop")
        await admin.alter_configs({"cleanup.policy": "compact"}, "t")
        assert not tier_of(bench).slices


async def test_an_append_at_object_does_not_wait_for_uploads_that_were_switched_off(tmp_path: Path) -> None:
    def takes_no_data(operation: Operation) -> Fault:
        return Fault.FAILS if operation.verb == "PUT" and "/data/" in operation.key else Fault.NONE

    store = FaultyObjectStore(MemoryObjectStore(SystemClock()), Random(1), takes_no_data)
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t", 1)
        record = Record(0, 1, b"k", b"v")
        waiting = asyncio.ensure_future(bench.client.append("t", 0, [record], durability="object"))
        await until(lambda: bench.partition().writer.commit_waiters.count == 1)
        await bench.client.admin.alter_configs(OFF, "t")
        with pytest.raises(InvalidRequestError) as caught:
            await waiting
        assert "nothing of the topic is uploaded" in str(caught.value)


async def test_the_status_shows_pauses_and_the_last_upload(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 2)
        [status] = (await admin.tier_status()).topics
        assert (status.last_upload_ms, status.oldest_partition, status.paused) == (-1, -1, False)
        await append(bench, 0, 3)
        await admin.upload()
        [status] = (await admin.tier_status()).topics
        assert status.last_upload_ms > 0
        await bench.client.append("t", 1, [Record(0, 2000, b"k", b"v")])
        [status] = (await admin.tier_status()).topics
        assert (status.oldest_partition, status.oldest_partition_upload_ms) == (1, -1)
        await append(bench, 0, 1)
        # By arrival: as if that record had come before the one of the other partition.
        bench.partition("t", 0).log.local_log.segments.active.first_append_ms -= 10_000
        [status] = (await admin.tier_status()).topics
        assert status.lag_ms >= 10_000
        assert (status.oldest_partition, status.oldest_partition_upload_ms) == (0, status.last_upload_ms)
        assert (await bench.command("tier", "pause", "t")).exit_code == 0
        [status] = (await admin.tier_status()).topics
        assert status.paused
        assert "paused" in (await bench.command("tier", "status")).stdout
        metrics = ServerMetrics()
        metrics.registry = bench.server.engine.topics.registry
        [size] = [
            sample.value
            for metric in metrics.collect()
            for sample in metric.samples
            if sample.name.endswith("remote_log_size_bytes")
        ]
        assert size == status.tiered_bytes > 0
