"""A topic that Spark imports beside a running server is opened behind its records, and goes on there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import UnknownTopicOrPartitionError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.remote.metadata.ownership.ownership import ClaimedShard, claim_shard
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.service.service_bench import ServiceBench, service_bench
from tests.support.spark.small_export import STARTS, SmallExport

IMPORTED = [[b"0", b"1", b"2"]] * len(STARTS)


async def require_it_goes_on(bench: ServiceBench) -> None:
    """Read the imported records, and append behind them, in the log and in the store."""
    assert await bench.values("new") == IMPORTED
    ends = [await bench.append("new", [b"3"], number) for number in range(len(STARTS))]
    assert ends == [start + 3 for start in STARTS]
    await bench.client.admin.upload(delete_local=True)
    assert await bench.values("new") == [[*values, b"3"] for values in IMPORTED]


@pytest.mark.parametrize("look", ["refresh", "learn"])
async def test_a_running_server_opens_it_behind_its_records(look: str) -> None:
    """Also if the server has read the catalog and, before that, the shards: `learn` reads the catalog
    only."""
    store = MemoryObjectStore(SystemClock())
    async with service_bench("/bench", filesystem=MemoryFileSystem(), store=store) as bench:
        await bench.client.admin.create_topic("other")
        await bench.append("other", [b"x"])
        await asyncio.to_thread(SmallExport(SystemClock()).restore, store)
        if look == "refresh":
            await bench.refresh()
        else:
            await asyncio.to_thread(bench.server.engine.topics.manager.learn)
        await require_it_goes_on(bench)
        assert await bench.values("other") == [[b"x"]]
    async with service_bench("/empty", filesystem=MemoryFileSystem(), store=store) as bench:
        assert await bench.values("new") == [[*values, b"3"] for values in IMPORTED]


async def test_a_call_right_behind_an_import_finds_the_topic() -> None:
    """The only server of a store looked at the catalog every five seconds, and refused it until then."""
    store = MemoryObjectStore(SystemClock())
    async with service_bench("/bench", filesystem=MemoryFileSystem(), store=store) as bench:
        refused = await bench.command("consume", "new", "--from", "earliest")
        assert isinstance(refused.exception, UnknownTopicOrPartitionError)
        await asyncio.to_thread(SmallExport(SystemClock()).restore, store)
        consumed = await bench.command("consume", "new", "--from", "earliest")
        assert consumed.exit_code == 0, consumed.output
        await require_it_goes_on(bench)


async def test_a_server_that_starts_meanwhile_opens_it_behind_its_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic is created between the claims and the second look at the catalog."""
    store = MemoryObjectStore(SystemClock())
    filesystem = MemoryFileSystem()
    async with service_bench("/bench", filesystem=filesystem, store=store) as bench:
        await bench.client.admin.create_topic("other")

    def claim_and_import(*arguments: Any, **options: Any) -> ClaimedShard:
        claimed = claim_shard(*arguments, **options)
        SmallExport(SystemClock()).restore(store)
        return claimed

    monkeypatch.setattr("stratalog.server.engine.engine_builder.claim_shard", claim_and_import)
    async with service_bench("/bench", filesystem=filesystem, store=store) as bench:
        await require_it_goes_on(bench)
