"""The cleaner of local logs in the server: what it takes, when it waits, and what operators see."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import InvalidConfigError, InvalidRequestError
from stratalog.client import values
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault
from tests.support.service.service_bench import ServiceBench, service_bench, until

COMPACTED = {"remote.storage.enable": "false", "cleanup.policy": "compact", "segment.bytes": "1024"}
SOON = {"log.cleaner.backoff.ms": "10"}
SELDOM = {"log.cleaner.backoff.ms": "3600000"}


async def fill(bench: ServiceBench, topic: str = "t", count: int = 10) -> None:
    """Two keys again and again, each record in a segment of its own."""
    for number in range(count):
        record = Record(0, SystemClock().now_ms(), b"k%d" % (number % 2), b"%03d" % number + bytes(600))
        await bench.client.append(topic, 0, [record])


async def test_a_compacted_topic_that_is_not_tiered_is_cleaned_by_itself(tmp_path: Path) -> None:
    async with service_bench(tmp_path, config=SOON) as bench:
        await bench.client.admin.create_topic("t", 1, {**COMPACTED, "min.cleanable.dirty.ratio": "0"})
        await bench.client.admin.create_topic("plain", 1, {**COMPACTED, "cleanup.policy": "delete"})
        await fill(bench)
        await fill(bench, "plain")
        cleaner = bench.server.engine.local.cleaning.workers
        await until(lambda: cleaner.stats().dropped_record_count >= 7)
        [records] = await bench.read_all("t")
        latest = {record.key: (record.value or b"")[:3] for record in records}
        assert latest == {b"k0": b"008", b"k1": b"009"}
        assert len(records) < 10
        assert [len(part) for part in await bench.read_all("plain")] == [10]
        status = await bench.client.admin.cleaner_status()
        assert (status.worker_count, status.dead_worker_count, list(status.uncleanable_partitions)) == (
            1,
            0,
            [],
        )
        assert status.clean_count >= 1
        assert status.reclaimed_bytes > 600
        document = json.loads((await bench.command("cleaner", "status", "--json")).output)
        assert document["dropped_record_count"] >= 7
        table = (await bench.command("cleaner", "status")).output
        assert ["worker", "count", "1"] in [line.split() for line in table.splitlines()]


async def test_a_topic_that_has_just_come_is_no_failure(tmp_path: Path) -> None:
    """The catalog was read for another topic, within the second in which it is not read again."""
    async with service_bench(tmp_path, config=SELDOM) as bench:
        for topic in ("first", "second", "third"):
            await bench.client.admin.create_topic(topic, 1, COMPACTED)
            await fill(bench, topic)
            assert await asyncio.to_thread(bench.server.engine.local.cleaning.workers.clean_filthiest)
        status = await bench.client.admin.cleaner_status()
        assert (status.clean_count, list(status.uncleanable_partitions)) == (3, [])


async def test_deleted_records_of_a_compacted_topic_go(tmp_path: Path) -> None:
    async with service_bench(tmp_path, config=SELDOM) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, COMPACTED)
        await fill(bench)
        assert await admin.delete_records("t", 0, 5) == 5
        await asyncio.to_thread(bench.server.engine.local.retention.run)
        [log] = await admin.describe_log("t")
        first, *_ = await admin.list_segments("t", 0)
        assert (log.log_start_offset, log.local_log_start_offset, first.base_offset) == (5, 5, 5)
        assert await asyncio.to_thread(bench.server.engine.local.cleaning.workers.clean_filthiest)
        [records] = await bench.read_all("t")
        assert min(record.offset for record in records) >= 5
        assert {record.key for record in records} == {b"k0", b"k1"}
    async with service_bench(tmp_path, config=SELDOM) as bench:
        assert (await bench.client.admin.describe_log("t"))[0].log_start_offset == 5


async def test_the_cleaner_is_altered_while_it_runs(tmp_path: Path) -> None:
    async with service_bench(tmp_path, config=SELDOM) as bench:
        admin, cleaner = bench.client.admin, bench.server.engine.local.cleaning.workers
        await admin.alter_configs({"log.cleaner.threads": "2", "log.cleaner.io.max.bytes.per.second": "1e6"})
        assert (cleaner.stats().worker_count, cleaner.settings.max_bytes_per_s) == (2, 1e6)
        for name, value in (
            ("log.cleaner.threads", "5"),
            ("log.cleaner.dedupe.buffer.size", "1048576"),
        ):
            with pytest.raises(InvalidConfigError) as refusal:
                await admin.alter_configs({name: value})
            assert refusal.value.fields["name"] == name
        assert cleaner.settings.thread_count == 2
        await admin.alter_configs({"log.cleaner.threads": None})
        assert cleaner.stats().worker_count == 1
        await admin.alter_configs({"log.cleaner.threads": "2"})
    async with service_bench(tmp_path, config=SELDOM) as bench:
        assert bench.server.engine.local.cleaning.workers.stats().worker_count == 2


async def test_a_topic_comes_to_the_cleaner_and_leaves_it_as_it_is_altered(tmp_path: Path) -> None:
    async with service_bench(tmp_path, config=SELDOM) as bench:
        admin, cleaner = bench.client.admin, bench.server.engine.local.cleaning.workers
        await admin.create_topic("t", 1, {**COMPACTED, "cleanup.policy": "delete"})
        await fill(bench)
        assert not await asyncio.to_thread(cleaner.clean_filthiest)
        await admin.alter_configs({"cleanup.policy": "compact"}, "t")
        assert await asyncio.to_thread(cleaner.clean_filthiest)
        await admin.alter_configs({"cleanup.policy": "delete"}, "t")
        await fill(bench)
        assert not await asyncio.to_thread(cleaner.clean_filthiest)


async def test_while_the_store_is_away_the_configuration_that_was_read_last_cleans(tmp_path: Path) -> None:
    is_away = False
    store = FaultyObjectStore(
        MemoryObjectStore(SystemClock()), Random(0), lambda _: Fault.FAILS if is_away else Fault.NONE
    )
    async with service_bench(tmp_path, store=store, config=SELDOM) as bench:
        engine = bench.server.engine
        await bench.client.admin.create_topic("t", 1, COMPACTED)
        await fill(bench)
        # The server has read another configuration, which its log does not have yet.
        catalog = engine.topics.catalog
        former = catalog.topics()["t"]
        catalog.alter(former.topic_id, config={**former.config, "min.cleanable.dirty.ratio": "0"})
        is_away = True
        await asyncio.to_thread(engine.local.retention.run)
        assert not await asyncio.to_thread(engine.local.cleaning.workers.clean_filthiest)
        is_away = False
        await asyncio.to_thread(engine.local.retention.run)
        is_away = True
        assert await asyncio.to_thread(engine.local.cleaning.workers.clean_filthiest)
        assert (await bench.client.admin.cleaner_status()).uncleanable_partitions == ()


async def test_a_server_that_was_replaced_cleans_nothing(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "first", store=store, config=SELDOM) as bench:
        await bench.client.admin.create_topic("t", 1, COMPACTED)
        await fill(bench)
        async with service_bench(tmp_path / "second", store=store):
            engine = bench.server.engine
            await bench.refresh()
            assert engine.tier.shards.is_replaced
            assert not await asyncio.to_thread(engine.local.cleaning.workers.clean_filthiest)
            assert engine.local.cleaning.workers.stats().clean_count == 0


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"remote.storage.enable": "false"}, "the topic is not compacted"),
        ({"cleanup.policy": "compact"}, "by `stratalog compaction run`"),
    ],
)
async def test_what_the_cleaner_never_has_cannot_be_reset(
    tmp_path: Path, config: dict[str, str], reason: str
) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 1, config)
        with pytest.raises(InvalidRequestError) as refusal:
            await bench.client.admin.reset_cleaner("t", 0)
        assert reason in refusal.value.message


async def test_a_partition_that_cannot_be_cleaned_is_shown_and_reset(tmp_path: Path) -> None:
    async with service_bench(tmp_path, config=SELDOM) as bench:
        await bench.client.admin.create_topic("t", 1, COMPACTED)
        await fill(bench)
        segment = tmp_path / "data" / "t-0" / f"{0:020}.log"
        intact = segment.read_bytes()
        segment.write_bytes(intact[:-1] + b"\x01")
        cleaner = bench.server.engine.local.cleaning.workers
        assert await asyncio.to_thread(cleaner.clean_filthiest)
        [failed] = (await bench.client.admin.cleaner_status()).uncleanable_partitions
        assert (failed.topic, failed.partition, failed.kind, failed.log_dir_path) == (
            "t",
            0,
            values.CleaningFailureKind.DAMAGE,
            f"{tmp_path}/data",
        )
        assert segment.name in failed.reason
        assert failed.dirty_bytes > 0
        shown = (await bench.command("cleaner", "status")).output
        assert "t-0" in shown
        segment.write_bytes(intact)
        result = await bench.command("cleaner", "reset", "t", "--partition", "0")
        assert result.output == "cleaning of t-0 is tried again\n"
        await until(lambda: cleaner.stats().clean_count == 1)
        assert (await bench.client.admin.cleaner_status()).uncleanable_partitions == ()
        result = await bench.command("cleaner", "reset", "t", "--partition", "0")
        assert result.output == "the cleaning of t-0 had not failed\n"


async def test_without_the_cleaner_logs_only_grow(tmp_path: Path) -> None:
    async with service_bench(tmp_path, config={**SOON, "log.cleaner.enable": "false"}) as bench:
        await bench.client.admin.create_topic("t", 1, COMPACTED)
        await fill(bench)
        assert not await asyncio.to_thread(bench.server.engine.local.cleaning.workers.clean_filthiest)
        assert [len(part) for part in await bench.read_all("t")] == [10]


async def test_operators_see_when_tombstones_go(tmp_path: Path) -> None:
    async with service_bench(tmp_path, config=SELDOM) as bench:
        config = {**COMPACTED, "max.compaction.lag.ms": "1", "delete.retention.ms": "86400000"}
        await bench.client.admin.create_topic("t", 1, config)
        shown = await bench.command("cleaner", "status", "--json")
        assert json.loads(shown.output)["next_clean_ms"] is None
        await bench.client.append("t", 0, [Record(0, 1, b"k", b"v"), Record(0, 1, b"k", None)])
        begun_ms = SystemClock().now_ms()
        # The segment that is written to is sealed, and cleaned.
        clean = bench.server.engine.local.cleaning.workers.clean_filthiest
        assert [await asyncio.to_thread(clean) for _ in range(2)] == [True, False]
        horizon_ms = (await bench.client.admin.cleaner_status()).next_clean_ms
        assert begun_ms <= horizon_ms - 86_400_000 <= SystemClock().now_ms()
        shown = await bench.command("cleaner", "status", "--json")
        assert json.loads(shown.output)["next_clean_ms"] == horizon_ms
