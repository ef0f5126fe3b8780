"""The end of tiers on a server with two shards, of which one has a store that fails."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random

from stratalog.base.clock import SystemClock
from stratalog.base.errors import LogStoreError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault, Operation
from tests.support.gate import Gate
from tests.integration.tier.test_service_switched_tiering import OFF
from tests.support.service.service_bench import service_bench


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


async def test_a_tier_that_is_wanted_again_is_not_dropped_by_an_older_configuration(tmp_path: Path) -> None:
    gate = Gate()

    def hold(operation: Operation) -> None:
        if (operation.verb, operation.key) == ("PUT", "shards/0000/head"):
            gate.pass_through()

    store = FaultyObjectStore(MemoryObjectStore(SystemClock()), Random(0), before=hold)
    async with service_bench(tmp_path, store=store, shard_count=2) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 2)
        for number in (0, 1):
            await bench.append("t", [b"only the store has it"], number)
        await admin.upload(["t"], delete_local=True)
        await admin.alter_configs(OFF, "t")
        gate.close()
        dropping = asyncio.create_task(bench.run_task("tier-drop"))
        assert await asyncio.to_thread(gate.is_reached.wait, 30)
        # The store is slow for shard 0. The operator takes it back, and is told that it is done.
        await admin.alter_configs({"remote.storage.enable": "true"}, "t")
        gate.open()
        await dropping
        shards = {bench.partition("t", number).shard.metadata.shard: number for number in (0, 1)}
        other = bench.partition("t", shards[1])
        assert other.shard.metadata.state().partition(other.topic_id_partition).slices
