"""Another process alters a topic in the catalog, and the owner follows."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    DataDirectoryError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.randomness import SystemIdGenerator
from stratalog.base.types import Durability
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.store_identity import StoreIdentity
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault
from tests.support.service.service_bench import ServiceBench, service_bench

UNTIERED = {"remote.storage.enable": "false"}


def other_catalog(bench: ServiceBench) -> Catalog:
    """The catalog as another process opens it."""
    store, ids = bench.server.engine.store, SystemIdGenerator()
    identity = StoreIdentity.open_or_create(store, ids)
    writer = Writer("tool", "elsewhere")
    return Catalog.open(StoreActor(store, SystemClock(), Random(0), ids, identity, writer))


def alter(
    bench: ServiceBench,
    topic: str,
    config: Mapping[str, str] | None = None,
    partition_count: int | None = None,
) -> None:
    """Alter a topic as another process does."""
    catalog = other_catalog(bench)
    catalog.alter(catalog.topics()[topic].topic_id, config=config, partition_count=partition_count)


async def test_appends_rolls_and_visibility_go_by_the_new_configuration(bench: ServiceBench) -> None:
    topic = await bench.client.admin.create_topic("t")
    await bench.append("t", [b"x" * 3000])
    await bench.append("t", [b"x" * 3000])
    altered = {"max.message.bytes": "2000", "segment.bytes": "1024", "min.durability": "disk"}
    alter(bench, "t", altered)
    await bench.append("t", [b"before the look" * 200])
    await bench.refresh()
    log = bench.partition().log
    assert log.offsets.high_watermark == log.offsets.recovery_point == 3, "visible records stay visible"
    with pytest.raises(RecordTooLargeError):
        await bench.append("t", [b"x" * 3000])
    await bench.append("t", [b"x" * 500])
    assert [info.base_offset for info in log.reader.segments()] == [0, 3]
    assert log.offsets.recovery_point == 4, "an append is acknowledged at disk now"
    [described] = await bench.client.admin.describe_topics(["t"])
    assert (described.config["max.message.bytes"], described.topic_id) == ("2000", topic.topic_id)


async def test_a_weaker_durability_shows_waiting_records_at_once(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 1, {"min.durability": "disk"})
    partition = bench.partition()
    await asyncio.to_thread(
        partition.log.appender.append_group, [encode_batch([Record(0, 0, None, b"v")])], 1
    )
    assert partition.log.offsets.high_watermark == 0
    waiter = asyncio.Event()
    partition.signal.enter(waiter)
    alter(bench, "t", {})
    await bench.refresh()
    await asyncio.wait_for(waiter.wait(), 20)
    assert partition.log.offsets.high_watermark == 1


@pytest.mark.parametrize("tier", [{}, UNTIERED])
async def test_a_refused_configuration_deletes_nothing_and_is_logged_once(
    bench: ServiceBench, caplog: pytest.LogCaptureFixture, tier: dict[str, str]
) -> None:
    for name in ("t", "other"):
        await bench.client.admin.create_topic(name, 1, {**tier, "retention.ms": "1000"})
        await bench.append(name, [b"of 1970"])
    await bench.client.admin.upload()
    alter(bench, "t", {**tier, "a.key.of.the.future": "1"})
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await bench.retain()
    assert sum("a.key.of.the.future" in message for message in caplog.messages) == 1
    assert bench.partition().log_start_offset == 0
    assert bench.partition("other").log_start_offset == 1
    assert await bench.append("t", [b"goes on"]) == 1
    alter(bench, "t", {**tier, "retention.ms": "1000"})
    await bench.retain()
    assert bench.partition().log_start_offset > 0


async def test_without_the_catalog_records_that_only_this_disk_has_are_kept(tmp_path: Path) -> None:
    is_away = False
    store = FaultyObjectStore(
        MemoryObjectStore(SystemClock()), Random(0), lambda _: Fault.FAILS if is_away else Fault.NONE
    )
    async with service_bench(tmp_path, store=store) as bench:
        for name, config in (("t", UNTIERED), ("tiered", {"local.retention.ms": "0"})):
            await bench.client.admin.create_topic(name, 1, {**config, "retention.ms": "1000"})
            await bench.append(name, [b"of 1970"])
        await bench.client.admin.upload()
        is_away = True
        await asyncio.to_thread(bench.server.engine.local_retention.run)
        assert bench.partition().log_start_offset == 0
        assert bench.partition("tiered").log.offsets.local_log_start_offset == 1, "the bucket has it"
        is_away = False
        await asyncio.to_thread(bench.server.engine.local_retention.run)
        assert bench.partition().log_start_offset == 1


async def test_partitions_that_were_added_are_served(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        await bench.append("t", [b"first"])
        former = bench.partition()
        # The last one fails on the first try, which leaves the log of the one before it open.
        obstacle = tmp_path / "data" / "t-2"
        obstacle.write_bytes(b"")
        alter(bench, "t", partition_count=3)
        await bench.refresh()
        with pytest.raises(UnknownTopicOrPartitionError):
            await bench.append("t", [b"x"], 1)
        obstacle.unlink()
        await bench.refresh()
        assert bench.partition() is former
        for number in (1, 2):
            assert await bench.append("t", [b"added"], number) == 0
        await bench.client.admin.upload()
        values = await bench.values("t")
        assert values == [[b"first"], [b"added"], [b"added"]]
    async with service_bench(tmp_path, store=store) as bench:
        assert len(await bench.read_all("t")) == 3


async def test_an_alteration_that_failed_half_way_and_was_taken_back_leaves_no_log_behind(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.client.admin.create_topic("t", 2, {"retention.ms": "-1"})
    for number in (0, 1):
        await bench.append("t", [b"of 1970"], number)
    await bench.client.admin.upload()
    reconfigure, failing = UnifiedLog.reconfigure, {1}

    def fail_some(log: UnifiedLog, config: LogConfig) -> None:
        if log.topic_partition.partition in failing:
            raise DataDirectoryError("the disk failed", path=log.local_log.directory)
        reconfigure(log, config)

    monkeypatch.setattr(UnifiedLog, "reconfigure", fail_some)
    partitions = [bench.partition("t", number) for number in (0, 1)]
    alter(bench, "t", {"retention.ms": "1000"})
    await bench.retain()
    assert [partition.log.local_log.config.retention_ms for partition in partitions] == [1000, -1]
    alter(bench, "t", {"retention.ms": "-1"})
    failing.add(0)
    await bench.retain()
    failing.clear()
    await bench.retain()
    assert [partition.log.local_log.config.retention_ms for partition in partitions] == [-1, -1]
    assert [partition.log_start_offset for partition in partitions] == [0, 0]


@pytest.mark.parametrize("is_default", [False, True])
async def test_an_alteration_that_could_not_be_followed_yet_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_default: bool
) -> None:
    """The creation of another topic takes long. The topic is altered, or the server's default."""
    async with service_bench(tmp_path, config={"log.retention.ms": "1000"}) as bench:
        await bench.client.admin.create_topic("t", 1, {} if is_default else {"retention.ms": "1000"})
        await bench.append("t", [b"of 1970"])
        await bench.client.admin.upload()
        may_open, is_opening = threading.Event(), threading.Event()
        open_log = LogManager.open_log

        def open_later(manager: LogManager, *args: Any, **kwargs: Any) -> UnifiedLog:
            is_opening.set()
            assert may_open.wait(20)
            return open_log(manager, *args, **kwargs)

        monkeypatch.setattr(LogManager, "open_log", open_later)
        creating = asyncio.create_task(bench.client.admin.create_topic("slow"))
        assert await asyncio.to_thread(is_opening.wait, 20)
        if is_default:
            other_catalog(bench).alter_server_config(lambda _: {"log.retention.ms": "-1"})
        else:
            alter(bench, "t", {"retention.ms": "-1"})
        await bench.retain()
        may_open.set()
        await creating
        await bench.retain()
        assert bench.partition().log_start_offset == 0


async def test_tiering_can_be_switched_on_and_is_not_switched_off_over_slices(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    kept = {"retention.ms": "-1"}
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t", 1, {**UNTIERED, **kept})
        await bench.append("t", [b"a"])
        alter(bench, "t", kept)
        await bench.refresh()
        await bench.client.admin.upload(delete_local=True)
        assert bench.partition().tiered_end_offset == 1
        assert bench.partition().log.offsets.local_log_start_offset == 1
        alter(bench, "t", {**UNTIERED, **kept})
        for _ in range(2):
            await bench.refresh()
            await bench.retain()
            assert (await bench.values("t"))[0] == [b"a"]
    async with service_bench(tmp_path, store=store) as bench:
        assert (await bench.values("t"))[0] == [b"a"]
        await bench.append("t", [b"b"])
        await bench.client.admin.upload(delete_local=True)
        assert (await bench.values("t"))[0] == [b"a", b"b"]


@pytest.mark.timeout(120)
async def test_follows_beside_appends_reads_and_deletions(bench: ServiceBench) -> None:
    """In any order acknowledged records are read, at disk, and deleted topics are gone."""
    await bench.client.admin.create_topic("t")
    is_done = asyncio.Event()

    async def follow() -> None:
        while not is_done.is_set():
            await asyncio.gather(bench.refresh(), bench.refresh(), bench.retain())

    async def churn() -> None:
        for _ in range(4):
            await bench.client.admin.create_topic("short-lived")
            await asyncio.to_thread(alter, bench, "short-lived", None, 2)
            await bench.client.admin.delete_topic("short-lived")

    async def append() -> None:
        for number in range(12):
            level = ("os", "disk")[number % 2]
            config = {"min.durability": level, "segment.bytes": str(1024 + number), "retention.ms": "-1"}
            await asyncio.to_thread(alter, bench, "t", config, 1 + number // 4)
            await bench.append("t", [b"x" * 300])

    following = asyncio.create_task(follow())
    await asyncio.gather(append(), churn())
    is_done.set()
    await following
    await bench.refresh()
    records = await bench.read_all("t")
    assert [len(part) for part in records] == [12, 0, 0]
    assert await bench.topic_names() == ["t"]
    assert bench.partition().log.local_log.config.min_durability is Durability.DISK
    await asyncio.to_thread(bench.server.engine.logs.check)
    with pytest.raises((UnknownTopicOrPartitionError, OffsetOutOfRangeError)):
        await bench.append("short-lived", [b"x"])
