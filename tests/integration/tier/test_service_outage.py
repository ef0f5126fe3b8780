"""The store does not answer: local retention goes on, and the store learns of it afterwards."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from unittest.mock import patch
from uuid import UUID

import pytest

from stratalog.base.errors import (
    LowDiskSpaceError,
    StoreAccessDeniedError,
    StoreCorruptError,
    StoreError,
    StoreNotUsableError,
    StoreUnavailableError,
)
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.client import values
from stratalog.log.isolation import Isolation
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.tier.partition_upload import OVERTAKEN, PartitionUpload
from stratalog.server.background.pass_outcome import PassOutcome
from stratalog.server.metrics.queue_metrics import of_space
from stratalog.server.partitions.store_trouble import StoreTrouble
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.store_faults import Operation
from tests.support.logs.sampling import IS_WHOLE
from tests.support.service.service_bench import ServiceBench, service_bench
from tests.support.tiered.stores.away_store import AwayStore

HOUR_MS = 3_600_000
SEGMENT_BYTES = 1024
RETAINED_BYTES = 4096


class World:
    """A store that goes away, a disk in memory, and the servers over them one after the other. Belongs to the
    event loop."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = AwayStore(MemoryObjectStore(self.clock))
        self.disk = MemoryFileSystem()

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[ServiceBench]:
        async with service_bench("/", filesystem=self.disk, store=self.store, clock=self.clock) as bench:
            yield bench


async def create(bench: ServiceBench, config: Mapping[str, str]) -> None:
    await bench.client.admin.create_topic("t", 1, {"segment.bytes": str(SEGMENT_BYTES), **config})


async def load(bench: ServiceBench, clock: ManualClock, count: int) -> None:
    """Append that many records of a third of a segment."""
    for _ in range(count):
        await bench.client.append("t", 0, [Record(0, clock.now_ms(), None, bytes(300))])


def local_bytes(bench: ServiceBench) -> int:
    return sum(segment.size_bytes for segment in bench.partition().log.reader.segments())


def committed(bench: ServiceBench) -> TieredPartition:
    partition = bench.partition()
    tip = TopicIdPartition(partition.log.topic_id, 0)
    return partition.shard.metadata.state().partition(tip)


@pytest.mark.parametrize("is_tiered", [False, True])
async def test_an_outage_under_load_leaves_the_retained_bytes_and_one_segment_on_the_disk(
    *, is_tiered: bool
) -> None:
    world = World()
    config = {"retention.bytes": str(RETAINED_BYTES), "remote.storage.enable": str(is_tiered).lower()}
    async with world.serving() as bench:
        await create(bench, config)
        await load(bench, world.clock, 3)
        world.store.is_away = True
        for _ in range(10):
            await load(bench, world.clock, 12)
            bench.server.engine.local.retention.run()
            assert local_bytes(bench) <= RETAINED_BYTES + SEGMENT_BYTES
        assert bench.partition().log_start_offset > 100


EXPIRED = StoreAccessDeniedError(
    "the store refuses these credentials; correct them or their permissions",
    status=403,
    store_code="ExpiredToken",
)
GONE = StoreNotUsableError("the bucket does not exist", status=404, store_code="NoSuchBucket")
LOST = StoreCorruptError("the head is lost; restore it")


@pytest.mark.parametrize("is_tiered", [False, True])
async def test_expired_credentials_leave_as_much_on_the_disk_as_an_outage_and_the_pass_says_why(
    caplog: pytest.LogCaptureFixture, *, is_tiered: bool
) -> None:
    world = World()
    config = {"retention.bytes": str(RETAINED_BYTES), "remote.storage.enable": str(is_tiered).lower()}
    async with world.serving() as bench:
        await create(bench, config)
        await load(bench, world.clock, 30)
        engine = bench.server.engine
        world.store.refusal = EXPIRED
        for _ in range(2):
            await load(bench, world.clock, 12)
            engine.passes.task("local-retention", engine.local.retention.run)()
            assert local_bytes(bench) <= RETAINED_BYTES + SEGMENT_BYTES
        world.clock.advance(90_000)
        with suppress(StoreAccessDeniedError):
            bench.partition().shard.refresh()
        status = await bench.client.admin.tier_status()
        [one] = [found for found in status.passes if found.name == "local-retention"]
        assert one.last_refusals == {"unconfirmed": 0, "store-refuses": 1}
        assert one.last_outcome.endswith(f"; by the configuration that was read last: {EXPIRED.message}")
        [shard] = status.shards
        assert (shard.store_trouble, shard.store_failure) == ("store-refuses", str(EXPIRED))
        shown = (await bench.command("tier", "status")).stdout
        assert f"the store answers, and has refused this server for 1.5min: {EXPIRED.message}" in shown
        lines = [line for line in caplog.messages if "the store refuses this server; retention" in line]
        assert len(lines) == 1, "it lasts"
        world.store.refusal = None
        engine.passes.task("local-retention", engine.local.retention.run)()
        bench.partition().shard.refresh()
        status = await bench.client.admin.tier_status()
        [one] = [found for found in status.passes if found.name == "local-retention"]
        assert one.last_refusals == {"unconfirmed": 0}
        assert one.last_outcome == "nothing to do"
        assert status.shards[0].store_failure == ""


@pytest.mark.parametrize("failure", [GONE, LOST], ids=["bucket", "head"])
async def test_local_copies_stay_where_the_store_may_have_lost_the_others(failure: StoreError) -> None:
    world = World()
    async with world.serving() as bench:
        await create(bench, {"local.retention.bytes": "1", "remote.copy.max.age.ms": "1"})
        await load(bench, world.clock, 30)
        await bench.client.admin.upload(["t"])
        engine = bench.server.engine
        local_retention = engine.passes.task("local-retention", engine.local.retention.run)
        world.store.refusal = failure
        with suppress(StoreError):
            bench.partition().shard.refresh()
        # A store that does not answer afterwards proves nothing new.
        world.store.refusal, world.store.is_away = None, True
        with suppress(StoreError):
            bench.partition().shard.refresh()
        before = bench.partition().local_log_start_offset
        local_retention()
        assert bench.partition().local_log_start_offset == before
        told = engine.passes.status("local-retention").last_outcome
        assert told is not None
        assert told.refusals["last-copy"] == 1
        world.store.is_away = False
        bench.partition().shard.refresh()
        local_retention()
        assert bench.partition().local_log_start_offset > before


async def test_a_catalog_that_cannot_be_read_is_no_outage_and_the_pass_says_what_waits() -> None:
    world = World()
    async with world.serving() as bench:
        await create(bench, {"remote.storage.enable": "false", "retention.bytes": str(SEGMENT_BYTES)})
        await load(bench, world.clock, 30)
        world.store.refusal = StoreCorruptError("the head is lost; restore it")
        outcome = bench.server.engine.local.retention.run()
        assert bench.partition().log_start_offset == 0
        assert outcome.refusals == {"unconfirmed": 1, "unreadable": 1}
        assert outcome.remark == (
            "topics that are not tiered wait for the catalog: the head is lost; restore it"
        )
        world.store.refusal = None


def _is_put(operation: Operation) -> bool:
    return operation.verb == "PUT"


def _is_of_a_shard(operation: Operation) -> bool:
    return operation.key.startswith("shards/")


@pytest.mark.parametrize("refuses", [_is_put, _is_of_a_shard], ids=["writes", "shards"])
@pytest.mark.parametrize("failure", [EXPIRED, StoreUnavailableError("the bucket is full", status=507)])
async def test_a_store_that_takes_no_commits_leaves_as_much_on_the_disk_as_an_outage(
    refuses: Callable[[Operation], bool], failure: StoreError
) -> None:
    """A bucket over its quota, or a policy that allows to read only: the catalog can be read."""
    word = StoreTrouble.of(failure).value
    world = World()
    async with world.serving() as bench:
        await create(bench, {"retention.bytes": str(RETAINED_BYTES), "remote.copy.max.age.ms": "1"})
        await load(bench, world.clock, 12)
        await bench.client.admin.upload(["t"])
        engine = bench.server.engine
        work = (
            engine.passes.task("upload", engine.tier.manager.upload_pass),
            engine.passes.task("remote-retention", engine.tier.manager.remote_retention_pass),
            engine.passes.task("local-retention", engine.local.retention.run),
        )
        world.store.refusal, world.store.refuses = failure, refuses
        for _ in range(6):
            await load(bench, world.clock, 12)
            for turn in work:
                turn()
            assert local_bytes(bench) <= RETAINED_BYTES + SEGMENT_BYTES
            with suppress(StoreError):
                bench.partition().shard.refresh()
        start = bench.partition().log_start_offset
        assert 60 < start < bench.partition().log_end_offset
        told = engine.passes.status("local-retention").last_outcome
        assert told is not None
        assert told.refusals == {"unconfirmed": 0, word: 1}
        assert told.remark.startswith("log starts moved on this disk only, they cannot be committed: ")
        world.store.refusal = None
        for _ in range(2):
            world.clock.advance(HOUR_MS)
            for turn in work:
                turn()
        told = engine.passes.status("local-retention").last_outcome
        assert told is not None
        assert (told.refusals, told.remark) == ({"unconfirmed": 0}, "")
        assert bench.partition().log_start_offset == committed(bench).log_start_offset >= start
        shown = [record.offset for record in (await bench.read_all("t"))[0]]
        assert shown == [*range(bench.partition().log_start_offset, 84)]


async def test_a_store_that_takes_objects_and_no_commits_gets_few_orphans() -> None:
    """A policy that refuses the heads: each pass sent an object that no commit refers to."""
    world = World()
    async with world.serving() as bench:
        await create(bench, {"remote.copy.max.age.ms": "1"})
        await load(bench, world.clock, 12)
        turn = bench.server.engine.tier.manager.upload_pass
        world.store.refusal = EXPIRED
        world.store.refuses = lambda one: _is_put(one) and one.key.endswith("/head")
        for _ in range(360):
            world.clock.advance(5000)
            with suppress(StoreAccessDeniedError):
                turn()
        orphans = [info.key for info in world.store.list("shards/0000/data/")]
        assert 2 < len(orphans) < 13, "half an hour"
        # More than a float can double, four days: `make simulate` waits for them.
        for _ in range(1_050 if IS_WHOLE else 0):
            world.clock.advance(300_000)
            with suppress(StoreAccessDeniedError):
                turn()
        world.store.refusal = None
        await bench.client.admin.upload(["t"])
        assert committed(bench).tiered_end_offset == 12, "who asks for it waits for nothing"
        await load(bench, world.clock, 12)
        world.clock.advance(5000)
        turn()
        assert committed(bench).tiered_end_offset > 12, "a success ends the wait"


async def test_commits_that_were_refused_by_a_store_that_takes_them_again_leave_it_the_decision() -> None:
    world = World()
    async with world.serving() as bench:
        await create(bench, {"retention.bytes": str(SEGMENT_BYTES)})
        await load(bench, world.clock, 30)
        engine = bench.server.engine
        world.store.refusal, world.store.refuses = EXPIRED, _is_put
        with pytest.raises(StoreAccessDeniedError):
            bench.partition().shard.metadata.raise_horizon(1)
        world.store.refusal = None
        bench.partition().shard.metadata.raise_horizon(1)
        engine.local.retention.run()
        assert bench.partition().log_start_offset == 0


async def test_segments_that_are_committed_go_by_local_retention_without_the_store() -> None:
    world = World()
    async with world.serving() as bench:
        await create(bench, {"local.retention.ms": str(HOUR_MS)})
        await load(bench, world.clock, 12)
        await bench.client.admin.upload(["t"])
        world.store.is_away = True
        world.clock.advance(HOUR_MS + 1)
        bench.server.engine.local.retention.run()
        marks = bench.partition().watermarks()
        assert (marks.log_start_offset, marks.local_log_start_offset) == (0, 12)


async def test_local_copies_of_compacted_records_stay_while_the_store_is_away() -> None:
    world = World()
    async with world.serving() as bench:
        await create(bench, {"cleanup.policy": "compact"})
        for _ in range(12):
            await bench.client.append("t", 0, [Record(0, world.clock.now_ms(), b"k", bytes(300))])
        await bench.client.admin.upload(["t"])
        [job] = await bench.client.admin.run_compaction(["t"])
        assert job.reason == ""
        world.store.is_away = True
        bench.server.engine.local.retention.run()
        assert bench.partition().watermarks().local_log_start_offset == 0, "readers need them"
        world.store.is_away = False
        world.store.refusal, world.store.refuses = EXPIRED, _is_of_a_shard
        with pytest.raises(StoreAccessDeniedError):
            bench.partition().shard.refresh()
        bench.server.engine.local.retention.run()
        assert bench.partition().watermarks().local_log_start_offset == 0, "though the catalog can be read"
        world.store.refusal = None
        bench.partition().shard.refresh()
        bench.server.engine.local.retention.run()
        assert bench.partition().watermarks().local_log_start_offset == 12


async def test_a_start_that_moved_in_an_outage_survives_a_restart_until_the_loss_is_on_record() -> None:
    world = World()
    async with world.serving() as bench:
        await create(bench, {"retention.ms": str(HOUR_MS), "remote.copy.max.age.ms": "1"})
        await load(bench, world.clock, 6)
        await bench.client.admin.upload(["t"])
        await load(bench, world.clock, 6)
        world.store.is_away = True
        world.clock.advance(HOUR_MS + 1)
        await load(bench, world.clock, 6)
        bench.server.engine.local.retention.run()
        start = bench.partition().log_start_offset
        assert 6 < start <= 12
        assert [record.offset for record in (await bench.read_all("t"))[0]] == [*range(start, 18)]
        assert committed(bench).log_start_offset == 0
    world.store.is_away = False
    async with world.serving() as bench:
        assert bench.partition().log_start_offset == start
        await bench.client.admin.upload(["t"])
        found = [
            (live.base_offset, live.end_offset, live.gap and live.gap.reason)
            for live in committed(bench).slices
        ]
        assert found[:2] == [(0, 6, None), (6, start, "expired")]
        assert found[2][0] == start
        assert bench.partition().log_start_offset == 0
        assert [record.offset for record in (await bench.read_all("t"))[0]] == [*range(6), *range(start, 18)]
        bench.server.engine.tier.manager.remote_retention_pass()
        assert bench.partition().log_start_offset >= start, "what has expired before goes with the slice"
        assert [record.offset for record in (await bench.read_all("t"))[0]] == [*range(start, 18)]


async def test_a_log_that_expired_whole_in_an_outage_gives_no_offset_twice_after_a_restart() -> None:
    world = World()
    async with world.serving() as bench:
        await create(bench, {"retention.ms": str(HOUR_MS)})
        await load(bench, world.clock, 6)
        bench.partition().log.roll()
        world.store.is_away = True
        world.clock.advance(HOUR_MS + 1)
        bench.server.engine.local.retention.run()
        assert bench.partition().log_start_offset == 6
    world.store.is_away = False
    async with world.serving() as bench:
        assert (bench.partition().log_start_offset, bench.partition().log_end_offset) == (6, 6)
        await load(bench, world.clock, 1)
        await bench.client.admin.upload(["t"])
        assert [record.offset for record in (await bench.read_all("t"))[0]] == [6]


async def test_a_clock_that_jumps_in_an_outage_moves_no_log_start() -> None:
    world = World()
    async with world.serving() as bench:
        await create(bench, {"retention.ms": str(HOUR_MS)})
        await load(bench, world.clock, 6)
        bench.partition().log.roll()
        world.store.is_away = True
        world.clock.set_wall_ms(world.clock.now_ms() + 2 * HOUR_MS)
        bench.server.engine.local.retention.run()
        assert bench.partition().log_start_offset == 0


async def test_the_store_decides_while_it_answers() -> None:
    """A log start of a tiered topic is committed first then."""
    world = World()
    async with world.serving() as bench:
        await create(bench, {"retention.bytes": str(SEGMENT_BYTES)})
        await load(bench, world.clock, 30)
        bench.server.engine.local.retention.run()
        assert bench.partition().log_start_offset == 0


async def test_a_configuration_that_was_not_followed_deletes_nothing_in_an_outage() -> None:
    world = World()
    async with world.serving() as bench:
        await create(bench, {"remote.storage.enable": "false", "retention.bytes": str(SEGMENT_BYTES)})
        await load(bench, world.clock, 30)
        # The server has read another configuration, which its logs do not have yet.
        catalog = bench.server.engine.topics.catalog
        altered = {**catalog.topics()["t"].config, "retention.bytes": "-1"}
        catalog.alter(catalog.topics()["t"].topic_id, config=altered)
        world.store.is_away = True
        bench.server.engine.local.retention.run()
        assert bench.partition().log_start_offset == 0
        world.store.is_away = False


async def test_an_upload_in_an_outage_fails_and_changes_nothing() -> None:
    world = World()
    async with world.serving() as bench:
        await create(bench, {"retention.bytes": str(SEGMENT_BYTES)})
        await load(bench, world.clock, 30)
        world.store.is_away = True
        bench.server.engine.local.retention.run()
        start = bench.partition().log_start_offset
        with pytest.raises(StoreUnavailableError):
            bench.server.engine.tier.manager.upload_pass()
        assert bench.partition().log_start_offset == start > 0
        world.store.is_away = False


@pytest.mark.parametrize("moment", ["copy_into", "_read"])
async def test_retention_that_overtakes_an_upload_says_that_the_next_pass_mends_it(moment: str) -> None:
    """The look at the store of local retention is older than that of the upload."""
    world = World()
    async with world.serving() as bench:
        await create(bench, {"retention.bytes": str(RETAINED_BYTES), "remote.copy.max.age.ms": "1"})
        await load(bench, world.clock, 12)
        await bench.client.admin.upload(["t"])
        await load(bench, world.clock, 30)
        world.clock.advance(HOUR_MS)
        engine = bench.server.engine
        upload = engine.passes.task("upload", engine.tier.manager.upload_pass)
        work = getattr(PartitionUpload, moment)

        def overtaken(self: PartitionUpload, *arguments: int) -> object:
            world.store.is_away = True
            engine.local.retention.run()
            world.store.is_away = False
            return work(self, *arguments)

        with patch.object(PartitionUpload, moment, overtaken):
            upload()
        [failure] = (engine.passes.status("upload").last_outcome or PassOutcome()).failures
        assert failure.startswith(f"{OVERTAKEN} offset=`12`")
        world.clock.advance(HOUR_MS)
        upload()
        assert engine.passes.status("upload").consecutive_failure_count == 0
        gaps = [(one.base_offset, one.gap.reason) for one in committed(bench).slices if one.gap is not None]
        assert gaps == [(12, "expired")]


FLOOR = {"log.dir.min.free.bytes": "1000"}
ROOMS = (999, 1249, 1250, 1000, 999)
"""Free bytes, one after the other."""


@pytest.mark.parametrize(
    ("config", "is_blocked"),
    [
        ({}, True),
        ({"remote.copy.backlog.policy": "keep"}, False),
        ({"remote.storage.enable": "false"}, True),
        ({"remote.storage.enable": "false", "remote.copy.backlog.policy": "drop"}, True),
        ({"remote.storage.enable": "false", "remote.copy.backlog.policy": "keep"}, False),
    ],
)
async def test_appends_are_refused_below_the_floor_by_the_topics_policy(
    config: dict[str, str], caplog: pytest.LogCaptureFixture, *, is_blocked: bool
) -> None:
    disk = FullFileSystem()
    store = MemoryObjectStore(ManualClock())
    async with service_bench("", filesystem=disk, store=store, config=FLOOR) as bench:
        await create(bench, config)
        await bench.append("t", [b"before"])
        appended: list[bool] = []
        refusals: list[LowDiskSpaceError] = []
        for room_bytes in ROOMS:
            disk.fill("/data")
            disk.room_bytes = room_bytes
            bench.server.engine.local.pressure.run()
            disk.fill(None)
            try:
                await bench.append("t", [b"more"])
            except LowDiskSpaceError as refusal:
                refusals.append(refusal)
                appended.append(False)
            else:
                appended.append(True)
            assert len((await bench.values("t"))[0]) == 1 + sum(appended), "a reader goes on"
        for one in refusals:
            assert one.retriable
            assert one.retry_delay_s == 1
            assert one.fields.keys() == {"topic", "partition", "free_bytes", "min_free_bytes"}
        assert appended == ([False, False, True, True, False] if is_blocked else [True] * 5)
        levels = [record.levelname for record in caplog.records if "log directory" in record.getMessage()]
        assert levels == ["ERROR", "WARNING", "ERROR"]


async def test_the_status_and_the_log_directories_say_that_space_is_short() -> None:
    disk, store = FullFileSystem(), MemoryObjectStore(ManualClock())
    async with service_bench("", filesystem=disk, store=store, config=FLOOR) as bench:
        found: list[tuple[int, int]] = []
        for room_bytes in ROOMS:
            press(bench, disk, room_bytes)
            status = await bench.client.admin.tier_status()
            [one] = (await bench.client.admin.describe_log_dirs()).log_dirs
            found.append((one.free_bytes, one.missing_free_bytes))
            is_short = one.missing_free_bytes > 0
            short = [values.ShortLogDir(one.path, room_bytes, 1250)] if is_short else []
            assert list(status.short_log_dirs) == short
            space = {
                sample.labels.get("log_directory"): sample.value
                for metric in of_space(bench.server.engine.local.pressure.space)
                for sample in metric.samples
                if sample.name == "stratalog_log_manager_log_directory_short_of_space"
            }
            assert space == {one.path: int(is_short)}
            for arguments in (("tier", "status"), ("log-dirs", "describe")):
                shown = (await bench.command(*arguments)).stdout
                assert ("refused by their topics' backlog policy" in shown) == is_short
        assert found == [(999, 251), (1249, 1), (1250, 0), (1000, 0), (999, 251)]


async def test_without_a_floor_nothing_is_refused() -> None:
    disk = FullFileSystem()
    store = MemoryObjectStore(ManualClock())
    async with service_bench("", filesystem=disk, store=store, config=FLOOR) as bench:
        await create(bench, {})
        disk.fill("/data")
        bench.server.engine.local.pressure.run()
        disk.fill(None)
        with pytest.raises(LowDiskSpaceError):
            await bench.append("t", [b"more"])
        await bench.client.admin.alter_configs({"log.dir.min.free.bytes": "0"})
        assert await bench.append("t", [b"more"]) == 0


FOR_EVER = {"retention.ms": "-1", "retention.bytes": "-1"}


def press(bench: ServiceBench, disk: FullFileSystem, room_bytes: int) -> None:
    """Run the pass that measures the disk, as if so little were free on it."""
    disk.fill("/data")
    disk.room_bytes = room_bytes
    bench.server.engine.local.pressure.run()
    disk.fill(None)


def fail_to_upload(bench: ServiceBench, disk: FullFileSystem) -> None:
    """Run the pass of uploads while the disk is short of space and the store is away."""
    disk.fill("/data")
    disk.room_bytes = 999
    with pytest.raises(StoreUnavailableError):
        bench.server.engine.tier.manager.upload_pass()
    disk.fill(None)


async def offsets(bench: ServiceBench) -> list[int]:
    return [record.offset for record in (await bench.read_all("t"))[0]]


async def test_drop_loses_the_oldest_that_is_not_uploaded_and_the_upload_goes_on_behind_the_gap() -> None:
    clock, disk = ManualClock(), FullFileSystem()
    store = AwayStore(MemoryObjectStore(clock))
    async with service_bench("", filesystem=disk, store=store, clock=clock, config=FLOOR) as bench:
        await create(bench, {"remote.copy.backlog.policy": "drop", "local.retention.ms": "-1", **FOR_EVER})
        await load(bench, clock, 6)
        await bench.client.admin.upload(["t"])
        await load(bench, clock, 12)
        store.is_away = True
        press(bench, disk, 999)
        # Only what the store has was dropped: that is enough.
        assert bench.partition().watermarks().local_log_start_offset > 0
        assert bench.partition().log.local_log.segments.start_offset <= bench.partition().tiered_end_offset
        tiered_end = bench.partition().tiered_end_offset
        press(bench, disk, 0)
        assert bench.partition().log.local_log.segments.start_offset <= tiered_end, "the store may take it"
        fail_to_upload(bench, disk)
        while bench.partition().log.local_log.segments.start_offset <= 9:
            press(bench, disk, 0)
        lost_end = bench.partition().log.local_log.segments.start_offset
        store.is_away = False
        assert await offsets(bench) == [*range(6), *range(lost_end, 18)], "before a commit says so"
        inside = await bench.read_all("t", start={TopicPartition("t", 0): 7})
        assert [record.offset for record in inside[0]] == [*range(lost_end, 18)]
        bench.server.engine.tier.manager.upload_pass()
        assert await offsets(bench) == [*range(6), *range(lost_end, 18)]
        [gap] = [live for live in committed(bench).slices if live.gap is not None]
        assert gap.gap is not None
        assert (gap.base_offset, gap.end_offset, gap.gap.reason) == (6, lost_end, "dropped_by_policy")
        await bench.client.admin.upload(["t"], delete_local=True)
        assert bench.partition().watermarks().local_log_start_offset == 18
        assert await offsets(bench) == [*range(6), *range(lost_end, 18)]
    async with service_bench("", filesystem=disk.killed(), store=store, clock=clock) as bench:
        assert await offsets(bench) == [*range(6), *range(lost_end, 18)]
    async with service_bench("", filesystem=MemoryFileSystem(), store=store, clock=clock) as bench:
        assert await offsets(bench) == [*range(6), *range(lost_end, 18)], "on another machine"


def local_start(bench: ServiceBench, topic: str = "t") -> int:
    return bench.partition(topic).log.local_log.segments.start_offset


def waiting_files(disk: FullFileSystem) -> list[str]:
    """Files of dropped segments that wait to be removed."""
    return [path for path in disk.inner.contents() if path.endswith(".deleted")]


@asynccontextmanager
async def short_of_space() -> AsyncGenerator[tuple[ServiceBench, FullFileSystem]]:
    """A server whose store is away, with a topic `t` of which half is uploaded; the rest may be lost."""
    clock, disk = ManualClock(), FullFileSystem()
    store = AwayStore(MemoryObjectStore(clock))
    async with service_bench("", filesystem=disk, store=store, clock=clock, config=FLOOR) as bench:
        await create(bench, {"remote.copy.backlog.policy": "drop", "local.retention.ms": "-1", **FOR_EVER})
        await load(bench, clock, 12)
        await bench.client.admin.upload(["t"])
        await load(bench, clock, 12)
        store.is_away = True
        fail_to_upload(bench, disk)
        yield bench, disk
        store.is_away = False


async def test_files_that_wait_to_be_removed_make_room_before_anything_is_lost() -> None:
    async with short_of_space() as (bench, disk):
        assert bench.partition().log.retention.delete_local_segments(ignore_retention=True) > 1
        assert waiting_files(disk)
        press(bench, disk, 999)
        assert local_start(bench) == bench.partition().tiered_end_offset == 12
        assert waiting_files(disk) == []


async def test_a_deleted_partition_makes_room_before_anything_is_lost() -> None:
    async with short_of_space() as (bench, disk):
        bench.partition().log.retention.delete_local_segments(ignore_retention=True)
        press(bench, disk, 999)
        logs = bench.server.engine.local.logs
        gone = TopicPartition("gone", 0)
        log = logs.open_log(gone, UUID(int=9), bench.partition().log.local_log.config)
        log.appender.append_as_leader(encode_batch([Record(0, 5, None, bytes(900))]), 1)
        logs.delete_log(gone)
        press(bench, disk, 999)
        assert local_start(bench) == 12


async def test_a_pass_that_has_dropped_enough_is_followed_by_none_that_drops_again() -> None:
    async with short_of_space() as (bench, disk):
        disk.fill("/data")
        bench.server.engine.local.pressure.run()
        assert waiting_files(disk) == [], "the space is free when the next pass measures"
        start = local_start(bench)
        for _ in range(3):
            bench.server.engine.local.pressure.run()
        disk.fill(None)
        assert local_start(bench) == start > 0


@pytest.mark.parametrize("policy", ["block", "keep"])
async def test_copies_of_uploaded_records_go_before_anything_is_lost_whatever_their_topics_policy(
    policy: str,
) -> None:
    clock, disk = ManualClock(), FullFileSystem()
    store = MemoryObjectStore(clock)
    async with service_bench("", filesystem=disk, store=store, clock=clock, config=FLOOR) as bench:
        small = {"segment.bytes": str(SEGMENT_BYTES), "local.retention.ms": "-1", **FOR_EVER}
        await bench.client.admin.create_topic("kept", 1, {"remote.copy.backlog.policy": policy, **small})
        for _ in range(2):
            await bench.client.append("kept", 0, [Record(0, clock.now_ms(), None, bytes(900))])
        await bench.client.admin.upload(["kept"])
        await create(bench, {"remote.copy.backlog.policy": "drop", **FOR_EVER})
        await load(bench, clock, 12)
        press(bench, disk, 999)
        assert (local_start(bench, "kept"), local_start(bench)) == (1, 0)
        assert [record.offset for record in (await bench.read_all("kept"))[0]] == [0, 1]


async def test_a_disk_short_of_space_keeps_the_copies_that_the_store_may_have_lost() -> None:
    clock, disk = ManualClock(), FullFileSystem()
    store = AwayStore(MemoryObjectStore(clock))
    async with service_bench("", filesystem=disk, store=store, clock=clock, config=FLOOR) as bench:
        await create(bench, {"local.retention.ms": "-1", **FOR_EVER})
        await load(bench, clock, 12)
        await bench.client.admin.upload(["t"])
        store.refusal = GONE
        with suppress(StoreError):
            bench.partition().shard.refresh()
        press(bench, disk, 0)
        assert local_start(bench) == 0
        store.refusal = None
        bench.partition().shard.refresh()
        press(bench, disk, 0)
        assert local_start(bench) > 0


async def test_a_reader_passes_no_lost_record_that_an_upload_may_still_commit() -> None:
    clock, disk = ManualClock(), FullFileSystem()
    store = AwayStore(MemoryObjectStore(clock))
    async with service_bench("", filesystem=disk, store=store, clock=clock, config=FLOOR) as bench:
        await create(bench, {"remote.copy.backlog.policy": "drop", **FOR_EVER})
        await load(bench, clock, 12)
        partition = bench.partition()
        log = partition.log
        store.is_away = True
        fail_to_upload(bench, disk)
        store.is_away = False
        log.begin_upload(6)
        press(bench, disk, 0)
        assert log.local_log.segments.start_offset == 0, "an upload needs the first segments"
        log.end_upload(is_settled=False)
        while log.local_log.segments.start_offset < 9:
            press(bench, disk, 0)
        lost_end = log.local_log.segments.start_offset
        with pytest.raises(StoreUnavailableError) as refused:
            partition.read_tiered(5, 1 << 20, Isolation.HIGH_WATERMARK)
        assert refused.value.fields["uploading_end_offset"] == 6
        assert partition.read_tiered(6, 1 << 20, Isolation.HIGH_WATERMARK).next_offset == lost_end
        log.end_upload(is_settled=True)
        assert partition.read_tiered(5, 1 << 20, Isolation.HIGH_WATERMARK).next_offset == lost_end


async def test_drop_loses_nothing_that_the_store_takes_and_refuses_appends_before_the_disk_is_full() -> None:
    clock, disk = ManualClock(), FullFileSystem()
    store = AwayStore(MemoryObjectStore(clock))
    async with service_bench("", filesystem=disk, store=store, clock=clock, config=FLOOR) as bench:
        await create(bench, {"remote.copy.backlog.policy": "drop", **FOR_EVER})
        await load(bench, clock, 12)
        press(bench, disk, 0)
        assert local_start(bench) == 0
        with pytest.raises(LowDiskSpaceError):
            await bench.append("t", [b"more"])
        press(bench, disk, 700)
        assert local_start(bench) == 0
        await bench.append("t", [b"above half of the floor"])
        disk.fill("/data")
        disk.room_bytes = 700
        bench.server.engine.tier.manager.upload_pass()
        disk.fill(None)
        assert bench.partition().tiered_end_offset >= 9, "what is rolled does not wait for a full object"
        press(bench, disk, 0)
        assert 0 < local_start(bench) <= bench.partition().tiered_end_offset
        assert not [live for live in committed(bench).slices if live.gap is not None]
        assert len(await offsets(bench)) == 13


async def test_a_topic_that_is_not_uploaded_has_its_losses_on_record_too() -> None:
    clock, disk = ManualClock(), FullFileSystem()
    store = MemoryObjectStore(clock)
    async with service_bench("", filesystem=disk, store=store, clock=clock, config=FLOOR) as bench:
        keys = {"remote.copy.backlog.policy": "drop", "remote.log.copy.disable": "true"}
        await create(bench, {**keys, **FOR_EVER})
        await load(bench, clock, 12)
        press(bench, disk, 0)
        lost_end = bench.partition().log.local_log.segments.start_offset
        assert lost_end > 0
        bench.server.engine.tier.manager.upload_pass()
        assert [(live.base_offset, live.end_offset) for live in committed(bench).slices] == [(0, lost_end)]
        assert await offsets(bench) == [*range(lost_end, 12)]


async def test_deleted_records_stay_deleted_after_an_outage() -> None:
    world = World()
    async with world.serving() as bench:
        await create(bench, {"retention.ms": str(HOUR_MS)})
        await load(bench, world.clock, 6)
        await bench.client.admin.upload(["t"])
        await load(bench, world.clock, 6)
        world.store.is_away = True
        world.clock.advance(HOUR_MS + 1)
        bench.partition().log.roll()
        bench.server.engine.local.retention.run()
        assert bench.partition().log_start_offset == 12
        world.store.is_away = False
        await bench.client.admin.delete_records("t", 0, 3)
        bench.server.engine.tier.manager.upload_pass()
        assert bench.partition().log_start_offset == 3
        assert await offsets(bench) == [3, 4, 5]


async def test_a_log_whose_first_segments_are_missing_goes_on_behind_a_gap() -> None:
    world = World()
    async with world.serving() as bench:
        await create(bench, FOR_EVER)
        await load(bench, world.clock, 3)
        await bench.client.admin.upload(["t"])
        await load(bench, world.clock, 9)
    names = sorted(name for name in world.disk.list_directory("/data/t-0") if name.endswith(".log"))
    for name in names[:3]:
        world.disk.unlink(f"/data/t-0/{name}")
    async with world.serving() as bench:
        begin = bench.partition().log.local_log.segments.start_offset
        assert begin > 3
        await bench.client.admin.upload(["t"])
        [gap] = [live for live in committed(bench).slices if live.gap is not None]
        assert gap.gap is not None
        assert (gap.base_offset, gap.end_offset, gap.gap.reason) == (3, begin, "missing_on_local_disk")
        assert await offsets(bench) == [0, 1, 2, *range(begin, 12)]
