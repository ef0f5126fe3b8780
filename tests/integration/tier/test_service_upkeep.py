"""Plans, exclusions, verification, collection and caches of the tiers, over gRPC."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from stratalog.base.errors import StoreAccessDeniedError, UnknownTopicOrPartitionError
from stratalog.cli.output import utc_time
from stratalog.client import values
from stratalog.compaction.compactor import Compactor
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.remote.objects.object_format import FOOTER
from stratalog.remote.restore.metadata_scrub import FindingKind
from stratalog.remote.store_layout import IDENTITY_KEY
from stratalog.server.background import pass_rounds
from stratalog.server.background.pass_outcome import Backlog
from stratalog.server.background.pass_rounds import PassRounds
from stratalog.server.background.tier_outcomes import collection_backlog
from stratalog.server.metrics.server_metrics import ServerMetrics
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.gate import Gate
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench, until
from tests.support.tiered.shard_states import partitions_in
from tests.support.tiered.stores.away_store import AwayStore

COMPACTED = {"cleanup.policy": "compact", "retention.ms": "-1"}
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


async def fill(bench: ServiceBench, topic: str, round_count: int = 3) -> None:
    """An object with the same keys for each round."""
    for number in range(round_count):
        await bench.client.append(
            topic, 0, [Record(0, 1000 + number, key, b"%d" % number * 50) for key in (b"a", b"b")]
        )
        await bench.client.admin.upload([topic], delete_local=True)


async def test_a_plan_is_what_a_compaction_does(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        admin = bench.client.admin
        await admin.create_topic("keyed", 1, COMPACTED)
        await admin.create_topic("plain", 1)
        await admin.create_topic("local", 1, {"remote.storage.enable": "false"})
        await admin.create_topic("empty", 1, COMPACTED)
        for topic in ("keyed", "plain"):
            await fill(bench, topic)
        planned = await admin.plan_compaction()
        [job] = planned.jobs
        assert job.reason == values.CompactionReason.DIRTY
        [run] = job.runs
        assert (run.topic, run.partition, run.base_offset, run.end_offset) == ("keyed", 0, 0, 6)
        assert (run.slice_count, len(job.input_names), run.compacted) == (3, 3, True)
        idle = {one.topic: one.reasons for one in planned.idle_topics}
        assert sorted(idle) == ["empty", "local", "plain"]
        assert idle["local"][0].startswith("not tiered")
        assert idle["empty"][0].startswith("no records in the object store")
        assert "at least 4" in idle["plain"][0]
        assert await admin.plan_compaction() == planned, "it changes nothing"
        [done] = await admin.run_compaction()
        assert (done.input_count, done.input_bytes) == (len(job.input_names), job.input_bytes)
        again = await admin.plan_compaction(["keyed"])
        assert not again.jobs
        assert [(one.topic, list(one.reasons)) for one in again.idle_topics] == [
            ("keyed", ["compacted already"])
        ]


async def test_a_partition_that_fails_is_excluded_until_it_is_reset(tmp_path: Path) -> None:
    clock = ManualClock()
    bucket = MemoryObjectStore(clock)
    async with service_bench(tmp_path, store=bucket, clock=clock) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, COMPACTED)
        await fill(bench, "t")
        assert await admin.excluded_partitions() == []
        intact = damage(bucket)
        job, left_alone = await admin.run_compaction(["t"])
        assert job.outcome == left_alone.outcome == values.CompactionOutcome.REFUSED
        [excluded] = await admin.excluded_partitions()
        assert (excluded.topic, excluded.partition, excluded.failure_count) == ("t", 0, 1)
        assert excluded.since_ms == clock.now_ms() < excluded.until_ms
        metrics = ServerMetrics()
        metrics.compaction = bench.server.engine.tier.compaction
        found = values_of(metrics)
        assert {name: value for name, value in found.items() if "excluded" in name} == {
            "stratalog_compaction_excluded_partition_count": 1,
            "stratalog_compaction_excluded_since_timestamp_secs": excluded.since_ms / 1000,
        }
        shown = await bench.command("compaction", "status")
        first, header, row = shown.stdout.splitlines()
        assert first == "no compaction runs"
        assert header.split() == ["EXCLUDED", "FAILURES", "SINCE", "UNTIL", "REASON"]
        assert row.split()[:3] == ["t-0", "1", utc_time(excluded.since_ms)]
        assert row.endswith(excluded.reason)
        assert (await admin.tier_status()).excluded_partition_count == 1
        complaints = (await bench.command("tier", "status")).stdout.split("WHAT")[0]
        assert "compaction leaves 1 partition alone; `stratalog compaction excluded` says why" in complaints
        # A second failure is of the same exclusion.
        clock.advance(5 * 60_000)
        await admin.run_compaction(["t"])
        [still] = await admin.excluded_partitions()
        assert (still.since_ms, still.failure_count) == (excluded.since_ms, 2)
        assert excluded.reason in job.reason
        [idle] = (await admin.plan_compaction(["t"])).idle_topics
        assert idle.reasons == (excluded.reason,)
        for key, data in intact.items():
            bucket.put(key, data)
        assert await admin.reset_excluded_partition("t", 0)
        found = values_of(metrics)
        assert {value for name, value in found.items() if "excluded" in name} == {0}
        assert not await admin.reset_excluded_partition("t", 0)
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.reset_excluded_partition("t", 1)
        assert await admin.excluded_partitions() == []
        assert "leaves" not in (await bench.command("tier", "status")).stdout
        [job] = await admin.run_compaction(["t"])
        assert job.outcome == values.CompactionOutcome.COMMITTED


async def test_a_server_that_does_not_compact_says_since_when_it_is_due(tmp_path: Path) -> None:
    clock = ManualClock()
    async with service_bench(tmp_path, clock=clock) as bench:
        compaction = bench.server.engine.tier.compaction
        metrics = ServerMetrics()
        metrics.compaction = compaction
        await bench.client.admin.create_topic("t", 1, COMPACTED)
        await fill(bench, "t")
        await asyncio.to_thread(compaction.measure_pass)
        begin_ms = clock.now_ms()
        clock.advance(HOUR_MS)
        await asyncio.to_thread(compaction.measure_pass)
        found = values_of(metrics)
        assert found["stratalog_compaction_due_partition_count"] == 1
        assert found["stratalog_compaction_due_since_timestamp_secs"] == begin_ms / 1000
        assert found["stratalog_compaction_dirty_bytes"] > 0
        await bench.client.admin.run_compaction(["t"])
        await asyncio.to_thread(compaction.measure_pass)
        found = values_of(metrics)
        assert {found[name] for name in found if name.startswith("stratalog_compaction_")} == {0}


async def test_the_shards_of_a_server_share_the_limits_of_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most: list[int] = []
    run = PassRounds[int].run

    def noting(rounds: PassRounds[int], name: str, works: Any, max_at_work_count: int, *more: Any) -> Any:
        most.append(max_at_work_count)
        return run(rounds, name, works, max_at_work_count, *more)

    async with service_bench(tmp_path, shard_count=3) as bench:
        await bench.client.admin.alter_configs(
            {"remote.compaction.max.shards": "1", "remote.compaction.io.max.bytes.per.second": "1000"}
        )
        monkeypatch.setattr(PassRounds, "run", noting)
        await asyncio.to_thread(bench.server.engine.tier.compaction.compact_pass)
        assert most == [1]
        settings = (await asyncio.to_thread(bench.server.engine.tier.compaction.plan)).settings
        assert (settings.shard_count, settings.shard_bytes_per_s) == (3, 500)


async def test_a_long_compaction_of_a_shard_is_neither_a_failure_nor_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, run = Gate(), Compactor.run

    def held(compactor: Compactor, **terms: Any) -> Any:
        gate.pass_through()
        return run(compactor, **terms)

    monkeypatch.setattr(Compactor, "run", held)
    monkeypatch.setattr(pass_rounds, "PATIENCE_S", 0.1)
    monkeypatch.setattr(pass_rounds, "HANG_S", 0.0)
    async with service_bench(tmp_path, shard_count=2) as bench:
        compact = bench.server.engine.tier.compaction.compact_pass
        gate.close()
        try:
            outcome = await asyncio.to_thread(compact)
            assert (dict(outcome.failed_shards), outcome.is_postponed) == ({}, True)
        finally:
            gate.open()
        monkeypatch.setattr(pass_rounds, "PATIENCE_S", PATIENCE_S)
        outcome = await asyncio.to_thread(compact)
        assert (dict(outcome.failed_shards), outcome.is_postponed) == ({}, False)


async def test_a_compaction_of_a_read_only_store_is_not_logged_while_it_rests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    store = AwayStore(MemoryObjectStore(clock))
    store.refuses = lambda operation: operation.verb == "PUT"
    async with service_bench(tmp_path, store=store, clock=clock) as bench:
        await bench.client.admin.create_topic("a", 1, COMPACTED)
        await fill(bench, "a")
        engine = bench.server.engine
        compact = engine.passes.task("compaction", engine.tier.compaction.compact_pass)
        store.refusal = StoreAccessDeniedError("the bucket is read-only", status=403)
        for _ in range(10):
            await asyncio.to_thread(compact)
            clock.advance(10_000)
        status = engine.passes.status("compaction")
        assert status.consecutive_failure_count == 10
        lines = [one for one in caplog.messages if one.startswith("compaction failed, and is tried again")]
        assert len(lines) == 1
        store.refusal = None
        clock.advance(HOUR_MS)
        await asyncio.to_thread(compact)
        assert engine.passes.status("compaction").consecutive_failure_count == 0


def values_of(metrics: ServerMetrics) -> dict[str, float]:
    return {family.name: family.samples[0].value for family in metrics.collect()}


def damage(bucket: MemoryObjectStore) -> dict[str, bytes]:
    """Flip a byte of a value in each object; returns the intact objects by key."""
    intact: dict[str, bytes] = {}
    for number, info in enumerate(bucket.list("shards/0000/data/")):
        intact[info.key] = data = bucket.get(info.key).data
        value = b"%d" % number * 50
        bucket.put(info.key, data.replace(value, b"!" + value[1:]))
    return intact


async def test_a_verification_reads_all_and_finds_each_damage(tmp_path: Path) -> None:
    bucket = MemoryObjectStore(ManualClock())
    async with service_bench(tmp_path, store=bucket) as bench:
        admin = bench.client.admin
        for topic in ("a", "b"):
            await admin.create_topic(topic, 1, COMPACTED)
            await fill(bench, topic)
        await admin.run_compaction(["b"])
        slices = {topic: await admin.list_slices(topic, 0) for topic in "ab"}
        expected = sum(map(len, slices.values()))
        result = await admin.verify()
        assert (result.slice_count, result.finding_count, result.record_count) == (expected, 0, 6 + 2)
        assert result.size_bytes == sum(one.size_bytes for of_topic in slices.values() for one in of_topic)
        live = slices["a"][1]
        [key] = [one.key for one in bucket.list("") if one.key.endswith(live.object_name)]
        parts = parts_of_slice(bench, live.object_name)
        intact = bucket.get(key).data
        for position in range(0, len(intact), 7):
            flipped = bytearray(intact)
            flipped[position] ^= 0x10
            bucket.put(key, bytes(flipped))
            found = [
                (one.topic, one.base_offset, one.end_offset, one.object_name)
                for one in (await admin.verify(["a"])).findings
            ]
            # The header and the footer are the object's own; no checksum covers padding.
            of_object = [one for one in found if not one[0]]
            is_of_slice = any(position in part for part in parts)
            is_of_frame = position < parts[0].start or position >= len(intact) - FOOTER.size_bytes
            assert of_object == ([("", 0, 0, live.object_name)] if is_of_frame else []), position
            assert [one for one in found if one[0]] == (
                [("a", 2, 4, live.object_name)] if is_of_slice else []
            )
        bucket.delete_many([key])
        assert (await admin.verify(["a"])).finding_count == 1
        assert (await admin.verify(["b"])).finding_count == 0


def parts_of_slice(bench: ServiceBench, object_name: str) -> list[range]:
    """The positions of the batches, the key stream and the index of the object's slice, and of the
    directory."""
    [shard] = bench.server.engine.tier.shards
    state = shard.metadata.state()
    [live] = [
        one for part in partitions_in(state).values() for one in part.slices if one.object_name == object_name
    ]
    ref, entry, stream = state.objects[object_name].ref, live.entry, live.entry.key_stream
    assert stream is not None
    return [
        range(entry.data_position, entry.data_position + entry.data_bytes),
        range(stream.position, stream.position + stream.size_bytes),
        range(entry.index.position, entry.index.position + entry.index.size_bytes),
        range(ref.directory_position, ref.directory_position + ref.directory_bytes),
    ]


async def test_a_collection_deletes_what_its_dry_run_lists(tmp_path: Path) -> None:
    clock = ManualClock()
    bucket = MemoryObjectStore(clock)
    async with service_bench(tmp_path, filesystem=MemoryFileSystem(), store=bucket, clock=clock) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, COMPACTED)
        await fill(bench, "t")
        await admin.run_compaction(["t"])
        waiting = await admin.collect(dry_run=True)
        assert (waiting.dry_run, waiting.deleted_count, waiting.waiting_count) == (True, 0, 3)
        assert {one.due_time_ms for one in waiting.waiting_files} == {clock.now_ms() + DAY_MS}
        assert (await admin.collect()).deleted_count == 0, "the grace is not over"
        clock.advance(DAY_MS)
        listed = await admin.collect(dry_run=True)
        names = {one.name for one in listed.deleted_files}
        assert (listed.deleted_count, listed.waiting_count, len(names)) == (3, 0, 3)
        there = {info.key for info in bucket.list("shards/0000/data/")}
        assert {name for key in there for name in names if key.endswith(name)} == names, "nothing is deleted"
        deleted = await admin.collect()
        assert (deleted.dry_run, deleted.deleted_count) == (False, 3)
        assert {one.name for one in deleted.deleted_files} == names
        left = {info.key for info in bucket.list("shards/0000/data/")}
        assert {key for key in there if any(key.endswith(name) for name in names)} == there - left
        assert (await admin.verify()).finding_count == 0


async def test_a_collection_sweeps_orphans_though_there_is_no_topic_any_more(tmp_path: Path) -> None:
    clock = ManualClock()
    bucket = MemoryObjectStore(clock)
    async with service_bench(tmp_path, filesystem=MemoryFileSystem(), store=bucket, clock=clock) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, COMPACTED)
        await fill(bench, "t")
        orphans = {
            f"shards/0000/data/{1:020}-{UUID(int=1)}": (values.OrphanKind.DATA, 7),
            f"catalog/pages/{1:020}-{UUID(int=2)}": (values.OrphanKind.PAGE, 7),
            "scratch/probe": (values.OrphanKind.SCRATCH, 7),
        }
        for key in orphans:
            bucket.put(key, b"garbage")
        await bench.client.topics.delete("t")
        bench.server.engine.topics.manager.drop_leftovers()
        assert (await admin.collect()).orphans == ()
        verified = await bench.command("tier", "verify", "--quick")
        assert verified.exit_code == 0, "an upload under way looks the same"
        assert (
            "no commit refers to 3 files, 21B; `stratalog tier collect --dry-run` lists them"
            in verified.stdout
        )
        due = utc_time(clock.now_ms() + DAY_MS)
        assert (
            f"3 files of these, 21B, waiting, deleted not before {due}: uploads under way" in verified.stdout
        )
        listed = await admin.collect(dry_run=True)
        assert listed.orphan_files == ()
        assert {one.name: (one.kind, one.size_bytes) for one in listed.waiting_orphan_files} == orphans
        assert {one.due_time_ms for one in listed.waiting_orphan_files} == {clock.now_ms() + DAY_MS}
        clock.advance(DAY_MS)
        listed = await admin.collect(dry_run=True)
        assert {one.name: (one.kind, one.size_bytes) for one in listed.orphan_files} == orphans
        assert orphans.keys() <= {info.key for info in bucket.list("")}
        collected = await admin.collect()
        assert {one.kind: (one.orphan_count, one.size_bytes) for one in collected.orphans} == {
            kind: (1, size_bytes) for kind, size_bytes in orphans.values()
        }
        assert not orphans.keys() & {info.key for info in bucket.list("")}
        assert list(bucket.list("shards/0000/data/")) == []


async def test_a_periodic_pass_reports_what_it_did_and_what_waits(tmp_path: Path) -> None:
    clock = ManualClock()
    bucket = MemoryObjectStore(clock)
    async with service_bench(tmp_path, filesystem=MemoryFileSystem(), store=bucket, clock=clock) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, COMPACTED)
        await fill(bench, "t")
        bucket.put("scratch/probe", b"garbage")
        await admin.run_compaction(["t"])
        manager, since_ms = bench.server.engine.tier.manager, clock.now_ms()
        [shard] = bench.server.engine.tier.shards
        waiting_bytes = shard.metadata.waiting_files.size_bytes
        outcome = manager.collect_pass()
        assert (outcome.is_idle, any(outcome.refusals.values()), outcome.failures) == (True, False, ())
        backlog = Backlog(count=3, size_bytes=waiting_bytes, oldest_ms=since_ms)
        assert collection_backlog([shard.metadata]) == backlog
        clock.advance(DAY_MS)
        outcome = manager.collect_pass()
        done = {noun: amount for noun, amount in outcome.done.items() if amount}
        assert done == {"files": 3, "orphans": 1, "bytes": waiting_bytes + 7}
        clock.advance(DAY_MS)
        pin = shard.metadata.pin("scan", clock.now_ms() + 9 * DAY_MS)
        await bench.client.topics.delete("t")
        bench.server.engine.topics.manager.drop_leftovers()
        clock.advance(DAY_MS)
        outcome = manager.collect_pass()
        assert outcome.refusals["pinned"] >= 1
        shard.metadata.unpin(pin)
        assert manager.collect_pass().refusals["pinned"] == 0


async def test_a_collection_says_what_pins_hold_and_which_history_it_drops(tmp_path: Path) -> None:
    clock = ManualClock()
    bucket = MemoryObjectStore(clock)
    async with service_bench(
        tmp_path, filesystem=MemoryFileSystem(), store=bucket, clock=clock, history_ms=2 * DAY_MS
    ) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, COMPACTED)
        await fill(bench, "t")
        [shard] = bench.server.engine.tier.shards
        shard.metadata.fold()
        shard.metadata.pin("scan", clock.now_ms() + 2 * DAY_MS)
        await admin.run_compaction(["t"])
        shard.metadata.fold()
        clock.advance(DAY_MS)
        held = await admin.collect(dry_run=True)
        # The checkpoint of the claim is older than the pin.
        assert (held.deleted_count, held.expired_pin_count, held.trimmed_history_count) == (1, 0, 0)
        # Three objects, and files that folds replaced, which are counted and not named.
        assert len([one for one in held.waiting_files if one.pinned]) == 3
        assert held.pinned_count == held.waiting_count > 3
        clock.advance(DAY_MS)
        listed = await admin.collect(dry_run=True)
        assert listed.expired_pin_count == 1
        assert listed.deleted_count == held.deleted_count + held.waiting_count
        collected = await admin.collect()
        assert (collected.expired_pin_count, collected.pinned_count) == (1, 0)
        assert (collected.trimmed_history_count, collected.problems) == (2, ())


async def test_a_pass_with_a_wrong_clock_says_so(tmp_path: Path) -> None:
    clock = ManualClock()
    bucket = MemoryObjectStore(ManualClock(clock.now_ms() - DAY_MS))
    async with service_bench(tmp_path, store=bucket, clock=clock) as bench:
        outcome = bench.server.engine.tier.manager.collect_pass()
        assert (outcome.is_idle, outcome.refusals["clock"], outcome.refusals["pinned"]) == (True, 1, 0)


async def test_a_wrong_clock_is_shown_and_collects_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    bucket = MemoryObjectStore(ManualClock(clock.now_ms() - DAY_MS))
    async with service_bench(tmp_path, store=bucket, clock=clock) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, COMPACTED)
        await fill(bench, "t")
        await admin.run_compaction(["t"])
        result = await admin.collect(dry_run=True)
        assert (result.deleted_count, result.waiting_count) == (0, 3)
        assert "five minutes" in result.reason
        [shard] = (await admin.tier_status()).shards
        assert (shard.clock_skew_ms, shard.clock_checked_ms) == (DAY_MS, clock.now_ms())


async def test_caches_count_and_can_be_emptied(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1)
        await fill(bench, "t", 1)
        empty = await admin.describe_caches()
        assert [(one.shard, one.contents) for one in empty] == [
            (-1, values.CacheContents.DATA),
            (-1, values.CacheContents.INDEX),
        ]
        assert all(one.entry_count == one.size_bytes == one.hit_count == one.miss_count == 0 for one in empty)
        await bench.read_all("t")
        [data, index] = await admin.describe_caches()
        assert (data.entry_count, data.miss_count, index.entry_count) == (1, 1, 0), "no seek, no index"
        await bench.read_all("t")
        [again, _] = await admin.describe_caches()
        assert again.hit_count > data.hit_count
        assert again.miss_count == 1
        assert await admin.empty_caches() == data.size_bytes + index.size_bytes > 0
        assert [(one.entry_count, one.size_bytes) for one in await admin.describe_caches()] == [(0, 0)] * 2
        await bench.read_all("t")
        [data, _] = await admin.describe_caches()
        assert data.miss_count == 2


async def test_a_verification_of_the_metadata_finds_what_is_missing_without_reading(tmp_path: Path) -> None:
    bucket = MemoryObjectStore(ManualClock())
    async with service_bench(tmp_path, store=bucket) as bench:
        admin = bench.client.admin
        await admin.create_topic("a", 1)
        await fill(bench, "a")
        first = (await admin.list_slices("a", 0))[0]
        bucket.delete_many([f"shards/0000/data/{first.object_name}"])
        for metadata_only in (True, False):
            result = await admin.verify(metadata_only=metadata_only)
            assert (result.slice_count, result.finding_count) == (0 if metadata_only else 2, 1)
            [finding] = result.findings
            assert finding.kind is values.FindingKind.MISSING
            assert (finding.topic, finding.partition, finding.object_name) == ("a", 0, first.object_name)
            assert (finding.base_offset, finding.end_offset) == (first.base_offset, first.end_offset)
            last = bench.server.engine.tier.upkeep.verifications.last
            assert last is not None
            assert last.read_data is not metadata_only
            counts = {kind.value: count for kind, count in last.finding_counts.items() if count}
            assert counts == {"missing": 1}


async def test_a_lost_identity_of_the_store_is_a_finding_like_others(tmp_path: Path) -> None:
    bucket = MemoryObjectStore(ManualClock())
    async with service_bench(tmp_path, store=bucket) as bench:
        bucket.delete_many([IDENTITY_KEY])
        for arguments in (("--quick",), ()):
            shown = await bench.command("tier", "verify", *arguments)
            assert shown.exit_code == 1
            assert f"missing: document {IDENTITY_KEY}: the identity of the store is missing" in shown.stdout
            last = bench.server.engine.tier.upkeep.verifications.last
            assert last is not None
            assert last.finding_counts[FindingKind.MISSING] == 1


async def test_data_on_the_disk_of_the_server_survive_a_restart(tmp_path: Path) -> None:
    config = {"remote.read.disk.cache.bytes": str(1 << 20)}
    async with service_bench(tmp_path, config=config) as bench:
        await bench.client.admin.create_topic("t", 1)
        await fill(bench, "t", 1)
        records = await bench.read_all("t")
        [_, _, disk] = await bench.client.admin.describe_caches()
        assert (disk.contents, disk.hit_count) == (values.CacheContents.DISK, 0)
    async with service_bench(tmp_path, config=config) as bench:
        assert await bench.read_all("t") == records
        [_, _, disk] = await bench.client.admin.describe_caches()
        assert (disk.entry_count, disk.hit_count) == (1, 1)
        assert bench.server.engine.tier.upkeep.reads.gets.stats.get_count == 0, "no request for data"
    async with service_bench(tmp_path) as bench:
        assert await bench.read_all("t") == records
        assert len(await bench.client.admin.describe_caches()) == 2
    assert not (tmp_path / "data" / "cache").exists()


async def test_the_cache_gives_its_space_back_while_the_disk_is_short_of_it() -> None:
    disk = FullFileSystem()
    config = {"remote.read.disk.cache.bytes": str(1 << 20), "log.dir.min.free.bytes": "10000"}
    store = MemoryObjectStore(ManualClock())
    async with service_bench("", filesystem=disk, store=store, config=config) as bench:
        await bench.client.admin.create_topic("t", 1)
        await fill(bench, "t", 1)
        await bench.read_all("t")
        bench.server.engine.local.pressure.run()
        [_, _, cache] = await bench.client.admin.describe_caches()
        assert cache.entry_count == 1
        disk.fill("/data")
        outcome = bench.server.engine.local.pressure.run()
        assert outcome is not None
        assert outcome.done["freed-bytes"] >= cache.size_bytes
        assert disk.inner.list_directory("/data/cache") == []
        bench.server.engine.tier.upkeep.reads.ranges.clear()
        await bench.read_all("t")
        assert disk.inner.list_directory("/data/cache") == [], "nothing is written"
        disk.fill(None)
        bench.server.engine.local.pressure.run()
        bench.server.engine.tier.upkeep.reads.ranges.clear()
        await bench.read_all("t")
        # The cache writes behind the answer.
        await until(lambda: len(disk.inner.list_directory("/data/cache")) == 1)
        [_, _, cache] = await bench.client.admin.describe_caches()
        assert cache.entry_count == 1
