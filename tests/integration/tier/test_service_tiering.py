"""The whole way through the service, on every store: append, tier, compact, lose the disk, read back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    StoreAccessDeniedError,
    StoreNotUsableError,
    StoreUnavailableError,
)
from stratalog.base.types import Durability
from stratalog.client import values
from stratalog.log.log_config import COMPACTED_LOCAL_RETENTION_MS
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.objectstore.s3 import S3ObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server import app
from stratalog.server.background.thread_scheduler import ThreadScheduler
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.store_faults import Fault
from tests.support.service.service_bench import HOUR_MS, ServiceBench, service_bench
from tests.support.tiered.s3_servers import S3Server

KEY_COUNT = 40
PARTITION_COUNT = 4
ROUND_COUNT = 4

OpenStore = Callable[[], ObjectStore | None]


@pytest.fixture(params=["embedded", "moto", "seaweedfs"])
def open_store(request: pytest.FixtureRequest, s3_prefix: str) -> Generator[OpenStore]:
    """Opens the same store again and again: the embedded one (None), or one on an S3 server."""
    if request.param == "embedded":
        yield lambda: None
        return
    server: S3Server = request.getfixturevalue(f"{request.param}_server")
    yield lambda: server.open_store(s3_prefix)


class Expected:
    """The records that must be in the topics, known from the sent ones alone."""

    def __init__(self) -> None:
        self.last_value: dict[bytes, bytes | None] = {}
        self.plain: list[list[bytes]] = [[] for _ in range(PARTITION_COUNT)]

    async def send_round(self, bench: ServiceBench, number: int) -> None:
        """A round of updates to every key, some of them deletions, and records for the plain topic."""
        async with bench.client.producer() as producer:
            for key_number in range(KEY_COUNT):
                key = b"key-%03d" % key_number
                value = None if (key_number + number) % 7 == 0 else b"round-%d-of-%03d" % (number, key_number)
                producer.send("table", key, value, timestamp_ms=1_000 + number)
                self.last_value[key] = value
        for partition in range(PARTITION_COUNT):
            values = [b"%d-%d" % (number, index) for index in range(10)]
            await bench.append("events", values, partition)
            self.plain[partition] += values

    async def check(self, bench: ServiceBench) -> int:
        """Read everything; returns the number of records in the table."""
        folded: dict[bytes | None, bytes | None] = {}
        record_count = 0
        for records in await bench.read_all("table"):
            assert [record.offset for record in records] == sorted({record.offset for record in records})
            folded.update((record.key, record.value) for record in records)
            record_count += len(records)
        present = {key: value for key, value in folded.items() if value is not None}
        assert present == {key: value for key, value in self.last_value.items() if value is not None}
        plain = await bench.read_all("events")
        assert [[record.value for record in records] for records in plain] == self.plain
        assert [[record.offset for record in records] for records in plain] == [
            list(range(len(values))) for values in self.plain
        ]
        return record_count


async def create_topics(bench: ServiceBench) -> None:
    compacted = {"cleanup.policy": "compact", "retention.ms": "-1"}
    await bench.client.admin.create_topic("table", PARTITION_COUNT, compacted)
    await bench.client.admin.create_topic("events", PARTITION_COUNT, {"retention.ms": "-1"})


async def test_a_lost_disk_loses_nothing_that_was_tiered(tmp_path: Path, open_store: OpenStore) -> None:
    expected = Expected()
    async with service_bench(tmp_path, store=open_store()) as bench:
        await create_topics(bench)
        for number in range(ROUND_COUNT):
            await expected.send_round(bench, number)
            uploaded = await bench.client.admin.upload(delete_local=True)
            assert (uploaded.object_count, uploaded.slice_count) == (1, 2 * PARTITION_COUNT), (
                "many partitions, one object"
            )
            assert uploaded.deleted_segment_count == 2 * PARTITION_COUNT
        assert await expected.check(bench) == ROUND_COUNT * KEY_COUNT
        jobs = await bench.client.admin.run_compaction()
        assert jobs
        assert all(job.reason == "" and job.get_request_count <= 2 * job.input_count for job in jobs)
        assert await expected.check(bench) == KEY_COUNT
        before = await bench.client.admin.tier_status()
        assert before.shards[0].dropped_object_count == ROUND_COUNT
    store_url = f"file://{tmp_path}/data.store"
    async with service_bench(tmp_path / "new-disk", store=open_store(), store_url=store_url) as bench:
        after = await bench.client.admin.tier_status()
        assert (after.store_id, after.shards[0].live_object_count, after.shards[0].epoch) == (
            before.store_id,
            before.shards[0].live_object_count,
            2,
        )
        assert await expected.check(bench) == KEY_COUNT
        for log in await bench.client.admin.describe_log("table"):
            assert (log.log_start_offset, log.local_log_start_offset) == (0, log.tiered_end_offset)
            assert log.compacted_upto == log.tiered_end_offset == log.log_end_offset
        await expected.send_round(bench, ROUND_COUNT)
        await bench.client.admin.upload()
        await expected.check(bench)


@asynccontextmanager
async def compacted_table(clock: ManualClock, config: Mapping[str, str]) -> AsyncGenerator[ServiceBench]:
    """A server with 10,000 records of 1,000 keys, which are compacted in the object store."""
    store = MemoryObjectStore(clock)
    async with service_bench("/", filesystem=MemoryFileSystem(), store=store, clock=clock) as bench:
        admin = bench.client.admin
        policy = {"cleanup.policy": "compact", "retention.ms": "-1"}
        await admin.create_topic("table", config={**policy, **config})
        for number in range(10):
            timestamp_ms = clock.now_ms()
            records = [Record(0, timestamp_ms, b"%d" % key, b"%d" % number) for key in range(1000)]
            await bench.client.append("table", 0, records)
        await admin.upload()
        await bench.retain()
        [records] = await bench.read_all("table")
        assert len(records) == 10_000
        [job] = await admin.run_compaction()
        assert job.reason == ""
        yield bench


async def test_readers_see_the_compacted_copy_from_the_next_pass_of_local_retention_on() -> None:
    clock = ManualClock()
    async with compacted_table(clock, {}) as bench:
        [explained] = await bench.client.admin.explain_retention()
        [gone] = explained.expired
        assert (gone.tier, gone.rule) == (values.RetentionTier.LOCAL, values.RetentionRule.COMPACTION)
        assert (gone.base_offset, gone.end_offset, gone.unit_count) == (0, 10_000, 1)
        outcome = await asyncio.to_thread(bench.server.engine.local.retention.run)
        assert outcome.text == "1 segment, 1 compacted-segment"
        [records] = await bench.read_all("table")
        assert {record.key: record.value for record in records} == {b"%d" % key: b"9" for key in range(1000)}
        assert len(records) == 1000
        assert bench.partition("table").compacted_upto == 10_000
        log_start_offset = bench.partition("table").log_start_offset
        assert (log_start_offset, bench.partition("table").local_log_start_offset) == (0, 10_000)


async def test_a_call_of_retention_leaves_the_compacted_copy_to_readers() -> None:
    async with compacted_table(ManualClock(), {}) as bench:
        [retained] = (await bench.client.admin.run_retention()).partitions
        assert retained.deleted_segment_count == 1
        [records] = await bench.read_all("table")
        assert len(records) == 1000


async def test_a_time_that_is_set_for_local_copies_hides_a_compaction_for_so_long() -> None:
    clock = ManualClock()
    hours = {"local.retention.ms": str(COMPACTED_LOCAL_RETENTION_MS)}
    async with compacted_table(clock, hours) as bench:
        admin = bench.client.admin
        clock.advance(COMPACTED_LOCAL_RETENTION_MS)
        await bench.retain()
        [explained] = await admin.explain_retention()
        [local] = [one for one in explained.next if one.tier == values.RetentionTier.LOCAL]
        assert local.time_ms == clock.now_ms() + 1
        [records] = await bench.read_all("table")
        assert len(records) == 10_000
        clock.advance(1)
        await bench.retain()
        [records] = await bench.read_all("table")
        assert {record.key: record.value for record in records} == {b"%d" % key: b"9" for key in range(1000)}
        assert len(records) == 1000


AT_ONCE = {"remote.copy.max.age.ms": "1"}


async def test_the_status_follows_the_uploads(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", config={"segment.bytes": "1024", **AT_ONCE})
        empty = await bench.client.admin.tier_status()
        [shard], [topic] = empty.shards, empty.topics
        assert (shard.shard, shard.epoch, shard.live_object_count, topic.pending_upload_bytes) == (0, 1, 0, 0)
        assert (topic.lag_bytes, topic.lag_record_count, topic.lag_ms) == (0, 0, -1)
        assert upload_of(empty).last_work_ms == -1
        for _ in range(5):
            await bench.append("t", [bytes(600)])
        await asyncio.to_thread(bench.partition().log.flusher.flush)
        [topic] = (await bench.client.admin.tier_status()).topics
        assert topic.lag_bytes > topic.pending_upload_bytes > 0
        assert topic.lag_record_count == 5
        assert 0 <= topic.lag_ms < HOUR_MS, "the records are of 1970, and have just arrived"
        await bench.run_task("upload")
        status = await bench.client.admin.tier_status()
        [shard], [topic] = status.shards, status.topics
        assert (shard.live_object_count, shard.live_slice_count, topic.pending_upload_bytes) == (1, 1, 0)
        assert (topic.tiered_partition_count, topic.slice_count, topic.lag_record_count) == (1, 1, 0)
        assert upload_of(status).last_work_ms >= upload_of(status).last_success_ms > 0
        assert upload_of(status).last_done["objects"] == 1
        assert min(shard.live_bytes, topic.tiered_bytes) > 4 * 600
        assert shard.clock_checked_ms > 0
        assert abs(shard.clock_skew_ms) < 60_000


async def test_the_lag_is_the_part_of_a_segment_that_waits_since_its_arrival(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t")
        records = [Record(0, 0, b"k", bytes(10_000))]
        await bench.client.append("t", 0, records * 18, durability=Durability.OBJECT)
        await bench.client.append("t", 0, records * 2)
        partition = bench.partition()
        active = partition.log.local_log.segments.active
        assert (active.base_offset, partition.tiered_end_offset) == (0, 18)
        # As if the segment had been open since 1970: what waits has come after the last commit.
        active.first_append_ms = 0
        [topic] = (await bench.client.admin.tier_status()).topics
        assert (topic.lag_record_count, topic.oldest_partition) == (2, 0)
        assert 20_000 <= topic.lag_bytes < 21_000
        assert 0 <= topic.lag_ms < HOUR_MS


class _ManualTasks(ManualScheduler):
    """The periodic tasks of a server, which run when the clock moves."""

    failure_count = 0
    stop = ManualScheduler.close


async def test_background_passes_do_by_themselves_what_the_calls_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()

    def scheduler(thread_count: int, name: str = "task") -> _ManualTasks | ThreadScheduler:
        return _ManualTasks(clock) if name == "task" else ThreadScheduler(thread_count, name)

    monkeypatch.setattr(app, "ThreadScheduler", scheduler)
    passes = ("upload", "head_refresh", "remote_retention", "collector", "fold", "compaction")
    periods: dict[str, Any] = {f"{name}_ms": 1_000 for name in passes}
    keys = ("log.retention.check.interval.ms", "log.flush.offset.checkpoint.interval.ms")
    periods["config"] = dict.fromkeys((*keys, "log.initial.task.delay.ms"), "1000")
    async with service_bench(tmp_path, filesystem=MemoryFileSystem(), clock=clock, **periods) as bench:
        # By size alone: the records are of 1970.
        config = {"segment.bytes": "1024", "local.retention.bytes": "1", **AT_ONCE}
        config |= {"retention.bytes": "3000", "retention.ms": "-1"}
        await bench.client.admin.create_topic("t", config=config)
        for _ in range(12):
            await bench.client.append_batches("t", 0, _batch(600), durability=None)
            await asyncio.to_thread(clock.advance, 2_000)
        [log] = await bench.client.admin.describe_log("t")
        assert 0 < log.log_start_offset < log.local_log_start_offset
        [records] = await bench.read_all("t")
        assert [record.offset for record in records] == list(range(log.log_start_offset, 12))
        assert len(records) * len(_batch(600)) >= 3_000


def upload_of(status: values.TierStatus) -> values.PassStatus:
    [found] = [one for one in status.passes if one.name == "upload"]
    return found


def _batch(size_bytes: int) -> bytes:
    return encode_batch([Record(0, 0, b"k", bytes(size_bytes))])


# --- stores that fail --------------------------------------------------------------------------------------


async def test_a_store_that_is_away_stops_tiering_and_nothing_else(tmp_path: Path) -> None:
    is_away = False
    store = FaultyObjectStore(
        MemoryObjectStore(SystemClock()), Random(1), lambda _: Fault.FAILS if is_away else Fault.NONE
    )
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        await bench.append("t", [b"tiered"])
        await bench.client.admin.upload(delete_local=True)
        is_away = True
        assert await bench.append("t", [b"local"]) == 1
        with pytest.raises(StoreUnavailableError):
            await bench.client.admin.upload()
        assert upload_of(await bench.client.admin.tier_status()).last_error
        is_away = False
        assert (await bench.client.admin.upload()).slice_count == 1
        assert upload_of(await bench.client.admin.tier_status()).last_error == ""
        assert await bench.values("t") == [[b"tiered", b"local"]]


async def test_wrong_credentials_and_a_missing_bucket_differ(
    tmp_path: Path, seaweedfs_server: S3Server, s3_prefix: str
) -> None:
    wrong = seaweedfs_server.settings(s3_prefix, secret_access_key="wrong")
    with pytest.raises(StoreAccessDeniedError):
        async with service_bench(tmp_path, store=S3ObjectStore(SystemClock(), wrong)):
            raise AssertionError("it must not start")
    missing = seaweedfs_server.settings(s3_prefix, bucket="no-such-bucket")
    with pytest.raises(StoreNotUsableError):
        async with service_bench(tmp_path, store=S3ObjectStore(SystemClock(), missing)):
            raise AssertionError("it must not start")
    # Nothing holds the directory any more: the right settings work at once.
    async with service_bench(tmp_path, store=seaweedfs_server.open_store(s3_prefix)) as bench:
        assert await bench.client.admin.list_topics() == []
