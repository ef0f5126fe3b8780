"""The uploader by itself: what is rolled reaches the bucket whatever durability its appends asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import InvalidConfigError, InvalidRequestError, PreconditionFailedError
from stratalog.compaction.compactor import REST_OF_PLAN
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.server.background.pass_outcome import PassOutcome
from stratalog.server.background.tier_manager import UPLOAD_TRY_COUNT
from stratalog.server.partitions.record_deletion import RecordDeletion, delete_records
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.store_faults import Operation
from tests.support.service.service_bench import ServiceBench, service_bench

SMALL_SEGMENTS = {"segment.bytes": "2000", "local.retention.ms": "0", "remote.copy.max.age.ms": "1"}


async def test_what_waits_for_its_upload_is_pending_before_it_is_fsynced(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 1, SMALL_SEGMENTS)
        for _ in range(50):
            await bench.append("t", [b"x" * 300])
        [log] = await bench.client.admin.describe_log("t")
        segments = await bench.client.admin.list_segments("t", 0)
        assert log.recovery_point < segments[-1].base_offset
        sealed_bytes = sum(segment.size_bytes for segment in segments if not segment.active)
        [topic] = (await bench.client.admin.tier_status()).topics
        assert topic.pending_upload_bytes == sealed_bytes > 0


async def test_a_pass_that_finds_nothing_to_do_reads_no_segment() -> None:
    disk, store = FaultyFileSystem(), MemoryObjectStore(SystemClock())
    for _ in range(2):
        async with service_bench("/", filesystem=disk, store=store) as bench:
            tiers = bench.server.engine.tier.manager
            if not await bench.client.admin.list_topics():
                await bench.client.admin.create_topic("t", 1, SMALL_SEGMENTS)
                for _ in range(50):
                    await bench.append("t", [b"x" * 300])
                await asyncio.to_thread(tiers.upload_pass)
            before = len(disk.trace)
            await asyncio.to_thread(tiers.upload_pass)
            assert not [line for line in disk.trace[before:] if line.startswith(("open_read", "read_"))]
            [log] = await bench.client.admin.describe_log("t")
            segments = await bench.client.admin.list_segments("t", 0)
            assert log.segment_count == len(segments) > 5
            assert log.tiered_end_offset == segments[-1].base_offset == log.log_end_offset


@pytest.mark.parametrize("deletion_count", [1, 2, 3])
async def test_an_upload_goes_on_where_records_are_deleted_meanwhile(
    tmp_path: Path, deletion_count: int
) -> None:
    """Each of the first objects is on its way when records beyond the tiered end are deleted."""
    bench: ServiceBench
    offsets = list(range(1, deletion_count + 1))

    def delete_meanwhile(operation: Operation) -> None:
        if operation.verb == "PUT" and "/data/" in operation.key and offsets:
            delete_records([RecordDeletion.of(bench.partition(), offsets.pop(0))])

    store = FaultyObjectStore(MemoryObjectStore(SystemClock()), Random(0), before=delete_meanwhile)
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        for number in range(5):
            await bench.append("t", [b"%d" % number])
        if deletion_count < UPLOAD_TRY_COUNT:
            assert (await bench.client.admin.upload(["t"])).slice_count == 1
        else:
            with pytest.raises(PreconditionFailedError):
                await bench.client.admin.upload(["t"])
            await bench.client.admin.upload(["t"])
        assert offsets == []
        [log] = await bench.client.admin.describe_log("t")
        assert (log.log_start_offset, log.tiered_end_offset) == (deletion_count, 5)
        [records] = await bench.read_all("t")
        assert [record.offset for record in records] == list(range(deletion_count, 5))


async def test_quiet_partitions_share_an_object_at_their_maximum_age_and_roll_once(tmp_path: Path) -> None:
    clock, count = ManualClock(), 30
    async with service_bench(tmp_path, clock=clock) as bench:
        tiers = bench.server.engine.tier.manager
        await bench.client.admin.create_topic("t", count)
        for number in range(count):
            await bench.append("t", [b"x"], partition=number)
            clock.advance(5_000)
        outcomes: list[PassOutcome] = []
        for _ in range(200):
            clock.advance(5_000)
            outcomes.append(await asyncio.to_thread(tiers.upload_pass))
        assert [one.done["slices"] for one in outcomes if one.done["slices"]] == [count]
        assert sum(one.done["objects"] for one in outcomes) == 1
        first = next(number for number, one in enumerate(outcomes) if one.done["objects"])
        assert (first + 1) * 5_000 + count * 5_000 == 300_000, "when the oldest record is five minutes old"
        logs = await bench.client.admin.describe_log("t")
        assert {log.segment_count for log in logs} == {2}
        assert {log.tiered_end_offset for log in logs} == {1}


async def test_a_pause_outlasts_a_restart_and_keeps_what_waits(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    config = {"retention.ms": "-1", "local.retention.ms": "0", "remote.copy.max.age.ms": "1"}
    async with service_bench(tmp_path, store=store) as bench:
        for name in ("t", "u"):
            await bench.client.admin.create_topic(name, 1, config)
            await bench.append(name, [b"1"])
        assert (await bench.command("tier", "pause", "t")).exit_code == 0
        await asyncio.to_thread(bench.server.engine.tier.manager.upload_pass)
        with pytest.raises(InvalidRequestError):
            await bench.client.admin.upload(["t"])
        assert (await bench.client.admin.upload()).slice_count == 0
        ends = [(await bench.client.admin.describe_log(name))[0].tiered_end_offset for name in ("t", "u")]
        assert ends == [0, 1]
        assert (await bench.command("tier", "pause")).exit_code == 0
    async with service_bench(tmp_path, store=store) as bench:
        tiers = bench.server.engine.tier.manager
        for name in ("t", "u"):
            await bench.append(name, [b"2"])
        await asyncio.to_thread(tiers.upload_pass)
        await bench.retain()
        assert [await bench.values(name) for name in ("t", "u")] == [[[b"1", b"2"]]] * 2
        [topic, _] = (await bench.client.admin.tier_status()).topics
        assert topic.lag_record_count == 2
        resumed = await bench.command("tier", "resume", "t")
        assert len(resumed.stdout.splitlines()) == 2, "it is still paused with all topics"
        assert (await asyncio.to_thread(tiers.upload_pass)).done["slices"] == 0
        await bench.command("tier", "resume")
        assert (await asyncio.to_thread(tiers.upload_pass)).done["slices"] == 2
        await bench.retain()
        assert [await bench.values(name) for name in ("t", "u")] == [[[b"1", b"2"]]] * 2


async def test_a_topic_that_is_copied_no_more_keeps_its_part_and_has_one_retention(tmp_path: Path) -> None:
    """KIP-950."""
    clock = ManualClock()
    config = {"segment.bytes": "1024", "retention.ms": "-1", "local.retention.ms": "0"}
    disable = {"remote.log.copy.disable": "true"}
    async with service_bench(tmp_path, clock=clock, store=MemoryObjectStore(clock)) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, config)
        time_ms = clock.now_ms()
        for number in range(3):
            await bench.client.append("t", 0, [Record(0, time_ms, b"k", b"%d" % number + b"x" * 600)])
        await admin.upload(["t"], delete_local=True)
        with pytest.raises(InvalidConfigError):
            await admin.alter_configs(disable, "t")
        await admin.alter_configs({**disable, "local.retention.ms": None}, "t")
        for number in range(3, 6):
            await bench.client.append("t", 0, [Record(0, time_ms + 1, b"k", b"%d" % number + b"x" * 600)])
        await bench.client.append("t", 0, [Record(0, time_ms + 1_000_000, b"k", b"6" + b"x" * 600)])
        clock.advance(400_000)
        tiers = bench.server.engine.tier.manager
        assert (await asyncio.to_thread(tiers.upload_pass)).done["slices"] == 0
        with pytest.raises(InvalidRequestError):
            await admin.upload(["t"])
        await bench.retain()
        assert [value[:1] for [part] in [await bench.values("t")] for value in part if value] == [
            b"%d" % number for number in range(7)
        ]
        [topic] = (await admin.tier_status()).topics
        assert (topic.pending_upload_bytes, topic.lag_record_count, topic.lag_ms) == (0, 0, -1)
        # One retention for both tiers: local segments go by it, although the store does not have them.
        await admin.alter_configs({"retention.ms": "100000"}, "t")
        await bench.retain()
        [log] = await admin.describe_log("t")
        assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (6, 6, 7)
        await admin.alter_configs({"remote.log.copy.disable": None}, "t")
        assert (await admin.upload(["t"])).slice_count == 1
        [log] = await admin.describe_log("t")
        assert log.tiered_end_offset == 7


async def test_an_idle_segment_is_rolled_and_compacted_within_the_lag(tmp_path: Path) -> None:
    clock = ManualClock()
    lag_ms = 60_000
    config = {
        "remote.copy.max.age.ms": str(2**53),
        "min.cleanable.dirty.ratio": "1",
        "local.retention.ms": "0",
    }
    bounded = {"cleanup.policy": "compact", "max.compaction.lag.ms": str(lag_ms)}
    async with service_bench(tmp_path, clock=clock) as bench:
        tier = bench.server.engine.tier
        await bench.client.admin.create_topic("t", 1, config | bounded)
        await bench.client.admin.create_topic("plain", 1, config)

        async def upload_and_end() -> list[int]:
            await asyncio.to_thread(tier.manager.upload_pass)
            names = ("t", "plain")
            return [(await bench.client.admin.describe_log(name))[0].tiered_end_offset for name in names]

        for number in range(2):
            record = Record(0, clock.now_ms(), b"k", b"%d" % number)
            for name in ("t", "plain"):
                await bench.client.append(name, 0, [record])
            assert await upload_and_end() == [number, 0]
            clock.advance(lag_ms + 1)
            assert await upload_and_end() == [number + 1, 0]
        outcome = await asyncio.to_thread(tier.compaction.compact_pass)
        assert (outcome.done["jobs"], outcome.done["partitions"]) == (1, 1)


async def test_a_compaction_that_rests_has_neither_succeeded_nor_failed(tmp_path: Path) -> None:
    clock = ManualClock()
    slow_ms: list[int] = []

    def answer_slowly(operation: Operation) -> None:
        if operation.verb == "GET" and slow_ms:
            clock.advance(slow_ms.pop())

    store = FaultyObjectStore(MemoryObjectStore(clock), Random(0), before=answer_slowly)
    async with service_bench(tmp_path, clock=clock, store=store) as bench:
        compact = bench.server.engine.tier.compaction.compact_pass
        slow_ms.append(10_000)
        waits = [(await asyncio.to_thread(compact)).is_postponed for _ in range(2)]
        assert slow_ms == []
        clock.advance(REST_OF_PLAN * 10_000)
        waits.append((await asyncio.to_thread(compact)).is_postponed)
        assert waits == [False, True, False]


async def test_tier_status_counts_the_dead_bytes_of_an_object_that_a_small_slice_keeps(
    tmp_path: Path,
) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 2)
        await bench.client.append("t", 0, [Record(0, 1, b"k", bytes(50_000))])
        await bench.client.append("t", 1, [Record(0, 1, b"k", b"small")])
        await bench.client.admin.upload(["t"])
        [shard] = (await bench.client.admin.tier_status()).shards
        assert shard.live_object_count == 1
        assert shard.dead_bytes < 100, "no more than what aligns the parts of an object"
        await bench.client.admin.delete_records("t", 0, before=1)
        [shard] = (await bench.client.admin.tier_status()).shards
        assert shard.live_object_count == 1
        assert 50_000 < shard.dead_bytes < shard.live_bytes
        assert "DEAD" in (await bench.command("tier", "status")).stdout
