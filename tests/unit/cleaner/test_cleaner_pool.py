"""The workers: what they clean in which order, with what, and what ends them."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import pytest

from stratalog.base.errors import CorruptRecordError, InvalidConfigError
from stratalog.base.types import TopicPartition
from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult, CleanStats
from stratalog.cleaner.cleaner_failures import FIRST_DELAY_MS, MAX_DELAY_MS
from stratalog.cleaner.cleaner_pool import CleanerPool
from stratalog.cleaner.cleaner_settings import MIN_MAP_BYTES, CleanerSettings
from stratalog.cleaner.failure_kind import FailureKind
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.native.cleaned_batches import NO_HORIZON
from tests.support.cleaner.cleaner_machine import COMPACTED, DEFAULTS, CleanerMachine
from tests.support.logs.log_machine import DATA_DIR

BOTH = replace(COMPACTED, cleanup_policy=frozenset({"compact", "delete"}))
STATS = CleanStats(
    map_entry_count=3,
    max_map_entry_count=12,
    cleaned_record_count=10,
    kept_record_count=4,
    null_key_count=1,
    cleaned_bytes=1000,
    written_bytes=300,
)


class Seen(NamedTuple):
    partition: TopicPartition
    limits: CleanLimits


class FakeCleaner:
    """Cleans nothing and says so. Thread-safe: lists are appended to. `trouble`: what the cleans of a
    partition raise. `gates`: cleans of a partition wait there."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.trouble: dict[TopicPartition, BaseException] = {}
        self.gates: dict[TopicPartition, threading.Barrier] = {}
        self.makes_progress = True

    def clean(self, chosen: LogToClean, limits: CleanLimits) -> CleanResult:
        self.seen.append(Seen(chosen.partition, limits))
        if chosen.partition in self.trouble:
            raise self.trouble[chosen.partition]
        if chosen.partition in self.gates:
            # Once when it has begun, once to let it end.
            self.gates[chosen.partition].wait(30)
            self.gates[chosen.partition].wait(30)
        end_offset = chosen.first_uncleanable_offset if self.makes_progress else chosen.first_dirty_offset
        return CleanResult(end_offset, STATS, NO_HORIZON)

    @property
    def partitions(self) -> list[int]:
        return [seen.partition.partition for seen in self.seen]


class CleanedMachine(CleanerMachine):
    """With workers. Used by one thread."""

    def __init__(self, settings: CleanerSettings = DEFAULTS) -> None:
        super().__init__()
        self.fake = FakeCleaner()
        self.cleaner = self.pool(self.fake.clean, settings)

    def filled(self, count: int) -> list[UnifiedLog]:
        logs = [self.open(number) for number in range(count)]
        for number, log in enumerate(logs):
            self.fill(log, 1 + number)
        return logs

    def round(self) -> None:
        """Have the workers come again."""
        self.clock.advance(self.cleaner.settings.backoff_ms)

    def begin(self, pool: ThreadPoolExecutor, number: int) -> threading.Barrier:
        """A clean of that log has begun in another thread; the barrier ends it."""
        gate = self.fake.gates[self.partition(number)] = threading.Barrier(2)
        # Those that have a gate are being cleaned already.
        others = [
            partition for partition in map(self.partition, range(9)) if partition not in self.fake.gates
        ]
        with self.manager.paused(*others):
            pool.submit(self.cleaner.clean_filthiest)
            gate.wait(30)
        return gate


def test_a_round_cleans_all_that_is_due() -> None:
    machine = CleanedMachine()
    machine.filled(3)
    assert machine.fake.partitions == []
    machine.cleaner.start()
    machine.machine.scheduler.run_due()
    assert sorted(machine.fake.partitions) == [0, 1, 2]
    machine.round()
    assert len(machine.fake.seen) == 3
    machine.fill(machine.manager.cleaned_logs()[1], 9)
    machine.round()
    assert machine.fake.partitions[3:] == [1]
    machine.cleaner.check()


def test_what_it_did_can_be_seen() -> None:
    machine = CleanedMachine(CleanerSettings(thread_count=2))
    logs = machine.filled(2)
    logs[0].reconfigure(replace(COMPACTED, max_compaction_lag_ms=1000))
    machine.clock.advance(5000)
    stats = machine.cleaner.stats()
    assert (stats.clean_count, stats.ms_since_last_run, stats.worker_count) == (0, 5000, 0)
    assert machine.cleaner.clean_filthiest()
    stats = machine.cleaner.stats()
    assert (stats.max_compaction_delay_ms, stats.max_cleanable_ratio) == (4000, 1.0)
    machine.cleaner.start()
    machine.round()
    machine.clock.advance(700)
    stats = machine.cleaner.stats()
    assert (stats.worker_count, stats.running_count, stats.dead_worker_count) == (2, 0, 0)
    assert (stats.clean_count, stats.aborted_count, stats.ms_since_last_run) == (2, 0, 700)
    assert (stats.cleaned_record_count, stats.dropped_record_count, stats.null_key_count) == (20, 12, 2)
    assert (stats.cleaned_bytes, stats.reclaimed_bytes) == (2000, 1400)
    assert stats.max_map_use_ratio == 0.25
    assert (stats.uncleanable, stats.failures, stats.max_compaction_delay_ms) == ({}, (), 0)


def test_each_clean_that_came_to_its_end_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="stratalog.cleaner.cleaner_pool")
    machine = CleanedMachine()
    first, second = machine.filled(2)
    machine.fake.trouble[second.topic_partition] = CorruptRecordError("no batch begins here")
    with ThreadPoolExecutor(1) as pool:
        gate = machine.begin(pool, 0)
        machine.clock.advance(700)
        gate.wait(30)
    assert machine.cleaner.clean_filthiest()
    assert machine.fake.partitions == [0, 1]
    [told] = [record for record in caplog.records if record.levelno == logging.INFO]
    end_offset = first.local_log.segments.active.base_offset
    for text in (f"{first.topic_partition} ", f"end_offset=`{end_offset}`", "duration_ms=`700`"):
        assert text in told.getMessage()


def test_the_longest_of_the_last_cleans_is_known() -> None:
    """It is the longest of the workers that are there: one that has gone does not count."""
    machine = CleanedMachine(CleanerSettings(thread_count=2))
    logs = machine.filled(2)
    with ThreadPoolExecutor(2) as pool:
        first = machine.begin(pool, 0)
        second = machine.begin(pool, 1)
        machine.clock.advance(700)
        first.wait(30)
        # Who pauses a log goes on when its clean has ended.
        with machine.manager.paused(logs[0].topic_partition):
            machine.clock.advance(2000)
        second.wait(30)
    assert machine.cleaner.stats().max_clean_ms == 2700
    machine.cleaner.reconfigure(CleanerSettings(thread_count=1))
    assert machine.cleaner.stats().max_clean_ms == 700
    machine.cleaner.reconfigure(CleanerSettings(thread_count=2))
    assert machine.cleaner.stats().max_clean_ms == 700


def test_one_log_that_fails_keeps_no_other_waiting() -> None:
    machine = CleanedMachine()
    machine.filled(3)
    bad = machine.partition(1)
    machine.fake.trouble[bad] = CorruptRecordError("no batch begins here", path="/data/x.log", position=9)
    machine.cleaner.start()
    machine.machine.scheduler.run_due()
    assert sorted(machine.fake.partitions) == [0, 1, 2]
    stats = machine.cleaner.stats()
    (failure,) = stats.failures
    assert (failure.partition, failure.kind) == (bad, FailureKind.DAMAGE)
    assert "path=`/data/x.log` position=`9`" in failure.reason
    assert stats.uncleanable[DATA_DIR] == (1, failure.dirty_bytes)
    assert failure.dirty_bytes == machine.log_manager.log(bad).reader.segments()[0].size_bytes
    # What comes meanwhile waits, too.
    machine.fill(machine.log_manager.log(bad), 7)
    machine.clock.advance(1)
    machine.cleaner.clean_filthiest()
    assert machine.cleaner.stats().failures[0].dirty_bytes > failure.dirty_bytes
    machine.fake.trouble.clear()
    machine.clock.advance(FIRST_DELAY_MS * 2)
    assert machine.fake.partitions.count(1) == 2
    assert machine.cleaner.stats().failures == ()


def test_a_clean_without_progress_is_no_loop() -> None:
    machine = CleanedMachine()
    machine.filled(1)
    machine.fake.makes_progress = False
    machine.cleaner.start()
    machine.machine.scheduler.run_due()
    assert machine.fake.partitions == [0]
    (failure,) = machine.cleaner.stats().failures
    assert (failure.kind, failure.is_alarm) == (FailureKind.NO_PROGRESS, False)
    assert "[0, 1)" in failure.reason
    machine.clock.advance(FIRST_DELAY_MS * 2)
    assert len(machine.fake.seen) == 2
    machine.clock.advance(4 * MAX_DELAY_MS)
    assert 4 < len(machine.fake.seen) < 20
    assert machine.cleaner.stats().failures[0].is_alarm
    machine.fake.makes_progress = True
    machine.cleaner.reset(machine.partition(0))
    machine.machine.scheduler.run_due()
    assert machine.cleaner.stats().failures == ()


def test_the_retention_of_compacted_logs_goes_on_whatever_fails() -> None:
    machine = CleanedMachine(CleanerSettings(is_enabled=False))
    both, compact = machine.open(0, replace(BOTH, retention_ms=60_000)), machine.open(1)
    for log in (both, compact):
        machine.fill(log, 2, 2)
    compact.increment_log_start_offset(2)
    machine.cleaner.start()
    machine.machine.scheduler.run_due()
    assert (both.offsets.local_log_start_offset, compact.offsets.local_log_start_offset) == (0, 2)
    machine.clock.advance(120_000)
    assert (both.offsets.local_log_start_offset, compact.offsets.local_log_start_offset) == (4, 2)
    assert machine.fake.seen == []


def test_nothing_goes_while_no_clean_may_begin_and_no_log_shrinks_that_may_not() -> None:
    machine = CleanedMachine()
    may_begin, may_shrink = [False], [False]
    cleaner = CleanerPool(
        machine.clock,
        machine.machine.scheduler,
        machine.manager,
        machine.fake.clean,
        DEFAULTS,
        may_begin=lambda: may_begin[0],
        may_shrink=lambda _: may_shrink[0],
    )
    log = machine.open(0)
    machine.fill(log, 2, 2)
    log.increment_log_start_offset(2)
    assert (cleaner.clean_filthiest(), cleaner.delete_old_segments()) == (False, 0)
    may_begin[0] = True
    assert (cleaner.delete_old_segments(), cleaner.clean_filthiest()) == (0, False)
    assert cleaner.stats().failures == ()
    may_begin[0], may_shrink[0] = False, True
    assert cleaner.delete_old_segments() == 0
    may_begin[0] = True
    assert (cleaner.delete_old_segments(), cleaner.clean_filthiest()) == (1, True)


def test_retention_leaves_out_logs_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = CleanedMachine()
    logs = machine.filled(3)
    for log in logs:
        log.increment_log_start_offset(log.offsets.high_watermark)

    def refuse() -> int:
        raise CorruptRecordError("a timestamp is not what was written")

    monkeypatch.setattr(logs[1].retention, "delete_old_segments", refuse)
    with machine.manager.paused(machine.partition(0)):
        assert machine.cleaner.delete_old_segments() == 1
    assert machine.cleaner.delete_old_segments() == 1
    machine.cleaner.check()


def test_no_more_cleans_run_than_there_are_workers() -> None:
    machine = CleanedMachine(CleanerSettings(thread_count=2, map_bytes=10 * MIN_MAP_BYTES))
    machine.filled(4)
    with ThreadPoolExecutor(4) as pool:
        gates = [machine.begin(pool, 0), machine.begin(pool, 1)]
        assert not machine.cleaner.clean_filthiest()
        assert machine.cleaner.stats().running_count == 2
        # More workers share the same memory: what the others have is not there to give.
        machine.cleaner.reconfigure(CleanerSettings(thread_count=4, map_bytes=10 * MIN_MAP_BYTES))
        assert not machine.cleaner.clean_filthiest()
        for gate in gates:
            gate.wait(30)
    machine.cleaner.check()
    assert machine.cleaner.clean_filthiest()


@pytest.mark.parametrize(
    ("current", "wanted", "allowed"),
    [
        (1, 3, "at least 1 and at most 2"),
        (8, 3, "at least 4 and at most 16"),
        (8, 17, "at least 4 and at most 16"),
        (5, 1, "at least 2 and at most 10"),
    ],
)
def test_workers_are_halved_or_doubled_at_most(current: int, wanted: int, allowed: str) -> None:
    machine = CleanedMachine(CleanerSettings(thread_count=current))
    with pytest.raises(InvalidConfigError) as failure:
        machine.cleaner.reconfigure(CleanerSettings(thread_count=wanted))
    assert failure.value.fields == {"name": "log.cleaner.threads", "value": wanted, "allowed": allowed}
    assert machine.cleaner.settings.thread_count == current


def test_workers_without_memory_are_refused() -> None:
    settings = CleanerSettings(thread_count=5, map_bytes=4 * MIN_MAP_BYTES)
    with pytest.raises(InvalidConfigError) as failure:
        CleanedMachine(settings)
    assert failure.value.fields["name"] == "log.cleaner.dedupe.buffer.size"
    with pytest.raises(InvalidConfigError):
        CleanedMachine(CleanerSettings(thread_count=4)).cleaner.reconfigure(settings)


def test_what_is_altered_holds_from_now_on() -> None:
    machine = CleanedMachine()
    machine.cleaner.start()
    machine.cleaner.reconfigure(CleanerSettings(thread_count=2, backoff_ms=500, max_bytes_per_s=5.0))
    assert machine.manager.throttler.max_bytes_per_s == 5.0
    assert sorted(machine.machine.scheduler.pending())[-2:] == ["log cleaner 0", "log cleaner 1"]
    machine.machine.scheduler.run_due()
    machine.filled(1)
    machine.clock.advance(499)
    assert machine.fake.seen == []
    machine.clock.advance(1)
    assert machine.fake.partitions == [0]
    assert machine.fake.seen[0].limits.map_load_factor == 0.9
    assert machine.fake.seen[0].limits.io_buffer_bytes == 256 << 10


def test_a_worker_that_died_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = CleanedMachine()
    machine.filled(1)
    machine.cleaner.start()

    def die(_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(machine.manager, "take_filthiest", die)
        with pytest.raises(RuntimeError):
            machine.machine.scheduler.run_due()
    stats = machine.cleaner.stats()
    assert (stats.dead_worker_count, stats.running_count) == (1, 0)
    machine.cleaner.reconfigure(CleanerSettings())
    machine.machine.scheduler.run_due()
    assert machine.fake.partitions == [0]
    assert machine.cleaner.stats().dead_worker_count == 0


class ThreadEndedError(BaseException):
    pass


def test_a_worker_whose_thread_ends_leaves_the_log_to_others() -> None:
    machine = CleanedMachine()
    machine.filled(1)
    partition = machine.partition(0)
    machine.fake.trouble[partition] = ThreadEndedError()
    with pytest.raises(ThreadEndedError):
        machine.cleaner.clean_filthiest()
    machine.cleaner.check()
    machine.manager.pause(partition)
    machine.manager.resume(partition)
    machine.fake.trouble.clear()
    assert machine.cleaner.clean_filthiest()


def test_after_a_stop_nothing_begins() -> None:
    machine = CleanedMachine()
    machine.filled(1)
    for _ in range(2):
        machine.cleaner.stop()
        assert not machine.cleaner.clean_filthiest()
        assert not machine.cleaner.reset(machine.partition(0))
    assert machine.fake.seen == []


def test_the_memory_of_all_maps_is_bounded_while_the_numbers_change() -> None:
    machine = CleanedMachine(CleanerSettings(thread_count=1, map_bytes=8 * MIN_MAP_BYTES))
    machine.filled(4)
    with ThreadPoolExecutor(4) as pool:
        gates = [machine.begin(pool, 0)]
        machine.cleaner.reconfigure(CleanerSettings(thread_count=2, map_bytes=12 * MIN_MAP_BYTES))
        gates.append(machine.begin(pool, 1))
        machine.cleaner.reconfigure(CleanerSettings(thread_count=4, map_bytes=12 * MIN_MAP_BYTES))
        assert not machine.cleaner.clean_filthiest()
        for gate in gates:
            gate.wait(30)
    assert [seen.limits.map_bytes // MIN_MAP_BYTES for seen in machine.fake.seen] == [8, 4]
    assert machine.cleaner.clean_filthiest()
    assert machine.fake.seen[-1].limits.map_bytes == 3 * MIN_MAP_BYTES
