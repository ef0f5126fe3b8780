"""Local copies stay where the store may have lost the others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

import pytest

from stratalog.base.errors import StoreError
from tests.integration.tier.test_service_outage import GONE, LOST, World, create, load
from tests.support.service.service_bench import ServiceBench


@asynccontextmanager
async def uploaded(
    world: World, config: Mapping[str, str] = MappingProxyType({})
) -> AsyncGenerator[ServiceBench]:
    """A server with a topic `t` of 30 records, which the store has, too."""
    async with world.serving() as bench:
        await create(bench, dict(config))
        await load(bench, world.clock, 30)
        await bench.client.admin.upload(["t"])
        yield bench


async def test_local_copies_stay_while_only_the_catalog_is_lost() -> None:
    """Deletes by name, as by mistake, take the catalog first, and the heads of the shards last."""
    world = World()
    async with uploaded(world, {"local.retention.bytes": "1", "remote.copy.max.age.ms": "1"}) as bench:
        engine = bench.server.engine
        world.store.refusal, world.store.refuses = LOST, lambda one: one.key.startswith("catalog/")
        before = bench.partition().local_log_start_offset
        engine.local.retention.run()
        bench.partition().shard.refresh()
        assert bench.partition().shard.contact.failure is None, "the shard itself can be read"
        outcome = engine.local.retention.run()
        assert bench.partition().local_log_start_offset == before
        assert outcome.refusals == {"unconfirmed": 0, "last-copy": 1, "unreadable": 1}
        world.store.refusal = None
        engine.local.retention.run()
        assert bench.partition().local_log_start_offset > before


@pytest.mark.parametrize("failure", [GONE, LOST], ids=["bucket", "head"])
@pytest.mark.parametrize("part", ["all", "catalog", "shards"])
async def test_an_upload_that_deletes_local_segments_leaves_the_last_copies(
    failure: StoreError, part: str
) -> None:
    """The operator of a disk that fills up asks for it while the bucket is gone."""
    world = World()
    async with uploaded(world) as bench:
        world.store.refusal = failure
        world.store.refuses = lambda one: part == "all" or one.key.startswith(part)
        before = bench.partition().local_log_start_offset
        with pytest.raises(StoreError) as raised:
            await bench.client.admin.upload(["t"], delete_local=True)
        assert raised.value.fields["local_segments_deleted"] == 0
        assert bench.partition().local_log_start_offset == before
        assert [record.offset for record in (await bench.read_all("t"))[0]] == [*range(30)]
        world.store.refusal = None
        await bench.client.admin.upload(["t"], delete_local=True)
        assert bench.partition().local_log_start_offset == 30


async def test_an_upload_deletes_committed_local_segments_while_the_store_does_not_answer() -> None:
    world = World()
    async with uploaded(world) as bench:
        world.store.is_away = True
        await bench.client.admin.upload(["t"], delete_local=True)
        assert bench.partition().local_log_start_offset == 30
        world.store.is_away = False
