"""Another process alters a topic in the catalog, and the owner follows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stratalog.base.errors import (
    DataDirectoryError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import Durability
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from tests.support.service.service_bench import ServiceBench, catalog_elsewhere, service_bench


def alter(
    bench: ServiceBench,
    topic: str,
    config: Mapping[str, str] | None = None,
    partition_count: int | None = None,
) -> None:
    """Alter a topic as another process does."""
    catalog = catalog_elsewhere(bench.server.engine.tier.store)
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
            catalog_elsewhere(bench.server.engine.tier.store).alter_server_config(
                lambda _: {"log.retention.ms": "-1"}
            )
        else:
            alter(bench, "t", {"retention.ms": "-1"})
        await bench.retain()
        may_open.set()
        await creating
        await bench.retain()
        assert bench.partition().log_start_offset == 0


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
    await asyncio.to_thread(bench.server.engine.local.logs.check)
    with pytest.raises((UnknownTopicOrPartitionError, OffsetOutOfRangeError)):
        await bench.append("short-lived", [b"x"])
