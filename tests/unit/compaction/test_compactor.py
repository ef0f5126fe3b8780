"""Runs of the compactor: what it reports, what it leaves alone, and what it does when things go wrong."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest

from stratalog.base.errors import StoreUnavailableError, UnsupportedOperationError
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicIdPartition
from stratalog.compaction import partition_rewriter
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import CONFIG_CHANGED, REST_OF_PLAN, Compactor, CompactorConfig
from stratalog.compaction.kept_records import KeptRecords
from stratalog.compaction.partition_rewriter import PartitionRewriter
from stratalog.compaction.plan.compaction_job import PartitionRun
from stratalog.compaction.plan.partition_outlook import UNDATED_REFUSED
from stratalog.compaction.plan.planned_jobs import CompactionPlan
from stratalog.compaction.plan.planner import plan
from stratalog.compaction.run_end import end_of
from stratalog.compaction.small_runs import SmallRunCalls
from stratalog.log.log_config import LogConfig
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.batch import batches
from stratalog.record.builder import encode_batch
from stratalog.record.header import NO_TIMESTAMP
from stratalog.record.native.batch_filter import CompactedSlices
from stratalog.record.record import Record
from stratalog.remote.metadata.head.persistent_map import PersistentMap
from stratalog.remote.metadata.shard.live_slice import GapReason
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_judge import CONFIGURATION_CHANGED, LostRange
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.objects.slice_entry import LeaderEpoch
from stratalog.remote.retention.retention_units import slice_units
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Operation
from tests.support.cleaner.hasty_clock import HastyClock
from tests.support.compaction.time_to_horizon import time_to_horizon_ms
from tests.support.tiered.tiered_store import TieredStore

DAY_MS = 24 * 60 * 60 * 1000
Pairs = Sequence[tuple[str, str | None]]


class World:
    """One shard, one clock, a compacted topic with two partitions and a plain one."""

    def __init__(
        self, filesystem: FileSystem | None = None, clock: ManualClock | None = None, **config: str
    ) -> None:
        self.clock = clock or ManualClock()
        self.filesystem = filesystem or MemoryFileSystem()
        self.store = MemoryObjectStore(self.clock)
        self.tiered = TieredStore(self.filesystem, self.store, self.clock, SequentialIds(1))
        overrides = {"cleanup.policy": "compact"} | {name.replace("_", "."): x for name, x in config.items()}
        self.topic = self.tiered.catalog.create("state", 2, overrides)
        plain = self.tiered.catalog.create("events", 1)
        self.tip = TopicIdPartition(self.topic.topic_id, 0)
        self.other = TopicIdPartition(self.topic.topic_id, 1)
        self.plain = TopicIdPartition(plain.topic_id, 0)

    def batch(self, tip: TopicIdPartition, pairs: Pairs, *, epoch: int = 1) -> bytes:
        """A batch at the partition's tiered end."""
        base_offset = self.tiered.partition(tip).tiered_end_offset
        now_ms = self.clock.now_ms()
        records = [
            Record(0, now_ms, key.encode(), None if value is None else value.encode()) for key, value in pairs
        ]
        return encode_batch(records, base_offset=base_offset, leader_epoch=epoch)

    def upload(self, *pairs: tuple[str, str | None], tip: TopicIdPartition | None = None) -> str:
        tip = tip or self.tip
        return self.tiered.upload({tip: [self.batch(tip, pairs)]})

    def compact(self, topics: Sequence[str] | None = ("state",)) -> tuple[CompactionReport, ...]:
        return self.tiered.compactor().run(topics)

    def values(self, tip: TopicIdPartition | None = None) -> list[tuple[int, str, str | None]]:
        return [
            (
                record.offset,
                (record.key or b"").decode(),
                None if record.value is None else record.value.decode(),
            )
            for record in self.tiered.records(tip or self.tip)
        ]


def test_a_compaction_reports_what_it_read_and_wrote() -> None:
    world = World()
    world.upload(("a", "1"), ("b", "1"))
    world.upload(("a", "2"), ("c", None))
    (report,) = world.compact()
    assert world.values() == [(1, "b", "1"), (2, "a", "2"), (3, "c", None)]
    assert report.refused is None
    assert (report.inputs, report.outputs, report.partitions) == (2, 1, 1)
    assert (report.records_in, report.records_out, report.tombstones_removed) == (4, 3, 0)
    assert report.get_requests == 4
    assert 0 < report.bytes_read < report.input_bytes
    (live,) = world.tiered.metadata.refresh().objects.values()
    assert report.output_bytes == live.ref.size_bytes
    assert world.tiered.partition(world.tip).compacted_upto == 4


def test_each_part_between_gaps_is_compacted_by_itself() -> None:
    world = World(delete_retention_ms="0")
    metadata = world.tiered.metadata
    world.upload(("a", "1"))
    world.upload(("a", "2"))
    lost = LostRange(world.tip, 2, 7, GapReason.MISSING_ON_LOCAL_DISK)
    metadata.add_gaps([lost], metadata.state().epoch)
    world.upload(("a", "3"), ("b", None))
    world.upload(("a", "4"))
    world.upload(("a", None))
    for _ in range(2):
        assert [report.refused for report in world.compact()] == [None]
    assert world.values() == [(1, "a", "2"), (8, "b", None), (10, "a", None)], "tombstones stay"
    partition = world.tiered.partition(world.tip)
    assert [live.base_offset for live in partition.slices] == [0, 2, 7]
    assert partition.compacted_upto == 7, "a gap has no records"
    world.clock.advance(DAY_MS)
    assert all(report.inputs == 0 for report in world.compact())
    metadata.advance_log_start({world.tip: 2}, epoch=None, catalog_seq=None)
    # The first part covers the partition now, and stamps its tombstones before it drops them.
    world.compact()
    world.clock.advance(DAY_MS)
    world.compact()
    assert world.values() == []
    assert world.tiered.partition(world.tip).compacted_upto == 11


def test_a_tombstone_stays_for_its_retention_and_then_goes() -> None:
    world = World(delete_retention_ms=str(DAY_MS))
    world.upload(("a", "1"), ("hides-nothing", None))
    world.upload(("a", None))
    world.compact()
    tombstones = [(1, "hides-nothing", None), (2, "a", None)]
    assert world.values() == tombstones
    world.clock.advance(time_to_horizon_ms(DAY_MS) - 1)
    assert world.compact() == ()
    assert world.values() == tombstones
    world.clock.advance(1)
    (report,) = world.compact()
    assert report.tombstones_removed == 2
    assert world.values() == []
    partition = world.tiered.partition(world.tip)
    assert (partition.slices[0].base_offset, partition.slices[0].end_offset) == (0, 3)


def test_later_jobs_keep_the_first_horizon() -> None:
    world = World(delete_retention_ms=str(DAY_MS))
    world.upload(("a", None), ("b", "1"))
    world.compact()
    world.clock.advance(DAY_MS // 2)
    world.upload(("c", "1"))
    world.compact()
    world.clock.advance(time_to_horizon_ms(DAY_MS) - DAY_MS // 2)
    world.compact()
    assert world.values() == [(1, "b", "1"), (2, "c", "1")]


def test_a_clock_that_is_off_removes_no_tombstone() -> None:
    world = World(delete_retention_ms="0")
    world.upload(("a", None))
    world.compact()
    wrong = ManualClock(world.clock.now_ms() + 6 * 60 * 1000)
    tiered = world.tiered
    compactor = Compactor(
        world.filesystem,
        wrong,
        SequentialIds(2),
        tiered.shard(world.store, wrong),
        CompactionSettings(spool_directory="/tiered/compaction"),
    )
    assert compactor.run(["state"]) == ()
    world.upload(("b", "1"))
    (report,) = compactor.run(["state"])
    assert report.refused is None
    assert world.values() == [(0, "a", None), (1, "b", "1")]


def test_plain_and_compacted_topics_part_ways() -> None:
    world = World()
    for value in ("1", "2"):
        world.tiered.upload(
            {
                world.tip: [world.batch(world.tip, [("a", value)])],
                world.plain: [world.batch(world.plain, [("a", value)])],
            }
        )
    (report,) = world.compact()
    assert (report.inputs, report.outputs, report.partitions) == (2, 2, 2)
    assert world.values(world.plain) == [(0, "a", "1"), (1, "a", "2")]
    state = world.tiered.metadata.refresh()
    names = {state.partition(tip).slices[0].object_name for tip in (world.tip, world.plain)}
    assert names == set(state.objects)
    assert len(names) == 2


def test_plain_topics_of_different_retention_part_ways() -> None:
    world = World()
    tips = [
        TopicIdPartition(world.tiered.catalog.create(name, 1, {"retention.ms": retention}).topic_id, 0)
        for name, retention in (("hour", "3600000"), ("day", str(DAY_MS)), ("ever", "-1"))
    ]
    tips.append(world.plain)
    for value in "1234":
        world.tiered.upload({tip: [world.batch(tip, [("a", value)])] for tip in tips})
    (report,) = world.compact(None)
    assert (report.inputs, report.outputs, report.partitions) == (4, 4, 4)
    state = world.tiered.metadata.refresh()
    assert len({state.partition(tip).slices[0].object_name for tip in tips}) == 4
    assert world.values(tips[0]) == [(number, "a", str(number + 1)) for number in range(4)]


def test_a_batch_that_keeps_everything_is_copied_as_it_is() -> None:
    world = World()
    batch = world.batch(world.tip, [("a", "1"), ("b", "1")])
    world.tiered.upload({world.tip: [batch]})
    world.upload(("c", "1"))
    world.compact()
    (live,) = world.tiered.partition(world.tip).slices
    assert world.tiered.slice_data(live.object_name, live.entry).startswith(batch)


def test_leader_epochs_stay_and_offsets_of_batches_too() -> None:
    world = World()
    for epoch in (1, 1, 4):
        batch = world.batch(world.tip, [("a", str(epoch)), ("b", None), (f"c{epoch}", "1")], epoch=epoch)
        world.tiered.upload({world.tip: [batch]})
    world.compact()
    (live,) = world.tiered.partition(world.tip).slices
    assert live.entry.leader_epochs == (LeaderEpoch(1, 0), LeaderEpoch(4, 6))
    data = world.tiered.slice_data(live.object_name, live.entry)
    ranges = [(header.base_offset, header.last_offset, header.leader_epoch) for _, header in batches(data)]
    assert ranges == [(3, 5, 1), (6, 8, 4)]


def lag_of_server(server_config: Mapping[str, str]) -> LogConfig:
    """The defaults of a server whose only key is the lag of compaction."""
    return LogConfig(min_compaction_lag_ms=int(server_config.get("lag", 0)))


@pytest.mark.parametrize("how", ["altered", "strategy altered", "deleted", "default altered"])
def test_a_topic_that_changed_meanwhile_is_planned_again(how: str) -> None:
    world = World()
    world.upload(("a", "1"))
    world.upload(("a", "2"))

    def change(operation: Operation) -> None:
        if operation.verb == "PUT" and "/data/" in operation.key:
            if how == "altered":
                world.tiered.catalog.alter(world.topic.topic_id, config={"cleanup.policy": "delete"})
            elif how == "strategy altered":
                config = {**world.topic.config, "compaction.strategy": "timestamp"}
                world.tiered.catalog.alter(world.topic.topic_id, config=config)
            elif how == "default altered":
                world.tiered.catalog.alter_server_config(lambda _: {"lag": "1000"})
            else:
                world.tiered.catalog.delete(world.topic.topic_id)

    store = FaultyObjectStore(world.store, Random(0), before=change)
    before = world.values()
    (report,) = world.tiered.compactor(store, defaults=lag_of_server).run()
    assert report.refused == CONFIG_CHANGED
    assert world.values() == before


@pytest.mark.parametrize("how", ["altered", "deleted"])
def test_a_topic_that_changed_meanwhile_is_left_out_of_a_job_of_several(how: str) -> None:
    """Hundreds of partitions are not refused because one topic was altered while they were compacted."""
    world = World()
    other = world.tiered.catalog.create("state2", 1, {"cleanup.policy": "compact"})
    tip = TopicIdPartition(other.topic_id, 0)
    for value in "12":
        slices = {one: [world.batch(one, [("a", value)])] for one in (world.tip, tip)}
        world.tiered.upload(slices)

    def change(operation: Operation) -> None:
        if operation.verb == "PUT" and "/data/" in operation.key:
            if how == "altered":
                world.tiered.catalog.alter(world.topic.topic_id, config={"cleanup.policy": "delete"})
            else:
                world.tiered.catalog.delete(world.topic.topic_id)

    store = FaultyObjectStore(world.store, Random(0), before=change)
    before = world.values()
    reports = world.tiered.compactor(store).run(("state", "state2"))
    [report] = [one for one in reports if one.partitions]
    assert report.refused is None
    assert report.refused_partitions == ((world.tip, CONFIGURATION_CHANGED),)
    assert report.partitions == 1
    assert world.values() == before, "its inputs stay"
    assert world.values(tip) == [(1, "a", "2")]
    world.tiered.metadata.check()


def test_a_newer_catalog_at_the_last_moment_costs_another_look_and_no_job() -> None:
    """Another actor used the newest catalog between the look at it and the commit."""
    world = World()
    world.upload(("a", "1"))
    world.upload(("a", "2"))
    world.upload(("x", "1"), tip=world.plain)
    used: list[int] = []

    def use_newer(operation: Operation) -> None:
        is_commit = operation.verb == "PUT" and operation.key.endswith("shards/0000/head")
        if is_commit and not used:
            world.tiered.catalog.alter(world.plain.topic_id, config={"retention.ms": "5"})
            used.append(world.tiered.catalog.seq)
            starts = {world.plain: 1}
            world.tiered.metadata.advance_log_start(starts, epoch=None, catalog_seq=used[0])

    store = FaultyObjectStore(world.store, Random(0), before=use_newer)
    (report,) = world.tiered.compactor(store).run(("state",))
    assert used
    assert report.refused is None
    assert world.values() == [(1, "a", "2")]


def before_each_end(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Call `act` before the end of each compacted slice is made, by a kernel or without kernels."""
    small = SmallRunCalls.end_of

    def end_of_small(calls: SmallRunCalls, run: PartitionRun) -> SliceEnd:
        act()
        return small(calls, run)

    def end_of_run(*arguments: Any) -> SliceEnd:
        act()
        return end_of(*arguments)

    monkeypatch.setattr(SmallRunCalls, "end_of", end_of_small)
    monkeypatch.setattr(partition_rewriter, "end_of", end_of_run)


def test_a_partition_that_cannot_be_compacted_is_moved_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    pairs = [("a", "1"), ("a", "2")]
    world.tiered.upload({tip: [world.batch(tip, pairs)] for tip in (world.tip, world.other)})

    def refuse() -> None:
        if not refusals:
            refusals.append(True)
            raise UnsupportedOperationError("too much for one slice")

    refusals: list[bool] = []
    before_each_end(monkeypatch, refuse)
    failed, *_, done, left = world.compact()
    assert failed.refused is not None
    assert done.refused is None
    assert left.refused_partitions == ((world.tip, left.refused_partitions[0][1]),)
    assert "too much for one slice" in left.refused_partitions[0][1]
    assert (left.refused or "").startswith("1 partition stays as it is: ")
    assert len(world.values()) == 2
    assert len(world.values(world.other)) == 1


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_compaction_makes_no_undated_record_younger_where_retention_goes_by_time(policy: str) -> None:
    world = World(cleanup_policy=policy, retention_ms=str(7 * DAY_MS))

    def upload_undated() -> None:
        base_offset = world.tiered.partition(world.tip).tiered_end_offset
        records = [Record(0, NO_TIMESTAMP, b"a", b"1"), Record(1, NO_TIMESTAMP, b"b", b"1")]
        world.tiered.upload({world.tip: [encode_batch(records, base_offset=base_offset, leader_epoch=1)]})

    world.upload(("a", "1"), ("a", "2"))
    first_ms = world.clock.now_ms()
    upload_undated()
    reports: list[CompactionReport] = []
    for _ in range(5):
        world.clock.advance(DAY_MS)
        upload_undated()
        reports += world.compact()
    state = world.tiered.metadata.refresh()
    units = list(slice_units(state.partition(world.tip), state.objects))
    refused = {reason for report in reports for _, reason in report.refused_partitions}
    if policy == "compact":
        assert len(units) == 1
        assert refused == set()
    else:
        assert [unit.max_timestamp for unit in units[1:]] == [first_ms + day * DAY_MS for day in range(6)]
        assert world.values()[0] == (1, "a", "2"), "what is before the first of them is compacted"
        assert refused == {UNDATED_REFUSED}


def test_one_damaged_slice_does_not_hold_up_the_others() -> None:
    world = World()
    world.tiered.upload(
        {tip: [world.batch(tip, [("a", "1"), ("a", "2")])] for tip in (world.tip, world.other)}
    )
    damage(world.store, world)
    compactor = world.tiered.compactor()
    failed, done, left = compactor.run(["state"])
    assert "checksum" in (failed.refused or "")
    assert (done.refused, done.partitions) == (None, 1)
    assert [tip for tip, _ in left.refused_partitions] == [world.tip]
    assert len(world.values(world.other)) == 1
    # It is left alone for a while, then tried again.
    (left,) = compactor.run(["state"])
    assert left.inputs == 0
    world.clock.advance(5 * 60_000)
    assert any(report.inputs for report in compactor.run(["state"]))
    assert compactor.excluded()


def test_a_failure_is_listed_until_it_is_over() -> None:
    """It vanished whenever it was due for another try, and an alert that waits for minutes never came."""
    world = World()
    world.tiered.upload(
        {tip: [world.batch(tip, [("a", "1"), ("a", "2")])] for tip in (world.tip, world.other)}
    )
    damage(world.store, world)
    compactor = world.tiered.compactor()
    compactor.run()
    begin_ms = world.clock.now_ms()
    for failure_count in (1, 2, 3):
        found = compactor.exclusions()[world.tip]
        assert (found.since_ms, found.failure_count) == (begin_ms, failure_count)
        world.clock.advance(5 * 60_000)
        assert compactor.excluded() == {}
        assert list(compactor.exclusions()) == [world.tip]
        compactor.run()
    assert compactor.reset(world.tip)
    assert compactor.exclusions() == {}


def test_a_failure_is_over_once_no_plan_has_the_partition() -> None:
    """Its records were deleted: nothing would ever commit a job of it."""
    world = World()
    world.tiered.upload(
        {tip: [world.batch(tip, [("a", "1"), ("a", "2")])] for tip in (world.tip, world.other)}
    )
    damage(world.store, world)
    compactor = world.tiered.compactor()
    compactor.run()
    world.tiered.advance_log_start(world.tip, 2)
    compactor.run()
    assert list(compactor.exclusions()) == [world.tip]
    world.clock.advance(5 * 60_000)
    compactor.run(["state"])
    assert list(compactor.exclusions()) == [world.tip]
    compactor.run()
    assert compactor.exclusions() == {}


def test_a_defect_is_laid_to_one_partition(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An assertion once ended each run of the shard, without a word about the partition."""
    world = World()
    world.tiered.upload(
        {tip: [world.batch(tip, [("a", "1"), ("a", "2")])] for tip in (world.tip, world.other)}
    )

    def check() -> None:
        assert not broken.pop(0), "a defect"

    broken = [True, False]
    before_each_end(monkeypatch, check)
    compactor = world.tiered.compactor()
    failed, done, _ = compactor.run(["state"])
    assert "a defect" in (failed.refused or "")
    assert done.refused is None
    assert list(compactor.excluded()) == [world.tip]
    assert len(world.values(world.other)) == 1
    assert any(record.exc_info and "defect" in record.getMessage() for record in caplog.records)


def test_an_output_that_is_not_as_planned_is_not_stored_and_its_partition_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The proof comes late: the last partition was written by then."""
    world = World()
    world.upload(("a", "1"), ("a", "2"))
    world.tiered.upload({tip: [world.batch(tip, [("a", "3")])] for tip in (world.tip, world.other)})
    before = world.values()
    of_compacted, rewrite = KeptRecords.of_compacted, PartitionRewriter.rewrite
    broken = [1]

    def forgetful(kept: KeptRecords) -> KeptRecords:
        return kept._replace(record_count=kept.record_count + (broken.pop() if broken else 0))

    def of_compacted_forgetful(compacted: CompactedSlices) -> list[KeptRecords]:
        first, *others = of_compacted(compacted)
        return [forgetful(first), *others]

    def rewrite_forgetful(*arguments: Any) -> tuple[KeptRecords, int]:
        kept, removed_count = rewrite(*arguments)
        assert isinstance(kept, KeptRecords)
        return forgetful(kept), removed_count

    monkeypatch.setattr(KeptRecords, "of_compacted", of_compacted_forgetful)
    monkeypatch.setattr(PartitionRewriter, "rewrite", rewrite_forgetful)
    compactor = world.tiered.compactor()
    objects = list(world.store.list(world.tiered.layout.data_prefix))
    failed, *_ = compactor.run(["state"])
    assert "not those that were to be kept" in (failed.refused or "")
    assert list(compactor.excluded()) == [world.tip]
    stored = list(world.store.list(world.tiered.layout.data_prefix))
    assert len(stored) <= len(objects) + 1
    assert world.values() == before


def test_a_compactor_rests_after_a_plan_that_took_long() -> None:
    world = World()
    world.upload(("a", "1"), ("a", "2"))

    def answer_slowly(operation: Operation) -> None:
        if operation.verb == "GET" and slow_ms:
            world.clock.advance(slow_ms.pop())

    slow_ms: list[int] = []
    compactor = world.tiered.compactor(FaultyObjectStore(world.store, Random(0), before=answer_slowly))
    compactor.run()
    rests = [compactor.is_resting]
    slow_ms.append(10_000)
    compactor.plan()
    assert slow_ms == []
    for wait_ms in (REST_OF_PLAN * 10_000 - 1, 1):
        world.clock.advance(wait_ms)
        rests.append(compactor.is_resting)
    assert rests == [False, True, False], "only the second plan took time"


def failing_store(world: World, keys: set[str]) -> ObjectStore:
    """A store that answers no request for these objects."""

    def fail(operation: Operation) -> None:
        if operation.verb == "GET" and operation.key in keys:
            raise StoreUnavailableError("the store does not answer; try again", key=operation.key)

    return FaultyObjectStore(world.store, Random(0), before=fail)


def test_a_job_that_fails_on_the_store_lets_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    """One broken object once kept all others of its shard from being compacted, for ever."""
    world = World(cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    keys = {world.tiered.layout.data_key(world.upload(("a", str(value)))) for value in range(3)}
    world.upload(("a", "1"), ("a", "2"), tip=world.other)

    def one_object(settings: CompactionSettings) -> CompactionSettings:
        return dataclasses.replace(settings, max_job_bytes=1)

    bad: set[str] = set()
    compactor = world.tiered.compactor(failing_store(world, bad), one_object)
    bad |= keys
    reports = compactor.run()
    assert sorted(report.refused is None for report in reports if report.inputs) == [False, True]
    assert len(world.values(world.other)) == 1
    (line,) = [one.getMessage() for one in caplog.records if one.name.endswith("compactor")]
    assert "state-0" in line
    assert "does not answer" in line
    assert "the next run tries this one last" in line
    (report,) = compactor.run()
    assert report.failed_attempts == 2
    assert "no progress twice" in caplog.records[-1].message
    bad.clear()
    world.clock.advance(compactor.settings.retry_backoff_ms)
    while reports := compactor.run():
        assert all(report.refused is None for report in reports)
    assert len(world.values()) == 1


def test_two_jobs_that_fail_in_a_row_end_the_run() -> None:
    world = World(cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    keys: set[str] = set()
    for tip in (world.tip, world.other, world.plain):
        keys |= {world.tiered.layout.data_key(world.upload(("a", value), tip=tip)) for value in "1234"}

    def small(settings: CompactionSettings) -> CompactionSettings:
        return dataclasses.replace(settings, max_job_bytes=1)

    bad: set[str] = set()
    compactor = world.tiered.compactor(failing_store(world, bad), small)
    bad |= keys
    assert len(compactor.plan().jobs) > 1
    assert [report.refused is None for report in compactor.run()] == [False, False]


def test_settings_hold_from_the_next_job_on_and_limit_bytes() -> None:
    clock = HastyClock()
    world = World(clock=clock, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    limits = [1e9]

    def renewed(before: CompactionSettings) -> CompactionSettings:
        return dataclasses.replace(before, max_bytes_per_s=limits[0])

    compactor = Compactor(
        world.filesystem,
        world.clock,
        SequentialIds(2),
        world.tiered.shard(world.store),
        CompactionSettings(spool_directory="/tiered/compaction"),
        CompactorConfig(renewed=renewed),
    )

    def compacted_s() -> float:
        world.upload(("a", "1"), ("b", "1"))
        began_s = world.clock.monotonic_s()
        (report,) = compactor.run()
        assert report.refused is None
        return world.clock.monotonic_s() - began_s

    assert compacted_s() < 0.1
    limits[0] = 100.0
    assert compacted_s() > 5


def damage(store: ObjectStore, world: World) -> None:
    """Flip a bit in the last value of the first partition: every record is still framed well."""
    live = world.tiered.partition(world.tip).slices[0]
    key = world.tiered.layout.data_key(live.object_name)
    data = bytearray(store.get(key).data)
    data[live.entry.data_end_position - 2] ^= 1
    store.put(key, data)


def test_a_missing_input_is_corruption_where_the_head_is_fresh() -> None:
    world = World()
    name = world.upload(("a", "1"))
    compactor = world.tiered.compactor()
    world.store.delete_many([world.tiered.layout.data_key(name)])
    failed, left = compactor.run()
    assert "restore it" in (failed.refused or "")
    assert [tip for tip, _ in left.refused_partitions] == [world.tip]


def test_a_full_disk_is_reported_and_nothing_changes() -> None:
    disk = FullFileSystem()
    world = World(disk)
    world.upload(("a", "1"))
    world.upload(("a", "2"))
    before = world.values()

    def change(settings: CompactionSettings) -> CompactionSettings:
        return dataclasses.replace(settings, job_memory_bytes=0)

    gets: list[str] = []

    def fill(operation: Operation) -> None:
        """Fill the disk behind the reads of two directories, when the job has begun."""
        gets.extend([operation.key] if "/data/" in operation.key else [])
        if len(gets) > 2:
            disk.fill("/tiered/compaction")

    store = FaultyObjectStore(world.store, Random(0), before=fill)
    compactor = world.tiered.compactor(store, change)
    (report,) = compactor.run()
    assert os.strerror(errno.ENOSPC) in (report.refused or "")
    assert report.get_requests > 0
    assert world.values() == before
    # It is known to be full now.
    reports = compactor.run()
    assert "does not begin" in (reports[0].refused or "")
    assert sum(report.get_requests for report in reports) == 0
    assert "free at least" in compactor.excluded()[world.tip]
    disk.fill(None)
    compactor = world.tiered.compactor(change=change)
    (report,) = compactor.run()
    assert report.refused is None


def test_jobs_that_change_nothing_are_an_alarm_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the planner once had the same bytes written again each minute, and each job succeeded."""
    world = World(cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    world.upload(("a", "1"))
    compactor = world.tiered.compactor()
    assert [report.failed_attempts for report in compactor.run()] == [0]

    def forgetful(state: ShardState, *arguments: Any, **options: Any) -> CompactionPlan:
        rows = {tip: row._replace(compacted_upto=0) for tip, row in state.partitions.items()}
        state = dataclasses.replace(state, partitions=PersistentMap(rows.items()))
        return plan(state, *arguments, **options)

    monkeypatch.setattr("stratalog.compaction.compactor.plan", forgetful)
    counts = [[report.failed_attempts for report in compactor.run() if report.inputs] for _ in range(4)]
    assert counts == [[1], [2], [], []]
    (reason,) = compactor.excluded().values()
    assert "have changed nothing" in reason
    world.upload(("a", "2"))
    world.clock.advance(compactor.settings.retry_backoff_ms)
    assert [report.failed_attempts for report in compactor.run() if report.inputs] == [0]


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_commit_says_whether_records_go(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only then a newer configuration that was used meanwhile refuses it."""
    world = World(cleanup_policy=policy, min_cleanable_dirty_ratio="0")
    for value in "1234":
        world.upload(("a", value))
    said: list[bool] = []
    prepare_replace = MetadataLog.prepare_replace

    def noted(log: MetadataLog, *arguments: Any, **options: Any) -> Any:
        said.append(options["drops_records"])
        return prepare_replace(log, *arguments, **options)

    monkeypatch.setattr(MetadataLog, "prepare_replace", noted)
    world.tiered.compactor().run()
    assert said == [policy == "compact"]
