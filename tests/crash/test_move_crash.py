"""A machine that dies at every operation of a move between two log directories, or whose disks fail there."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from stratalog.base.types import Durability
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.manager.moves.log_move import MoveState
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from tests.support.cleaner.stepped_throttler import SteppedThrottler
from tests.support.logs.crash_moments import EVERYTHING_KEPT, NOTHING_KEPT
from tests.support.logs.crash_sweep import CrashSweep, Death, Failure
from tests.support.logs.log_ledger import LogLedger, read_local
from tests.support.logs.log_machine import (
    DATA_DIR,
    OTHER_DIR,
    PARTITION,
    SMALL_SEGMENTS,
    LogMachine,
    machine_on,
)
from tests.support.logs.moving_log import aside_of, flip_of

PLAIN = replace(SMALL_SEGMENTS, retention_bytes=5000)
TRANSACTIONAL = replace(SMALL_SEGMENTS, segment_bytes=1400)
TIERED = LogConfig(segment_bytes=1024, index_interval_bytes=100, min_durability=Durability.DISK)

Beside = Callable[[LogMachine, LogLedger, UnifiedLog, int], None]
"""Takes place beside a move, after so many of its steps."""


def beside_plain(machine: LogMachine, ledger: LogLedger, log: UnifiedLog, step: int) -> None:
    """Appends that roll, flushes, checkpoints, deletions of records, retention."""
    ledger.append(log, [ledger.batch(4)])
    if step == 2:
        ledger.flush(log)
    if step == 3:
        log.increment_log_start_offset(log.local_log.segments[1].base_offset + 2)
        ledger.note_starts(log)
        log.retention.delete_old_segments()
        ledger.note_starts(log)
    if step == 4:
        machine.checkpoint()
        ledger.append(log, [ledger.batch(18), ledger.batch(9)])
        log.retention.delete_old_segments()
        ledger.note_starts(log)
        machine.clock.advance(60_000)


def beside_transactions(machine: LogMachine, ledger: LogLedger, log: UnifiedLog, step: int) -> None:
    """Transactions begin before, end beside, and go on after the move."""
    ledger.append(log, [ledger.producer_batch(1, 2, is_transactional=True), ledger.batch(1)])
    if step % 3 == 2:
        ledger.leader_epoch += 1
        ledger.end_transaction(log, 1, committed=step == 5, now_ms=machine.clock.now_ms())
    if step == 4:
        ledger.flush(log)


def beside_tiered(machine: LogMachine, ledger: LogLedger, log: UnifiedLog, step: int) -> None:
    """The object store gets segments, and the disk lets them go."""
    ledger.append(log, [ledger.batch(7)])
    if step == 2:
        ledger.flush(log)
        log.update_tiered_end_offset(log.reader.segments()[1].end_offset)
    if step == 4:
        log.retention.delete_local_segments(ignore_retention=True)
        ledger.note_starts(log)


WORKS = pytest.mark.parametrize(
    ("beside", "config"),
    [(beside_plain, PLAIN), (beside_transactions, TRANSACTIONAL), (beside_tiered, TIERED)],
    ids=["plain", "transactional", "tiered"],
)


class MovedLog:
    """A log of several segments, with an aborted transaction and an open one, that moves. Used by one
    thread."""

    def __init__(self, beside: Beside, config: LogConfig) -> None:
        self.disk = FaultyFileSystem()
        self.config = config
        self._beside = beside
        self.machine = machine_on(self.disk, config)
        self.ledger = ledger = LogLedger()
        self.log = self.machine.start()
        for number in range(9):
            ledger.append(self.log, [ledger.batch(8), ledger.producer_batch(1, 2, is_transactional=True)])
            if number == 5:
                ledger.end_transaction(self.log, 1, committed=False, now_ms=self.machine.clock.now_ms())
                ledger.flush(self.log)

    @property
    def manager(self) -> LogManager:
        return self.machine.manager

    def move(self) -> None:
        """There and back again, while things happen to it, with a little in between."""
        for target in (OTHER_DIR, DATA_DIR):
            self.manager.moves.throttler = SteppedThrottler(
                self.machine.clock, lambda step: self._beside(self.machine, self.ledger, self.log, step)
            )
            if self.manager.begin_move(PARTITION, target).run() is MoveState.DONE:
                # What the log had is durable in the new place.
                self.ledger.durable_end_offset = max(
                    self.ledger.durable_end_offset, self.log.offsets.recovery_point
                )
            self.ledger.append(self.log, [self.ledger.batch(5)])
            self.ledger.flush(self.log)
            self.ledger.append(self.log, [self.ledger.batch(2)])
        self.machine.clock.advance(60_000)

    def verify_found(self, disk: FaultyFileSystem) -> str:
        """Open what is left, twice, and begin the move again that was cut off, or another one; returns the
        directory that had the log."""
        found = self.ledger.copy()
        machine = machine_on(disk, self.config, 2)
        log = machine.start()
        place = log.local_log.directory.rpartition("/")[0]
        assert machine.manager.directory_of(PARTITION) == place
        found.verify(log, after_crash=True)
        again = disk.reopened(NOTHING_KEPT)
        assert read_local(machine_on(again, self.config, 3).start()) == list(found.acknowledged.values())
        target = OTHER_DIR if place == DATA_DIR else DATA_DIR
        assert [one.target_path for one in machine.manager.moves.wanted] in ([], [target])
        found.append(log, [found.batch(3)])
        assert machine.manager.begin_move(PARTITION, target).run() is MoveState.DONE
        assert not machine.manager.moves.wanted
        found.append(log, [found.batch(3)])
        found.flush(log)
        found.verify(log, after_crash=False)
        machine.clock.advance(60_000)
        assert not machine.scheduler.failures
        assert [path for path in disk.inner.contents() if path.endswith("-delete")] == []
        last = disk.reopened(NOTHING_KEPT)
        found.verify(machine_on(last, self.config, 4).start(), after_crash=True)
        contents = last.inner.contents()
        assert [one for one in (DATA_DIR, OTHER_DIR) if f"{one}/{PARTITION}" in contents] == [target]
        return place


def sweep_of(beside: Beside, config: LogConfig, count: int) -> CrashSweep[MovedLog]:
    """A sweep over a work in which all that can happen beside a move happens."""
    sweep = CrashSweep(lambda: MovedLog(beside, config), MovedLog.move, count=count)
    whole = sweep.whole
    assert all(one.state is MoveState.DONE for one in whole.manager.moves.progress())
    assert isinstance(whole.manager.moves.throttler, SteppedThrottler)
    assert whole.manager.moves.throttler.step_count >= 5, "less happens beside the move than it could"
    assert whole.log.local_log.directory == f"{DATA_DIR}/{PARTITION}"
    whole.ledger.verify(whole.log, after_crash=False)
    assert not whole.machine.scheduler.failures
    return sweep


@WORKS
def test_dying_at_every_operation_of_a_move_leaves_one_log(beside: Beside, config: LogConfig) -> None:
    places = set[str]()

    def verify(death: Death[MovedLog]) -> None:
        places.update(map(death.subject.verify_found, death.disks()))

    # The moments when the log gets its place are in every sample.
    sweep_of(beside, config, 18).at_deaths(verify, always=lambda line: "manifest.tmp " in line)
    assert places == {DATA_DIR, OTHER_DIR}


@WORKS
@pytest.mark.parametrize("part", [0.0, 1.0])
def test_a_disk_that_fails_at_any_operation_of_a_move_loses_nothing(
    beside: Beside, config: LogConfig, part: float
) -> None:
    """A target that fails or is full ends the move, and the log goes on where it is; a source that fails
    takes the log along. The operation may have happened all the same."""
    states = set[MoveState]()
    survivor_count = 0

    def verify(failure: Failure[MovedLog]) -> None:
        nonlocal survivor_count
        moved = failure.subject
        log, ledger = moved.log, moved.ledger
        states.update(one.state for one in moved.manager.moves.progress())
        if not log.availability.is_offline:
            survivor_count += 1
            ledger.append(log, [ledger.batch(2)])
            ledger.flush(log)
            ledger.verify(log, after_crash=False)
        else:
            # Where it is now is where the disk failed.
            failed_path = moved.disk.trace[failure.operation - 1].split(" ")[1]
            assert failed_path.startswith(log.local_log.directory.rpartition("/")[0])
        for survival in (NOTHING_KEPT, EVERYTHING_KEPT):
            moved.verify_found(moved.disk.reopened(survival))

    sweep = sweep_of(beside, config, 8)
    sweep.at_failures(verify, errors=(errno.EIO, errno.ENOSPC), part=part)
    assert states >= {MoveState.DONE, MoveState.FAILED}
    assert survivor_count


class Move:
    """The move of a small log, all of which was flushed. Used by one thread."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.ledger = LogLedger()
        self._machine = machine_on(self.disk)
        self._log: UnifiedLog = self._machine.start()
        for _ in range(3):
            self.ledger.append(self._log, [self.ledger.batch(7)])
        self.ledger.flush(self._log)
        self._machine.checkpoint()

    def run(self) -> None:
        assert self._machine.manager.begin_move(PARTITION, OTHER_DIR).run() is MoveState.DONE


class Start:
    """A start of what a process that was killed at that operation of the move has left."""

    def __init__(self, killed_operation: int) -> None:
        move = Move()
        move.disk.crash_at(killed_operation)
        with pytest.raises(SimulatedCrash):
            move.run()
        self.disk, self.ledger = move.disk.killed(), move.ledger

    def run(self) -> None:
        machine_on(self.disk, ids=1).open()


def test_losing_power_while_a_start_settles_what_a_kill_left_leaves_one_log() -> None:
    rehearsal = Move()
    rehearsal.run()
    flip, aside = flip_of(rehearsal.disk.trace), aside_of(rehearsal.disk.trace)
    assert flip < aside
    places = set[str]()

    def verify(death: Death[Start]) -> None:
        for disk in death.disks():
            places.add(verified_place(disk, death.subject.ledger))

    for killed_operation in range(flip + 1, aside + 1):
        sweep = CrashSweep(partial(Start, killed_operation), Start.run, count=6)
        assert aside_of(sweep.trace), "the older copy is put away by that start"
        sweep.at_deaths(verify)
    assert places == {DATA_DIR, OTHER_DIR}


def verified_place(disk: FaultyFileSystem, ledger: LogLedger) -> str:
    """Open what is left, twice; returns the log directory that has the partition, with all that it must
    have."""
    found, directories = ledger.copy(), set[str]()
    for number in (2, 3):
        log = machine_on(disk, ids=number).start()
        found.verify(log, after_crash=True)
        directories.add(log.local_log.directory.rpartition("/")[0])
        disk = disk.reopened(NOTHING_KEPT)
    [place] = directories
    return place


class UnflushedMove:
    """A log of which nothing is durable, not even the name of its directory, and its move."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.ledger = LogLedger()
        self._machine = machine_on(self.disk, ids=1)
        self._log: UnifiedLog = self._machine.start()
        for _ in range(2):
            self.ledger.append(self._log, [self.ledger.batch(7)])

    def run(self) -> None:
        """Move, and use the log in the new place, until what it has left is removed."""
        assert self._machine.manager.begin_move(PARTITION, OTHER_DIR).run() is MoveState.DONE
        self.ledger.durable_end_offset = self._log.offsets.recovery_point
        self.ledger.append(self._log, [self.ledger.batch(3)])
        self.ledger.flush(self._log)
        self._machine.clock.advance(60_000)
        assert not self._machine.scheduler.failures


def test_dying_in_the_move_of_an_unflushed_log_leaves_one_log() -> None:
    places = set[str]()

    def verify(death: Death[UnflushedMove]) -> None:
        for disk in death.disks():
            places.add(verified_place(disk, death.subject.ledger))

    sweep = CrashSweep(UnflushedMove, UnflushedMove.run)
    assert not [name for name in sweep.whole.disk.inner.list_directory(DATA_DIR) if "orders" in name]
    sweep.at_deaths(verify)
    assert places == {DATA_DIR, OTHER_DIR}
