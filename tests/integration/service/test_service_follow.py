"""An owner that follows what others do to the store: the catalog, claims, and silence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    FencedError,
    StoreUnavailableError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.randomness import SystemIdGenerator, system_random
from stratalog.base.types import Durability
from stratalog.client.client import Client
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.record import Record
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.catalog.catalog_state import CatalogState
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.shard.shard_state import ShardClaim
from stratalog.remote.store_identity import StoreIdentity
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.store_faults import Fault, Operation
from stratalog.v1 import log_pb2
from tests.support.service.service_bench import HOUR_MS, PATIENCE_S, ServiceBench, service_bench

DISK = {"min.durability": "disk"}


def catalog_of(store: ObjectStore) -> Catalog:
    """The catalog, opened by another process."""
    ids = SystemIdGenerator()
    identity = StoreIdentity.open_or_create(store, ids)
    writer = Writer("owner", "elsewhere")
    return Catalog.open(StoreActor(store, SystemClock(), system_random(), ids, identity, writer))


def new_store() -> MemoryObjectStore:
    return MemoryObjectStore(SystemClock())


async def values(bench: ServiceBench, topic: str) -> list[bytes | None]:
    return [record.value for part in await bench.read_all(topic) for record in part]


async def poll_error(client: Client, topic: str, offset: int) -> str:
    """The error code of a long poll at `offset`."""
    request = log_pb2.FetchRequest(
        partitions=[log_pb2.FetchPartition(topic=topic, fetch_offset=offset)], max_wait_ms=60_000
    )
    response = await client.log.Fetch(request)
    return response.partitions[0].error.code


async def test_a_topic_that_is_deleted_elsewhere_is_withdrawn_with_the_next_look(tmp_path: Path) -> None:
    store = new_store()
    async with service_bench(tmp_path, store=store) as bench:
        topic = await bench.client.admin.create_topic("t", 2)
        await bench.client.admin.create_topic("kept")
        await bench.append("t", [b"tiered"])
        await bench.client.admin.upload()
        await bench.append("t", [b"local"])
        engine = bench.server.engine
        poll = asyncio.create_task(poll_error(bench.client, "t", 2))
        await bench.until_waiting(1)
        catalog_of(store).delete(engine.registry.topic("t").topic_id)
        await bench.refresh()
        assert await asyncio.wait_for(poll, PATIENCE_S) == "UNKNOWN_TOPIC_OR_PARTITION"
        assert await bench.topic_names() == ["kept"]
        for call in (bench.append("t", [b"x"]), bench.append("t", [b"x"], 1), bench.read_all("t")):
            with pytest.raises(UnknownTopicOrPartitionError):
                await call
        assert (await bench.client.admin.tier_status()).live_objects == 0, "its slices are dropped"
        assert [str(log.topic_partition) for log in engine.logs.logs()] == ["kept-0"]
        assert not (tmp_path / "data" / "t-0").exists()
        again = await bench.client.admin.create_topic("t")
        assert again.topic_id != topic.topic_id
        assert await bench.append("t", [b"new"]) == 0
        await bench.client.admin.upload()
    async with service_bench(tmp_path, store=store) as bench:
        assert await values(bench, "t") == [b"new"]


async def test_topics_that_come_up_elsewhere_are_served_with_the_next_look(tmp_path: Path) -> None:
    store = new_store()
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        await bench.append("t", [b"old"])
        catalog = catalog_of(store)
        catalog.create("u", 2)
        old_id = bench.server.engine.registry.topic("t").topic_id
        catalog.delete(old_id)
        catalog.create("t", 1)
        with pytest.raises(TopicAlreadyExistsError):
            await bench.client.admin.create_topic("u")
        for _ in range(2):
            await bench.refresh()
            assert await bench.topic_names() == ["t", "u"]
        assert bench.server.engine.registry.topic("t").topic_id != old_id
        assert await bench.append("t", [b"t"]) == 0
        assert await bench.append("u", [b"u"], 1) == 0
        await bench.client.admin.upload()
        assert (await values(bench, "t"), await values(bench, "u")) == ([b"t"], [b"u"])
    async with service_bench(tmp_path, store=store) as bench:
        assert (await values(bench, "t"), await values(bench, "u")) == ([b"t"], [b"u"])


async def test_one_topic_that_cannot_be_opened_does_not_keep_the_others_closed(tmp_path: Path) -> None:
    store = new_store()
    async with service_bench(tmp_path, store=store) as bench:
        catalog = catalog_of(store)
        catalog.create("a", 1, {"written.by.newer": "software"})
        entry = catalog.create("b", 2)
        # The second partition fails on the first try, which leaves the log of the first one open.
        obstacle = tmp_path / "data" / "b-1"
        obstacle.write_bytes(b"")
        await bench.refresh()
        # A topic whose configuration is refused is there, and says so; one that will be tried again is not.
        assert await bench.topic_names() == ["a"]
        obstacle.unlink()
        await bench.refresh()
        assert await bench.topic_names() == ["a", "b"]
        assert await bench.append("b", [b"x"], 1) == 0
        assert bench.server.engine.registry.topic("b").topic_id == entry.topic_id


async def test_a_topic_that_the_catalog_does_not_know_is_kept(tmp_path: Path) -> None:
    store = new_store()
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        engine = bench.server.engine
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine.catalog, "state", CatalogState)
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
    [shard] = bench.server.engine.shards
    return shard.metadata.state().claims


async def test_a_server_that_was_replaced_changes_no_topics(tmp_path: Path) -> None:
    store = new_store()
    async with service_bench(tmp_path / "a", store=store) as former:
        await former.client.admin.create_topic("t", config=DISK)
        async with service_bench(tmp_path / "b", store=store) as owner:
            catalog_seq = catalog_of(store).seq
            assert not former.server.engine.shards.is_fenced, "it has not looked yet"
            with pytest.raises(FencedError):
                await former.client.admin.delete_topic("t")
            with pytest.raises(FencedError):
                await former.client.admin.create_topic("u")
            assert catalog_of(store).seq == catalog_seq
            status = await former.client.admin.tier_status()
            [claim] = [one for one in owned_claims(owner) if one.epoch == status.takeover.epoch]
            assert status.takeover.epoch == status.epoch + 1
            assert (status.takeover.owner, status.takeover.time_ms) == (claim.owner, claim.time_ms)
            assert not (await owner.client.admin.tier_status()).HasField("takeover")
            # It keeps its hands off its own disk, too, whatever the owner does.
            await owner.client.admin.delete_topic("t")
            await former.refresh()
            assert await former.topic_names() == ["t"]


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
            await bench.client.append("at-os", 0, [record], acks=Durability.DISK)
        assert await bench.append("at-os", [b"x"]) == 0
        assert await bench.append("untiered", [b"x"]) == 0
        assert await values(bench, "t") == [b"in time"], "readers go on, and see nothing of what was refused"
        is_away = False
        await bench.refresh()
        assert await bench.append("t", [b"back"]) == 1
