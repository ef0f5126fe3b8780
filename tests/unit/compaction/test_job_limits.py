"""Jobs without room for their scratch, or without time: they become smaller, and the smallest is excluded."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable
from random import Random

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor, CompactorConfig
from stratalog.compaction.plan.compaction_job import CompactionJob
from stratalog.compaction.plan.job_time import MAX_JOB_S, REST_OF_LATE_MS
from stratalog.compaction.scratch_budget import scratch_bytes
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.tier.collector import CollectorSettings
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Operation
from tests.support.cleaner.hasty_clock import HastyClock
from tests.support.tiered.tiered_store import TieredStore

DAY_S = 24 * 60 * 60
Change = Callable[[CompactionSettings], CompactionSettings]


class World:
    """A compacted topic with a large and a small partition, and maybe more."""

    def __init__(self, partition_count: int = 2) -> None:
        self.clock = HastyClock()
        self.store = MemoryObjectStore(self.clock)
        self.tiered = TieredStore(MemoryFileSystem(), self.store, self.clock, SequentialIds(1))
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        topic = self.tiered.catalog.create("state", partition_count, config)
        self.tips = [TopicIdPartition(topic.topic_id, number) for number in range(partition_count)]
        self.large, self.small = self.tips[:2]

    def upload(self, tip: TopicIdPartition, record_count: int) -> None:
        """An object with the same keys as each before, and values of 100 bytes."""
        self.tiered.upload({tip: self._batches(tip, record_count)})

    def upload_all(self, record_count: int) -> None:
        """An object with a slice of each partition."""
        self.tiered.upload({tip: self._batches(tip, record_count) for tip in self.tips})

    def _batches(self, tip: TopicIdPartition, record_count: int) -> list[bytes]:
        base_offset = self.tiered.partition(tip).tiered_end_offset
        records = [Record(0, 0, b"%d" % number, bytes(100)) for number in range(record_count)]
        return [encode_batch(records, base_offset=base_offset, leader_epoch=1)]

    def record_count(self, tip: TopicIdPartition) -> int:
        return len(self.tiered.records(tip))


def without_memory(max_scratch_bytes: int) -> Change:
    def change(before: CompactionSettings) -> CompactionSettings:
        return dataclasses.replace(before, job_memory_bytes=0, max_scratch_bytes=max_scratch_bytes)

    return change


def needs_of(compactor: Compactor) -> list[int]:
    return [scratch_bytes(job, compactor.settings) for job in compactor.plan().jobs]


def refusals(reports: tuple[CompactionReport, ...]) -> list[str]:
    return [report.refused for report in reports if report.refused is not None]


def test_a_job_without_room_becomes_smaller_until_it_fits() -> None:
    """It once stayed as it was, and was refused in every pass."""
    world = World()
    for _ in range(16):
        world.upload(world.large, 20)
    (whole,) = needs_of(world.tiered.compactor(change=without_memory(2**63 - 1)))
    compactor = world.tiered.compactor(change=without_memory(whole // 2))
    first, *others = compactor.run()
    assert first.refused is not None
    assert first.is_planned_again, "smaller jobs of the same run have done it"
    assert others
    assert {report.refused for report in others} == {None}
    assert not any(report.is_planned_again for report in others)
    for _ in range(8):
        compactor.run()
    assert world.record_count(world.large) == 20
    assert not compactor.exclusions()
    assert not compactor.plan().jobs


def test_a_partition_that_cannot_fit_is_excluded_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    for _ in range(4):
        world.upload(world.large, 200)
        world.upload(world.small, 2)
    enough = [4_000]

    def renewed(before: CompactionSettings) -> CompactionSettings:
        return without_memory(enough[0])(before)

    compactor = Compactor(
        MemoryFileSystem(),
        world.clock,
        SequentialIds(2),
        world.tiered.shard(world.store),
        CompactionSettings(spool_directory="/tiered/compaction"),
        CompactorConfig(renewed=renewed),
    )
    for _ in range(4):
        compactor.run()
    assert world.record_count(world.small) == 2, "the others go on"
    assert world.record_count(world.large) == 800
    ((tip, exclusion),) = compactor.exclusions().items()
    assert tip == world.large
    assert "no smaller job would gain anything" in exclusion.reason
    assert "raise remote.compaction.scratch.max.bytes from 4000 to at least" in exclusion.reason
    assert compactor.plan().refusals[0].topic_id_partition == world.large, "the plan says so"
    assert not compactor.plan().jobs, "it is not tried in every pass"
    smaller = [line.getMessage() for line in caplog.records if "is smaller" in line.getMessage()]
    (last,) = [line.getMessage() for line in caplog.records if "state-0" in line.getMessage()]
    assert smaller
    assert "is smaller" not in last
    assert "left alone" in last
    enough[0] = 1 << 30
    assert not compactor.plan().jobs
    assert compactor.reset(world.large)
    while compactor.plan().jobs:
        compactor.run()
    assert world.record_count(world.large) == 200


@pytest.mark.parametrize("is_of_disk", [False, True])
def test_the_memory_that_a_refusal_names_is_the_least_that_is_enough(is_of_disk: bool) -> None:
    world = World()
    for _ in range(4):
        world.upload(world.large, 200)

    def reports_of(memory_bytes: int) -> tuple[CompactionReport, ...]:
        filesystem = MemoryFileSystem(free_bytes=100 if is_of_disk else 1 << 40)
        settings = CompactionSettings(
            spool_directory="/tiered/compaction",
            job_memory_bytes=memory_bytes,
            max_scratch_bytes=2**63 - 1 if is_of_disk else 100,
        )
        shard = world.tiered.shard(world.store)
        return Compactor(filesystem, world.clock, SequentialIds(2), shard, settings).run()

    refusal = refusals(reports_of(20))[0]
    named = re.search(r"remote.compaction.job.memory.bytes from 20 to at least (\d+)", refusal)
    assert named is not None
    assert ("bytes on the disk" in refusal) == is_of_disk
    assert "scratch" in refusals(reports_of(int(named[1]) - 1))[0]
    assert not refusals(reports_of(int(named[1])))
    assert world.record_count(world.large) == 200


def test_many_partitions_that_share_objects_are_compacted_together_as_far_as_there_is_room() -> None:
    """One after the other would take a pass for each."""
    world = World(partition_count=40)
    for _ in range(4):
        world.upload_all(5)
    (whole,) = needs_of(world.tiered.compactor(change=without_memory(2**63 - 1)))
    compactor = world.tiered.compactor(change=without_memory(whole * 2 // 3))
    job_count = 0
    while jobs := compactor.plan().jobs:
        job_count += sum(report.refused is None for report in compactor.run())
        assert job_count < 12, [len(job.runs) for job in jobs]
    assert not compactor.exclusions()
    assert {world.record_count(tip) for tip in world.tips} == {5}


def slow(max_bytes_per_s: float) -> Change:
    return lambda before: dataclasses.replace(before, max_bytes_per_s=max_bytes_per_s)


def test_the_shards_of_a_server_share_its_limits() -> None:
    """Each of four had the whole limit. A limit that is named is that of the server, not of the part."""

    def change(shard_count: int, max_shards: int = 2) -> Change:
        return lambda before: dataclasses.replace(
            before, max_bytes_per_s=300.0, max_shards=max_shards, shard_count=shard_count
        )

    def seconds(of_shards: Change) -> float:
        world = World()
        for _ in range(2):
            world.upload(world.large, 200)
        begin_s = world.clock.monotonic_s()
        assert not refusals(world.tiered.compactor(change=of_shards).run())
        return world.clock.monotonic_s() - begin_s

    alone_s = seconds(change(1))
    assert seconds(change(2)) == pytest.approx(2 * alone_s, rel=0.05)
    # Two shards are compacted periodically, and a third one by hand.
    assert seconds(change(8)) == pytest.approx(3 * alone_s, rel=0.05)
    assert seconds(change(8, max_shards=1)) == pytest.approx(2 * alone_s, rel=0.05)
    world = World()
    for _ in range(2):
        world.upload(world.large, 200)

    def slow_parts(max_bytes_per_s: float) -> Change:
        return lambda before: dataclasses.replace(slow(max_bytes_per_s)(before), shard_count=3)

    compactor = world.tiered.compactor(change=slow_parts(0.5))
    named = re.search(r"from 0.5 to at least (\d+)", refusals(compactor.run())[0])
    assert named is not None
    assert not refusals(world.tiered.compactor(change=slow_parts(int(named[1]))).run())


def test_a_job_that_its_limits_make_too_long_does_not_begin() -> None:
    """Its upload was swept while it was open, and again the next time."""
    world = World()
    for _ in range(2):
        world.upload(world.large, 200)
    compactor = world.tiered.compactor(change=slow(0.5))
    began_s = world.clock.monotonic_s()
    reports = compactor.run()
    assert world.clock.monotonic_s() == began_s
    named = re.search(r"io.max.bytes.per.second from 0.5 to at least (\d+)", refusals(reports)[0])
    assert named is not None
    assert all(report.get_requests == 0 for report in reports)
    assert list(compactor.exclusions()) == [world.large]
    assert world.record_count(world.large) == 400
    too_slow = world.tiered.compactor(change=slow(int(named[1]) - 1)).run()
    assert "does not begin" in refusals(too_slow)[0], "the limit that is named is the least one"
    compactor = world.tiered.compactor(change=slow(int(named[1])))
    assert not refusals(compactor.run())
    assert world.record_count(world.large) == 200
    assert world.clock.monotonic_s() - began_s > 60


@pytest.mark.parametrize("object_count", [2, 16])
def test_a_job_that_turns_out_to_be_too_slow_ends_and_becomes_smaller(object_count: int) -> None:
    world = World()
    for _ in range(object_count):
        world.upload(world.large, 20)

    def wait(operation: Operation) -> None:
        if operation.verb == "GET" and "/data/" in operation.key:
            world.clock.advance(MAX_JOB_S * 100)

    store = FaultyObjectStore(world.store, Random(0), before=wait)
    compactor = world.tiered.compactor(store)
    jobs: list[CompactionJob] = []
    for _ in range(8):
        jobs += compactor.plan().jobs
        began_s = world.clock.monotonic_s()
        compactor.run()
        assert world.clock.monotonic_s() - began_s < 8 * DAY_S
    assert world.record_count(world.large) == 20
    assert len(jobs[0].inputs) == object_count
    assert (len(jobs) > 1) == (object_count == 16)


def test_a_partition_whose_least_job_runs_out_of_its_time_is_left_alone_for_a_day(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was tried again after five minutes, two hours each time."""
    world = World()
    for _ in range(16):
        world.upload(world.large, 20)
    slow_names = set(world.tiered.metadata.refresh().objects)
    for _ in range(4):
        world.upload(world.small, 20)

    def wait(operation: Operation) -> None:
        if operation.verb == "GET" and operation.key.rpartition("/")[2] in slow_names:
            world.clock.advance(MAX_JOB_S * 1000 + 1)

    store = FaultyObjectStore(world.store, Random(0), before=wait)
    compactor = world.tiered.compactor(store)
    tried: list[int] = []
    while not compactor.exclusions():
        tried += [report.inputs for report in compactor.run() if report.refused and report.inputs]
        assert len(tried) < 10
    assert tried[:2] == [20, 10], "the next one is half as large"
    assert all(two < one for one, two in itertools.pairwise(tried)), "each one is smaller"
    compactor.run()
    assert world.record_count(world.small) == 20, "the others go on"
    ((tip, exclusion),) = compactor.exclusions().items()
    assert (tip, exclusion.failure_count) == (world.large, 1)
    assert "no smaller job would gain anything: a compaction job takes too long" in exclusion.reason
    ((refused, reason),) = compactor.plan().refusals
    assert (refused, reason) == (world.large, exclusion.reason)
    assert any(
        "state-0" in one.getMessage() and "left alone for 86400 s" in one.getMessage()
        for one in caplog.records
    )
    end_ms = exclusion.since_ms + REST_OF_LATE_MS
    assert exclusion.until_ms == end_ms
    world.clock.advance(end_ms - world.clock.now_ms() - 1)
    began_s = world.clock.monotonic_s()
    compactor.run()
    assert world.clock.monotonic_s() == began_s, "no job begins"
    world.clock.advance(1)
    compactor.run()
    assert compactor.exclusions()[world.large].failure_count == 2
    slow_names.clear()
    assert compactor.reset(world.large)
    for _ in range(8):
        compactor.run()
    assert not compactor.exclusions()
    assert world.record_count(world.large) == 20


def test_the_collector_waits_for_twice_as_long_as_a_job_may_take() -> None:
    assert CollectorSettings().grace_ms >= 2 * MAX_JOB_S * 1000
