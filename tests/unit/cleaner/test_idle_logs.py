"""Logs without writers: when they are due for what a clean has kept for a while, and when they are
sealed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from errno import EIO
from itertools import pairwise

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult
from stratalog.cleaner.clean.kept_horizons import KeptHorizons
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.cleaner.cleaner_failures import MAX_DELAY_MS
from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.cleaner.cleaner_pool import CleanerPool
from stratalog.cleaner.failure_kind import FailureKind
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.keep_rules import MAX_HORIZON_MS
from stratalog.record.native.cleaned_batches import NO_HORIZON
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaner_machine import COMPACTED, CleanerMachine
from tests.support.logs.log_ledger import read_local
from tests.support.logs.overwriting import overwrite

RETENTION_MS = 60_000
LAG_MS = 3_600_000
CONFIG = replace(COMPACTED, delete_retention_ms=RETENTION_MS)
IN_TIME = replace(CONFIG, max_compaction_lag_ms=LAG_MS, min_cleanable_dirty_ratio=1.0)


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        ([], NO_HORIZON),
        ([(700, 700)], 700),
        ([(700, 720), (650, 710)], 720),
        # The last one is too far away: the first ones do not wait for it.
        ([(700, 700), (5000, 5000)], 800),
        ([(MAX_HORIZON_MS, MAX_HORIZON_MS)], NO_HORIZON),
        ([(MAX_HORIZON_MS, MAX_HORIZON_MS), (700, 700)], 800),
        # Never at once again.
        ([(500, 500)], 501),
        ([(NO_HORIZON, -1)], NO_HORIZON),
    ],
)
def test_a_log_is_due_when_one_clean_drops_all(noted: list[tuple[int, int]], expected: int) -> None:
    horizons = KeptHorizons(500)
    for earliest_ms, latest_ms in noted:
        horizons.note(earliest_ms, latest_ms)
    assert horizons.due_ms(100) == expected


def test_a_marker_that_waits_is_as_one_that_was_just_given_its_time() -> None:
    horizons = KeptHorizons(500)
    horizons.note_waiting_marker()
    assert horizons.due_ms(100) == 600
    horizons.note(550, 550)
    assert horizons.due_ms(100) == 600
    horizons.note(900, 900)
    assert horizons.due_ms(100) == 650
    assert horizons.due_ms(0) == 501


class IdleMachine(CleanerMachine):
    """With a worker that cleans. Used by one thread."""

    def __init__(self, disk: FaultyFileSystem | None = None) -> None:
        super().__init__(disk)
        self.cleans: list[LogToClean] = []

    def worker(self, manager: CleanerManager | None = None) -> CleanerPool:
        log_clean = LogClean(self.clock, SequentialIds())

        def clean(chosen: LogToClean, limits: CleanLimits) -> CleanResult:
            self.cleans.append(chosen)
            return log_clean.run(chosen, limits)

        return self.pool(clean, manager=manager)

    def put(self, log: UnifiedLog, *keys: bytes, producer_id: int = -1) -> None:
        """A value of each key, and a tombstone behind it; in a transaction, if there is a producer."""
        now_ms = self.clock.now_ms()
        records = [Record(0, now_ms, key, value) for key in keys for value in (b"v", None)]
        producer = BatchProducer(producer_id, 0, 0, is_transactional=True)
        producer = producer if producer_id >= 0 else BatchProducer()
        log.appender.append_as_leader(encode_batch(records, producer=producer), 1)

    def noted_horizons(self) -> dict[int, int]:
        return {partition.partition: horizon_ms for partition, horizon_ms in self.horizons.items()}


def cleaned_once(machine: IdleMachine, number: int = 0, *keys: bytes) -> UnifiedLog:
    """A log with a tombstone that a clean has met."""
    log = machine.open(number, CONFIG)
    machine.put(log, *(keys or (b"k",)))
    machine.fill(log, 3)
    assert machine.worker().clean_filthiest()
    return log


def test_dirt_comes_first_and_then_the_longest_overdue() -> None:
    machine = IdleMachine()
    for number in range(2):
        cleaned_once(machine, number)
        machine.clock.advance(10)
    machine.clock.advance(RETENTION_MS)
    dirty = machine.open(2, CONFIG)
    machine.fill(dirty, 1)
    worker = machine.worker()
    machine.cleans.clear()
    while worker.clean_filthiest():
        pass
    assert [found.partition.partition for found in machine.cleans] == [2, 0, 1]


def damaged(machine: IdleMachine) -> tuple[str, bytes]:
    """The file of a log that was cleaned, of which no horizon is known and no header can be read; and what
    was in it."""
    log = cleaned_once(machine)
    disk, path = machine.machine.disk, log.local_log.segments[0].path
    machine.horizons.clear()
    whole = disk.read_file(path)
    overwrite(disk, path, b"\xff" * len(whole))
    return path, whole


def test_a_log_that_cannot_be_looked_into_waits_longer_each_time() -> None:
    """Until then nothing is due in it, which is no success."""
    machine = IdleMachine()
    path, whole = damaged(machine)
    manager = machine.new_manager()
    worker = machine.worker(manager)
    begun_ms, tried_after_s = machine.clock.now_ms(), list[int]()
    for elapsed_s in range(2000):
        tried_after_s += [elapsed_s] * worker.clean_filthiest()
        machine.clock.advance(1000)
    (failure,) = manager.failures()
    assert (failure.failure_count, failure.since_ms) == (len(tried_after_s), begun_ms)
    waits_s = [later - earlier for earlier, later in pairwise(tried_after_s)]
    assert len(waits_s) >= 6
    for count, wait_s in enumerate(waits_s):
        assert 0.8 * 15 * 2**count <= wait_s <= 15 * 2**count + 1
    overwrite(machine.machine.disk, path, whole)
    machine.clock.advance(MAX_DELAY_MS)
    assert worker.clean_filthiest()
    assert not worker.clean_filthiest()
    assert manager.failures() == ()
    assert worker.stats().next_clean_ms < NO_HORIZON


def test_a_clean_that_drops_nothing_is_backed_off() -> None:
    machine = IdleMachine()
    cleaned_once(machine)
    machine.clock.advance(RETENTION_MS)
    manager = machine.manager
    for count in (1, 2):
        found = manager.take_filthiest()
        assert found is not None
        assert found.next_clean is not None
        assert found.next_clean.is_due
        manager.done(found, found.first_dirty_offset, found.next_clean.at_ms)
        (failure,) = manager.failures()
        assert (failure.kind, failure.is_alarm) == (FailureKind.NO_PROGRESS, count == 2)
        assert manager.take_filthiest() is None
        machine.clock.advance(MAX_DELAY_MS)
    assert machine.worker().clean_filthiest()
    assert manager.failures() == ()


@pytest.mark.parametrize("start_offset", [5, 6])
def test_where_all_that_is_clean_was_deleted_nothing_is_due(start_offset: int) -> None:
    machine = IdleMachine()
    log = cleaned_once(machine)
    machine.fill(log, 1)
    log.increment_log_start_offset(start_offset)
    machine.clock.advance(RETENTION_MS)
    log.reconfigure(replace(CONFIG, min_cleanable_dirty_ratio=1.0))
    worker = machine.worker()
    assert not worker.clean_filthiest()
    assert worker.stats().next_clean_ms == NO_HORIZON
    assert (machine.noted_horizons() == {}) == (start_offset > 5), "above the cleaned part it is forgotten"


@pytest.mark.parametrize("who", ["paused", "offline", "tiered", "unbounded", "young"])
def test_what_is_not_the_cleaners_is_not_sealed(who: str) -> None:
    disk = FaultyFileSystem()
    machine = IdleMachine(disk)
    config = {
        "tiered": replace(IN_TIME, remote_storage_enable=True),
        "unbounded": replace(IN_TIME, max_compaction_lag_ms=2**63 - 1),
        "young": replace(IN_TIME, max_compaction_lag_ms=LAG_MS + 1),
    }.get(who, IN_TIME)
    log = machine.open(0, config)
    log.appender.append_as_leader(encode_batch([Record(0, machine.clock.now_ms(), b"k", b"v")]), 1)
    machine.clock.advance(LAG_MS + 1)
    if who == "offline":
        disk.fail_at(disk.operation_count + 1, number=EIO)
        with pytest.raises(DataDirectoryError):
            log.flusher.flush()
        assert log.availability.is_offline
    with ExitStack() as pauses:
        if who == "paused":
            pauses.enter_context(machine.manager.paused(log.topic_partition))
        assert machine.manager.take_filthiest() is None
    assert log.local_log.segments.active.base_offset == 0
    assert machine.manager.failures() == ()


def test_a_walk_knows_the_markers_that_wait() -> None:
    machine = IdleMachine()
    log = machine.open(0, CONFIG)
    machine.put(log, b"a", producer_id=7)
    log.appender.append_end_transaction_marker(7, 0, 0, committed=True, leader_epoch=1)
    log.appender.append_as_leader(
        encode_batch([Record(0, 0, b"b", b"v")], producer=BatchProducer(7, 0, 2)), 1
    )
    machine.fill(log, 2)
    worker = machine.worker()
    assert worker.clean_filthiest()
    offsets = [[1, 2, 3, 4, 5], [2, 3, 4, 5], [2, 3, 4, 5], [3, 4, 5]]
    for number, expected in enumerate(offsets):
        assert [one.offset for one in read_local(log)] == expected
        machine.horizons.clear()
        worker = machine.worker(machine.new_manager())
        assert worker.clean_filthiest(), "it is unknown when it is due"
        assert not worker.clean_filthiest()
        machine.clock.advance(RETENTION_MS)
        assert worker.clean_filthiest() == (number < 3)
    assert worker.stats().next_clean_ms == NO_HORIZON
