"""An owner that follows what others do to the store: the catalog, claims, and silence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    NotOwnerError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import Durability
from stratalog.client.client import Client
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.remote.metadata.catalog.catalog_state import CatalogState
from stratalog.remote.metadata.shard.shard_state import ShardClaim
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.store_faults import Fault, Operation
from stratalog.v1 import log_pb2
from tests.support.service.error_details import error_info
from tests.support.service.service_bench import (
    HOUR_MS,
    PATIENCE_S,
    ServiceBench,
    catalog_elsewhere,
    service_bench,
)

DISK = {"min.durability": "disk"}


def new_store() -> MemoryObjectStore:
    return MemoryObjectStore(SystemClock())


async def values(bench: ServiceBench, topic: str) -> list[bytes | None]:
    return [record.value for part in await bench.read_all(topic) for record in part]


async def poll_error(client: Client, topic: str, offset: int) -> str:
    """The error code of a long poll at `offset`."""
    request = log_pb2.FetchRequest(
        partitions=[log_pb2.FetchPartition(topic=topic, start=log_pb2.Position(offset=offset))],
        max_wait_ms=60_000,
    )
    response = await client.log.Fetch(request)
    return error_info(response.partitions[0].error).reason


async def test_a_poll_of_a_topic_that_is_deleted_elsewhere_ends_with_the_next_look(tmp_path: Path) -> None:
    store = new_store()
    async with service_bench(tmp_path, store=store) as bench:
        topic = await bench.client.admin.create_topic("t", 2)
        poll = asyncio.create_task(poll_error(bench.client, "t", 0))
        await bench.until_waiting(1)
        catalog_elsewhere(store).delete(UUID(topic.topic_id))
        await bench.refresh()
        assert await asyncio.wait_for(poll, PATIENCE_S) == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_a_topic_that_the_catalog_does_not_know_is_kept(tmp_path: Path) -> None:
    store = new_store()
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        engine = bench.server.engine
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine.topics.catalog, "state", CatalogState)
            await bench.refresh()
        assert await bench.append("t", [b"x"]) == 0


@pytest.mark.parametrize("fate", [Fault.LANDS_UNKNOWN, Fault.FAILS])
async def test_a_deletion_of_unknown_outcome_is_settled_by_the_next_look(tmp_path: Path, fate: Fault) -> None:
    faults: list[Fault] = []
    is_away = False

    def plan(operation: Operation) -> Fault:
        nonlocal is_away
        if fate in faults and operation.verb == "PUT" and "catalog/head" in operation.key:
            faults.clear()
            is_away = True
            return fate
        return Fault.FAILS if is_away else Fault.NONE

    clock = ManualClock()
    store = FaultyObjectStore(MemoryObjectStore(clock), Random(1), plan)
    async with service_bench(tmp_path, store=store, clock=clock) as bench:
        await bench.client.admin.create_topic("t")
        await bench.append("t", [b"x"])
        faults.append(fate)
        with pytest.raises(StoreUnavailableError) as caught:
            await bench.client.admin.delete_topic("t")
        assert caught.value.retriable
        with pytest.raises(StoreUnavailableError):
            await bench.refresh()
        assert await bench.topic_names() == ["t"], "no server knows yet"
        is_away = False
        await bench.refresh()
        if fate is Fault.FAILS:
            assert await bench.append("t", [b"y"]) == 1
            await bench.client.admin.delete_topic("t")
        assert await bench.topic_names() == []
        with pytest.raises(UnknownTopicOrPartitionError):
            await bench.append("t", [b"z"])


def owned_claims(bench: ServiceBench) -> Sequence[ShardClaim]:
    [shard] = bench.server.engine.tier.shards
    return shard.metadata.state().claims


async def test_a_server_that_was_replaced_changes_no_topics(tmp_path: Path) -> None:
    store = new_store()
    async with service_bench(tmp_path / "a", store=store) as former:
        await former.client.admin.create_topic("t", config=DISK)
        async with service_bench(tmp_path / "b", store=store) as owner:
            catalog_seq = catalog_elsewhere(store).seq
            assert not former.server.engine.tier.shards.is_replaced, "it has not looked yet"
            with pytest.raises(NotOwnerError):
                await former.client.admin.delete_topic("t")
            with pytest.raises(NotOwnerError):
                await former.client.admin.create_topic("u")
            assert catalog_elsewhere(store).seq == catalog_seq
            [status] = (await former.client.admin.tier_status()).shards
            assert status.takeover is not None
            [claim] = [one for one in owned_claims(owner) if one.epoch == status.takeover.epoch]
            assert status.takeover.epoch == status.epoch + 1
            assert (status.takeover.owner, status.takeover.time_ms) == (claim.owner, claim.time_ms)
            [owned] = (await owner.client.admin.tier_status()).shards
            assert owned.takeover is None
            # It keeps its hands off its own disk, too, whatever the owner does.
            await owner.client.admin.delete_topic("t")
            await former.refresh()
            with pytest.raises(NotOwnerError):
                await former.topic_names()
            assert [one.name for one in former.server.engine.topics.registry.topics()] == ["t"]


async def test_without_an_answer_disk_is_acknowledged_for_a_while_only(tmp_path: Path) -> None:
    is_away = False
    clock = ManualClock()
    inner = MemoryObjectStore(clock)
    store = FaultyObjectStore(inner, Random(1), lambda _: Fault.FAILS if is_away else Fault.NONE)
    bound_ms = HOUR_MS + 60_000
    async with service_bench(tmp_path, store=store, clock=clock, max_silence_ms=bound_ms) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", config=DISK)
        await admin.create_topic("at-os")
        await admin.create_topic("untiered", config={**DISK, "remote.storage.enable": "false"})
        await bench.refresh()
        is_away = True
        clock.advance(bound_ms)
        assert await bench.append("t", [b"in time"]) == 0
        clock.advance(1)
        with pytest.raises(StoreUnavailableError):
            await bench.refresh()
        with pytest.raises(StoreUnavailableError):
            await bench.append("t", [b"lost"])
        record = Record(0, 0, None, b"lost")
        with pytest.raises(StoreUnavailableError):
            await bench.client.append("at-os", 0, [record], durability=Durability.DISK)
        assert await bench.append("at-os", [b"x"]) == 0
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.describe_topics(["missing"])
        assert await bench.append("untiered", [b"x"]) == 0
        assert await values(bench, "t") == [b"in time"], "readers go on, and see nothing of what was refused"
        is_away = False
        await bench.refresh()
        assert await bench.append("t", [b"back"]) == 1
