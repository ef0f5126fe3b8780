"""The progress of a compaction while it runs: what it tells is what the store has seen."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from random import Random

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_progress import CompactionProgress, Transfer
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.plan.job_cost import cost_of
from stratalog.compaction.plan.job_gathering import JobGathering
from stratalog.compaction.plan.run_slices import RunSlices
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Fault, Operation
from tests.support.tiered.counting_object_store import CountingObjectStore
from tests.support.tiered.tiered_store import TieredStore

PARTITION_COUNT = 3
KEY_COUNT = 4
ROUND_COUNT = 2
TOPICS = ("one", "two")
SETTINGS = CompactionSettings(spool_directory="/spool")


class HurryingClock(ManualClock):
    """A clock whose time passes with each look."""

    def monotonic_s(self) -> float:
        self.advance(500)
        return super().monotonic_s()


class World:
    """Two compacted topics whose objects are apart, so that they have a job each."""

    def __init__(self) -> None:
        self.clock = HurryingClock()
        self.inner = MemoryObjectStore(self.clock)
        self.store = CountingObjectStore(self.inner)
        self.tiered = TieredStore(MemoryFileSystem(), self.store, self.clock, SequentialIds(1))
        for name in TOPICS:
            topic = self.tiered.catalog.create(name, PARTITION_COUNT, {"cleanup.policy": "compact"})
            tips = [TopicIdPartition(topic.topic_id, number) for number in range(PARTITION_COUNT)]
            for number in range(ROUND_COUNT):
                self.tiered.upload({tip: [self._batch(tip, number)] for tip in tips})
        self.tips = [
            TopicIdPartition(topic.topic_id, number)
            for topic in self.tiered.catalog.topics().values()
            for number in range(PARTITION_COUNT)
        ]
        self.told: list[tuple[CompactionProgress, tuple[CompactionReport, ...]]] = []
        self.data = self.tiered.layout.data_key("")
        self.get_count = 0

    def upload(self, number: int) -> None:
        """Another object with all partitions."""
        self.tiered.upload({tip: [self._batch(tip, number)] for tip in self.tips})

    def _batch(self, tip: TopicIdPartition, number: int) -> bytes:
        base_offset = self.tiered.partition(tip).tiered_end_offset
        # One key of its own, so that each slice keeps a record.
        keys = [*range(KEY_COUNT), KEY_COUNT + number]
        records = [Record(0, 1, b"%d" % key, b"%d" % number * 300) for key in keys]
        return encode_batch(records, base_offset=base_offset, leader_epoch=1)

    def run(self, topics: Sequence[str] | None = TOPICS, *, cut_off_count: int = 0) -> None:
        """Compact; the first so many GETs are cut off."""

        def plan(operation: Operation) -> Fault:
            is_of_data = operation.verb == "GET" and operation.key.startswith(self.data)
            self.get_count += is_of_data
            is_cut_off = is_of_data and 0 < self.get_count <= cut_off_count
            return Fault.IS_CUT_OFF if is_cut_off else Fault.NONE

        self.get_count = -1000
        compactor = self.tiered.compactor(FaultyObjectStore(self.store, Random(1), plan))
        # Opening the metadata reads directories.
        self.get_count = 0
        self.store.reset()
        compactor.run(
            topics, on_progress=lambda progress, reports: self.told.append((progress, tuple(reports)))
        )


def test_a_run_tells_what_the_store_has_seen() -> None:
    world = World()
    world.run()
    gets, puts = world.store.total("GET", world.data), world.store.total("PUT", world.data)
    last, reports = world.told[-1]
    assert last.transfer == Transfer(gets.requests, 0, puts.requests, gets.size_bytes, puts.size_bytes)
    assert last.transfer.get_count == sum(report.get_requests for report in reports) > 0
    assert last.transfer.put_count == sum(report.put_requests for report in reports) > 0
    assert last.transfer.read_bytes == sum(report.bytes_read for report in reports)
    partitions = PARTITION_COUNT * len(TOPICS)
    assert (last.done_partition_count, last.partition_count) == (partitions, partitions)
    assert (last.done_job_count, last.job_count) == (len(reports), len(reports))
    assert last.kept_record_count == (KEY_COUNT + ROUND_COUNT) * partitions
    assert last.dropped_record_count == KEY_COUNT * (ROUND_COUNT - 1) * partitions
    assert last.planned_read_bytes == last.transfer.read_bytes
    assert last.remaining_ms == 0


def test_a_run_tells_its_progress_within_a_job() -> None:
    world = World()
    world.run()
    told = [progress for progress, _ in world.told]
    assert told[0].transfer == Transfer()
    assert (told[0].done_job_count, told[0].remaining_ms) == (0, None)
    assert told[0].job_count > 0
    in_first = [one for one in told if one.done_job_count == 0]
    assert {one.done_partition_count for one in in_first} >= {0, 1, 2, PARTITION_COUNT}
    assert len({one.transfer.read_bytes for one in in_first}) > 4
    for before, after in itertools.pairwise(told):
        assert all(then <= now for then, now in zip(before.transfer, after.transfer, strict=True))
        assert before.done_partition_count <= after.done_partition_count <= after.partition_count
        assert before.elapsed_ms < after.elapsed_ms
        assert after.transfer.read_bytes <= after.planned_read_bytes
        assert after.transfer.read_bytes == 0 or after.remaining_ms is not None


def test_resumed_requests_are_counted_apart() -> None:
    world = World()
    world.run(cut_off_count=2)
    last, reports = world.told[-1]
    assert 0 < last.transfer.resumed_get_count <= 2
    assert sum(report.resumed_get_count for report in reports) == last.transfer.resumed_get_count
    assert last.transfer.get_count <= 2 * sum(report.inputs for report in reports)


@pytest.mark.parametrize("topics", [TOPICS, ("one",)])
def test_the_cost_of_a_job_is_what_it_takes(topics: Sequence[str]) -> None:
    world = World()
    compactor = world.tiered.compactor()
    costs = [cost_of(job, SETTINGS) for job in compactor.plan(topics).jobs]
    before_bytes = sum(live.ref.size_bytes for live in world.tiered.metadata.refresh().objects.values())
    world.store.reset()
    reports = compactor.run(topics)
    after_bytes = sum(live.ref.size_bytes for live in world.tiered.metadata.refresh().objects.values())
    for cost, report in zip(costs, reports, strict=True):
        assert cost.get_count == report.get_requests
        assert cost.put_count == report.put_requests
        assert report.output_bytes <= cost.written_bytes, "nothing was compacted before, so all may stay"
        assert report.bytes_read == cost.read_bytes
    assert before_bytes - after_bytes >= sum(cost.freed_bytes for cost in costs)


def test_of_a_compacted_partition_the_output_is_foretold_by_its_first_slice() -> None:
    world = World()
    compactor = world.tiered.compactor()
    compactor.run(TOPICS)
    for number in range(ROUND_COUNT, ROUND_COUNT + 3):
        world.upload(number)
    (job,) = compactor.plan(TOPICS).jobs
    cost = cost_of(job, SETTINGS)
    all_bytes = sum(run.data_bytes for run in job.runs)
    (report,) = compactor.run(TOPICS)
    assert report.output_bytes < cost.written_bytes < 0.9 * all_bytes


def test_large_outputs_take_a_put_for_each_part() -> None:
    world = World()
    (job, *_) = world.tiered.compactor().plan(TOPICS).jobs
    assert cost_of(job, SETTINGS).put_count == 1
    size_bytes = cost_of(job, SETTINGS).written_bytes
    smaller = dataclasses.replace(SETTINGS, max_job_bytes=size_bytes // 2)
    assert cost_of(job, smaller).put_count == 2, "so many objects"
    live = job.runs[0].slices[0]
    large = live._replace(entry=live.entry._replace(data_bytes=200 << 20))
    run = dataclasses.replace(job.runs[0], slices=RunSlices((large, *job.runs[0].slices[1:])))
    gathering = JobGathering(job.input_names)
    for one in (run, *job.runs[1:]):
        gathering.add(one)
    assert cost_of(dataclasses.replace(job, needs=gathering.needs), SETTINGS).put_count == 13 + 2, (
        "parts of 16 MiB, the beginning and the end"
    )


def test_a_plan_counts_no_more_records_of_a_slice_than_it_has_keys() -> None:
    """Before the first compaction of a partition, a plan once said that all of its records stay."""
    world = World()
    tip = world.tips[0]
    records = [Record(0, 1, b"%d" % (number % 4), bytes(300)) for number in range(400)]
    for _ in range(2):
        base_offset = world.tiered.partition(tip).tiered_end_offset
        world.tiered.upload({tip: [encode_batch(records, base_offset=base_offset, leader_epoch=1)]})
    job = next(one for one in world.tiered.compactor().plan(TOPICS).jobs if tip in one.partitions)
    cost = cost_of(job, SETTINGS)
    assert cost.written_bytes < cost.read_bytes // 10
    assert cost.freed_bytes > cost.read_bytes // 2


def test_behind_another_run_all_is_added_but_the_time_left() -> None:
    def progress(factor: int, remaining_ms: int | None) -> CompactionProgress:
        numbers = [factor * number for number in range(1, 9)]
        transfer = Transfer._make(factor * number for number in range(10, 15))
        return CompactionProgress._make([*numbers[:4], transfer, *numbers[4:], remaining_ms])

    assert progress(1, 10).behind(progress(10, None)) == progress(11, 10)
    assert progress(10, None).behind(progress(1, 10)) == progress(11, None)
