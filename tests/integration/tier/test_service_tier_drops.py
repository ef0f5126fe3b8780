"""The end of tiers on a server whose local logs are damaged, whose shards fail, or whose topics stay after
all."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import LogStoreError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.server.background.pass_rounds import MAX_AT_WORK_COUNT
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault, Operation
from tests.integration.disk.test_service_damage import ALL, AT_DISK, append_both, flip, segment
from tests.integration.tier.test_service_switched_tiering import OFF, tier_of
from tests.support.gate import Gate
from tests.support.service.service_bench import service_bench


@pytest.mark.parametrize("is_read_before", [False, True], ids=["", "read before"])
@pytest.mark.parametrize("position", [-2, 65], ids=["last batch", "first batch"])
async def test_the_end_of_a_tier_keeps_what_only_the_store_has_sound(
    tmp_path: Path, position: int, *, is_read_before: bool
) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 1, AT_DISK)
        await append_both(bench)
    flip(segment(tmp_path, "t-0"), position)
    async with service_bench(tmp_path) as bench:
        admin = bench.client.admin
        if is_read_before:
            await admin.upload(["t"])
            assert await bench.values("t") == [ALL], "the store serves what the disk has damaged"
        await admin.alter_configs(OFF, "t")
        for _ in range(2):
            await bench.run_task("tier-drop")
            assert await asyncio.wait_for(bench.values("t"), 10) == [ALL]
        [row] = [one for one in (await admin.tier_status()).passes if one.name == "tier-drop"]
        assert row.last_refusals == {"local-damage": 1}
        assert "the tier of t-0 stays" in row.last_error
        # The person gives up the records that the disk has damaged.
        await admin.delete_records("t", 0, 3)
        await bench.run_task("tier-drop")
        assert not tier_of(bench).slices
        assert await asyncio.wait_for(bench.values("t"), 10) == [ALL[3:]]


async def test_a_shard_that_fails_does_not_keep_the_tiers_of_another(tmp_path: Path) -> None:
    failing: list[str] = []

    def plan(operation: Operation) -> Fault:
        is_failing = any(operation.key.startswith(prefix) for prefix in failing)
        return Fault.FAILS if is_failing and operation.verb in ("GET", "PUT") else Fault.NONE

    store = FaultyObjectStore(MemoryObjectStore(SystemClock()), Random(0), plan)
    async with service_bench(tmp_path, store=store, shard_count=2) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 2)
        for number in (0, 1):
            await bench.append("t", [b"x"], number)
        await admin.upload(["t"])
        await admin.alter_configs(OFF, "t")
        failing.append("shards/0000/")
        with suppress(LogStoreError):
            await bench.run_task("tier-drop")
        shards = {bench.partition("t", number).shard.metadata.shard: number for number in (0, 1)}
        healthy = bench.partition("t", shards[1])
        assert not healthy.shard.metadata.state().partition(healthy.topic_id_partition).slices


def gated_store(gate: Gate) -> FaultyObjectStore:
    """Heads of shards are put through the gate."""

    def hold(operation: Operation) -> None:
        if (
            operation.verb == "PUT"
            and operation.key.startswith("shards/")
            and operation.key.endswith("/head")
        ):
            gate.pass_through()

    return FaultyObjectStore(MemoryObjectStore(SystemClock()), Random(0), before=hold)


async def test_a_tier_that_is_wanted_again_is_not_dropped_by_an_older_configuration(tmp_path: Path) -> None:
    """The shards at work are slow, and the last one begins once one of them has ended."""
    gate = Gate()
    shard_count = MAX_AT_WORK_COUNT + 1
    async with service_bench(tmp_path, store=gated_store(gate), shard_count=shard_count) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", shard_count)
        for number in range(shard_count):
            await bench.append("t", [b"only the store has it"], number)
        await admin.upload(["t"], delete_local=True)
        await admin.alter_configs(OFF, "t")
        gate.close()
        dropping = asyncio.create_task(bench.run_task("tier-drop"))
        assert await asyncio.to_thread(gate.is_reached.wait, 30)
        # The operator takes it back, and the server answers that it is done.
        await admin.alter_configs({"remote.storage.enable": "true"}, "t")
        gate.open()
        await dropping
        partitions = [bench.partition("t", number) for number in range(shard_count)]
        [last] = [one for one in partitions if one.shard.metadata.shard == MAX_AT_WORK_COUNT]
        assert last.shard.metadata.state().partition(last.topic_id_partition).slices


async def test_a_tier_that_is_wanted_again_keeps_its_slices_after_its_log_start_has_moved(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with service_bench(tmp_path, store=gated_store(gate)) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1)
        await bench.append("t", [b"only the store has it"])
        await admin.upload(["t"], delete_local=True)
        await bench.append("t", [b"both have it"])
        await admin.upload(["t"])
        await admin.alter_configs(OFF, "t")
        gate.close()
        dropping = asyncio.create_task(bench.run_task("tier-drop"))
        assert await asyncio.to_thread(gate.is_reached.wait, 30)
        await admin.alter_configs({"remote.storage.enable": "true"}, "t")
        gate.open()
        await dropping
        assert [one.base_offset for one in tier_of(bench).slices] == [1]
        assert tier_of(bench).log_start_offset == 1
        await bench.run_task("tier-drop")
        assert bench.partition().log.offsets.tiered_end_offset == 2, "the log counts it as tiered again"
        assert await bench.values("t") == [[b"both have it"]]
