"""Jobs that wait for others of their plan, or for a limit: log starts and clocks move before their commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_progress import Transfer
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import INPUTS_GONE, Compactor, CompactorConfig
from stratalog.compaction.job_execution import JobExecution, JobOrder, JobResult
from stratalog.compaction.plan.job_time import MAX_JOB_MS
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.replace_judge import MAX_LISTED_IN_REPLACE
from stratalog.remote.metadata.shard.shard_judge import MANY_CLIPPED, RECORDS_DELETED
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_store import TieredStore

HOUR_MS = 3_600_000
VERSIONS = {"compaction.strategy": "header", "compaction.strategy.header": "version"}


class World:
    """One shard, one clock, and a compacted topic with two partitions."""

    def __init__(self, **config: str) -> None:
        self.clock = ManualClock()
        self.filesystem = MemoryFileSystem()
        self.store = MemoryObjectStore(self.clock)
        self.tiered = TieredStore(self.filesystem, self.store, self.clock, SequentialIds(1))
        topic = self.tiered.catalog.create("state", 2, {"cleanup.policy": "compact"} | config)
        self.tip = TopicIdPartition(topic.topic_id, 0)
        self.other = TopicIdPartition(topic.topic_id, 1)

    def upload(self, *records: tuple[bytes, bytes | None, int], tip: TopicIdPartition | None = None) -> None:
        """One batch of records with versions."""
        tip = tip or self.tip
        made = [
            Record(number, self.clock.now_ms(), key, value, (("version", version.to_bytes(8, "big")),))
            for number, (key, value, version) in enumerate(records)
        ]
        base_offset = self.tiered.partition(tip).tiered_end_offset
        self.tiered.upload({tip: [encode_batch(made, base_offset=base_offset, leader_epoch=1)]})

    def values(self, tip: TopicIdPartition | None = None) -> Sequence[tuple[int, bytes | None]]:
        tip = tip or self.tip
        start_offset = self.tiered.partition(tip).log_start_offset
        return [(one.offset, one.value) for one in self.tiered.records(tip) if one.offset >= start_offset]

    def compactor(self, meanwhile: Callable[[], None], max_job_bytes: int = 1 << 30) -> Compactor:
        """A compactor of which each job waits while `meanwhile` happens."""

        class LateExecution(JobExecution):
            def execute(self, on_run: Callable[[int, int], None] = lambda _in, _out: None) -> JobResult:
                meanwhile()
                return super().execute(on_run)

        def late(order: JobOrder, _stop: StopSignal, _note: Callable[[Transfer], None]) -> JobExecution:
            return LateExecution(self.filesystem, self.clock, SequentialIds(9), self.store, order)

        settings = CompactionSettings(spool_directory="/late", max_job_bytes=max_job_bytes)
        config = CompactorConfig(execution_elsewhere=late)
        return Compactor(
            self.filesystem, self.clock, SequentialIds(3), self.tiered.shard(self.store), settings, config
        )


@pytest.mark.parametrize("is_one_slice", [True, False])
def test_a_record_that_is_deleted_before_the_commit_beats_no_other(is_one_slice: bool) -> None:
    world = World(**VERSIONS)
    best, further = (b"k", b"best", 9), (b"other", b"further", 9)
    for batch in [[best, further]] if is_one_slice else [[best], [further]]:
        world.upload(*batch)
    world.upload((b"k", b"left", 1))
    world.upload((b"k", b"1", 1), (b"k", b"2", 2), tip=world.other)

    def delete_the_best() -> None:
        world.tiered.advance_log_start(world.tip, 1)
        assert world.values() == [(1, b"further"), (2, b"left")]

    (report,) = world.compactor(delete_the_best).run(["state"])
    assert report.refused_partitions == ((world.tip, RECORDS_DELETED),)
    assert world.values() == [(1, b"further"), (2, b"left")], "readers have seen them alone"
    assert world.values(world.other) == [(1, b"2")], "its log start has not moved"
    world.tiered.compactor().run(["state"])
    assert world.tiered.partition(world.tip).compacted_upto == 3, "the next plan takes it again"
    assert world.values() == [(1, b"further"), (2, b"left")]


def test_a_job_that_is_refused_as_a_whole_says_so() -> None:
    world = World(**VERSIONS)
    world.upload((b"k", b"best", 9), (b"k", b"left", 1))
    (report,) = world.compactor(lambda: world.tiered.advance_log_start(world.tip, 1)).run(["state"])
    assert report.refused == INPUTS_GONE


@pytest.mark.parametrize("has_other", [False, True])
def test_a_partition_that_each_job_loses_is_an_alarm_until_one_does_not(
    has_other: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its work is wasted for ever, and neither a failure nor an alarm once said so."""
    world = World(**VERSIONS)
    for number in range(12):
        world.upload((b"k", b"%d" % number, 99 - number))
    moves = iter(range(1, 20))
    is_moving = True

    def delete_records() -> None:
        if is_moving:
            world.tiered.advance_log_start(world.tip, next(moves))

    compactor = world.compactor(delete_records)

    def run() -> CompactionReport:
        caplog.clear()
        if has_other:
            world.upload((b"k", b"1", 1), (b"k", b"2", 2), tip=world.other)
        (report,) = compactor.run(["state"])
        assert (report.refused is None) == (has_other or not is_moving)
        assert report.failed_attempts == 0, "to lose a race is no failure"
        return report

    for lost_count in (1, 2, 3, 4):
        report = run()
        assert (report.lost_races, report.makes_no_progress) == (lost_count, lost_count >= 3)
        lines = [one.getMessage() for one in caplog.records if "no progress" in one.getMessage()]
        assert len(lines) == report.makes_no_progress
        assert all("`state-0`" in line and f"{lost_count} times in a row" in line for line in lines)
    is_moving = False
    assert run().lost_races == 0
    is_moving = True
    world.upload((b"k", b"again", 1))
    assert run().lost_races == 1, "it counts anew"


def test_by_offset_a_deleted_record_refuses_nothing() -> None:
    """The last record of a key goes last."""
    world = World()
    world.upload((b"k", b"1", 0), (b"k", b"2", 0), (b"other", b"3", 0))
    (report,) = world.compactor(lambda: world.tiered.advance_log_start(world.tip, 1)).run(["state"])
    assert (report.refused, report.refused_partitions) == (None, ())
    assert world.values() == [(1, b"2"), (2, b"3")]


def test_a_tombstone_stays_for_its_time_from_the_commit_on() -> None:
    """Readers see the older value until then."""
    world = World(**{"delete.retention.ms": str(HOUR_MS)})
    world.upload((b"k", b"value", 0), (b"k", None, 0))
    world.compactor(lambda: world.clock.advance(MAX_JOB_MS)).run(["state"])
    assert world.values() == [(1, None)]
    world.clock.advance(HOUR_MS - 1)
    world.tiered.compactor().run()
    assert world.values() == [(1, None)]
    world.clock.advance(1)
    world.tiered.compactor().run()
    assert world.values() == []


def test_the_time_of_a_tombstone_begins_with_its_own_job() -> None:
    """The jobs of a plan follow one another, and no limit bounds their time together."""
    world = World(**{"delete.retention.ms": str(HOUR_MS)})
    for tip in (world.tip, world.other):
        world.upload((b"k", b"value", 0), (b"k", None, 0), tip=tip)
    compactor = world.compactor(lambda: world.clock.advance(MAX_JOB_MS), max_job_bytes=1)
    assert [report.refused for report in compactor.run(["state"])] == [None, None]
    horizons_ms = [
        world.tiered.partition(tip).slices[0].entry.earliest_delete_horizon_ms or 0
        for tip in (world.tip, world.other)
    ]
    assert abs(horizons_ms[1] - horizons_ms[0]) == MAX_JOB_MS
    assert max(horizons_ms) == world.clock.now_ms() + HOUR_MS


def test_a_job_that_is_too_late_for_its_horizons_commits_nothing() -> None:
    world = World(**{"delete.retention.ms": str(HOUR_MS)})
    world.upload((b"k", b"value", 0), (b"k", None, 0))
    compactor = world.compactor(lambda: world.clock.advance(MAX_JOB_MS + 1))
    (report, *_) = compactor.run(["state"])
    assert "takes too long" in (report.refused or "")
    assert world.values() == [(0, b"value"), (1, None)]


def test_a_job_of_a_machine_that_was_suspended_commits_nothing() -> None:
    """Monotonic time stands still meanwhile, and that of readers does not."""
    world = World(**{"delete.retention.ms": str(HOUR_MS)})
    world.upload((b"k", b"value", 0), (b"k", None, 0))
    suspended_ms = [MAX_JOB_MS + 1]
    compactor = world.compactor(
        lambda: world.clock.set_wall_ms(world.clock.now_ms() + (suspended_ms.pop() if suspended_ms else 0))
    )
    (report, *_) = compactor.run(["state"])
    assert "was suspended" in (report.refused or "")
    assert world.values() == [(0, b"value"), (1, None)]
    compactor.run(["state"])
    world.clock.advance(HOUR_MS - 1)
    world.tiered.compactor().run(["state"])
    assert world.values() == [(1, None)], "the next run stamps it with the time of its own"


def test_partitions_whose_slices_are_deleted_during_each_job_keep_no_other_from_its_commit() -> None:
    """Readers of topics delete what they have read. A job with 151 such partitions was never committed."""
    world = World()
    read = world.tiered.catalog.create("read", MAX_LISTED_IN_REPLACE + 10)
    tips = [TopicIdPartition(read.topic_id, number) for number in range(MAX_LISTED_IN_REPLACE + 10)]
    record = Record(0, world.clock.now_ms(), b"k", b"v")
    for _ in range(3):
        ends = {tip: world.tiered.partition(tip).tiered_end_offset for tip in [world.tip, *tips]}
        world.tiered.upload(
            {tip: [encode_batch([record], base_offset=end, leader_epoch=1)] for tip, end in ends.items()}
        )

    def delete_what_was_read() -> None:
        metadata = world.tiered.metadata
        metadata.advance_log_start(dict.fromkeys(tips, 1), epoch=metadata.state().epoch, catalog_seq=None)

    (report,) = world.compactor(delete_what_was_read).run(["state"])
    assert report.partitions == 1 + MAX_LISTED_IN_REPLACE, "a commit can name so many"
    assert {reason for _, reason in report.refused_partitions} == {MANY_CLIPPED}
    assert world.values() == [(2, b"v")]
    assert world.tiered.partition(world.tip).compacted_upto == 3
