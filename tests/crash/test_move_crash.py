"""A machine that dies at every operation of a move between two log directories, or whose disks fail there.

The process appends, flushes, deletes records and lets retention drop segments while it moves its partition,
and moves it back. From each moment of a death several disks are built, as they may be found; each is opened
by a new process, which must find the partition in one directory, with all that was promised to be durable.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.base.types import Durability
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.moves.log_move import MoveState
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.memory_filesystem import Kept, Survival
from tests.support.cleaner.stepped_throttler import SteppedThrottler
from tests.support.logs.crash_moments import EVERYTHING_KEPT, NOTHING_KEPT, SURVIVALS, deaths
from tests.support.logs.log_ledger import LogLedger, read_local
from tests.support.logs.log_machine import DATA_DIR, PARTITION, LogMachine
from tests.support.logs.moving_machine import OTHER_DIR, moving_machine
from tests.support.logs.sampling import Sampling

PLAIN = LogConfig(
    segment_bytes=1024,
    index_interval_bytes=100,
    remote_storage_enable=False,
    retention_bytes=5000,
    retention_ms=-1,
)
TRANSACTIONAL = LogConfig(
    segment_bytes=1400, index_interval_bytes=100, remote_storage_enable=False, retention_ms=-1
)
TIERED = LogConfig(segment_bytes=1024, index_interval_bytes=100, min_durability=Durability.DISK)

Beside = Callable[[LogMachine, LogLedger, UnifiedLog, int], None]
"""What happens beside a move, after so many of its steps."""


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


def begin(machine: LogMachine, ledger: LogLedger) -> UnifiedLog:
    """A log of several segments, with an aborted transaction and an open one."""
    log = machine.start()
    now_ms = machine.clock.now_ms()
    for number in range(9):
        ledger.append(log, [ledger.batch(8), ledger.producer_batch(1, 2, is_transactional=True)])
        if number == 5:
            ledger.end_transaction(log, 1, committed=False, now_ms=now_ms)
            ledger.flush(log)
    return log


def move(machine: LogMachine, ledger: LogLedger, beside: Beside, target: str) -> MoveState:
    """Move the log while things happen to it."""
    assert machine.manager is not None
    manager = machine.manager
    log = manager.log(PARTITION)
    manager.moves.throttler = SteppedThrottler(machine.clock, lambda step: beside(machine, ledger, log, step))
    return manager.begin_move(PARTITION, target).run()


def work(machine: LogMachine, ledger: LogLedger, beside: Beside) -> None:
    """There and back again, with a little in between."""
    log = begin(machine, ledger)
    assert machine.manager is not None
    for target in (OTHER_DIR, DATA_DIR):
        if move(machine, ledger, beside, target) is MoveState.DONE:
            # What the log had is durable in the new place.
            ledger.durable_end_offset = max(ledger.durable_end_offset, log.offsets.recovery_point)
        ledger.append(log, [ledger.batch(5)])
        ledger.flush(log)
        ledger.append(log, [ledger.batch(2)])
    machine.clock.advance(60_000)


def count_operations(beside: Beside, config: LogConfig) -> tuple[list[str], int]:
    """The trace of the work, and how much of it comes before the first move."""
    disk = FaultyFileSystem()
    begin(moving_machine(disk, config), LogLedger())
    begin_count = disk.operation_count
    disk = FaultyFileSystem()
    machine, ledger = moving_machine(disk, config), LogLedger()
    work(machine, ledger, beside)
    assert machine.manager is not None
    trace = list(disk.trace)
    assert all(one.state is MoveState.DONE for one in machine.manager.moves.progress())
    assert isinstance(machine.manager.moves.throttler, SteppedThrottler)
    assert machine.manager.moves.throttler.step_count >= 5, "less happens beside the move than it could"
    assert machine.manager.log(PARTITION).local_log.directory == f"{DATA_DIR}/{PARTITION}"
    ledger.verify(machine.manager.log(PARTITION), after_crash=False)
    assert not machine.scheduler.failures
    return trace, begin_count


@WORKS
def test_dying_at_every_operation_of_a_move_leaves_one_log(beside: Beside, config: LogConfig) -> None:
    trace, begin_count = count_operations(beside, config)
    sampling = Sampling()
    places = set[str]()
    for operation, part in sampling.some(deaths(trace, begin_count), 6):
        disk = FaultyFileSystem()
        disk.crash_at(operation, part=part)
        ledger = LogLedger()
        with pytest.raises(SimulatedCrash):
            work(moving_machine(disk, config), ledger, beside)
        verified: list[dict[str, bytes | None]] = []
        of_each = (Survival(Kept.EACH, names, seed=operation) for names in (Kept.ALL, Kept.EACH))
        for survival in (*SURVIVALS, *of_each):
            if survival not in (NOTHING_KEPT, EVERYTHING_KEPT) and not sampling.one_in(3):
                continue
            found = disk.reopened(survival)
            if (contents := found.inner.contents()) not in verified:
                verified.append(contents)
                places.add(verify_found(found, config, ledger, goes_on=survival == NOTHING_KEPT))
        verify_found(disk.killed(), config, ledger, goes_on=True)
    assert places == {DATA_DIR, OTHER_DIR}


def verify_found(disk: FaultyFileSystem, config: LogConfig, ledger: LogLedger, *, goes_on: bool) -> str:
    """Open what is left, twice; returns the directory that has the log. `goes_on`: and begin the move again
    that was cut off, or another one."""
    found = ledger.copy()
    machine = moving_machine(disk, config, 2)
    log = machine.start()
    assert machine.manager is not None
    place = log.local_log.directory.rpartition("/")[0]
    assert machine.manager.directory_of(PARTITION) == place
    found.verify(log, after_crash=True)
    again = disk.reopened(NOTHING_KEPT)
    assert read_local(moving_machine(again, config, 3).start()) == list(found.acknowledged.values())
    if goes_on:
        wanted = [one.target_path for one in machine.manager.moves.wanted]
        assert wanted in ([], [OTHER_DIR if place == DATA_DIR else DATA_DIR])
        target = OTHER_DIR if place == DATA_DIR else DATA_DIR
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
        found.verify(moving_machine(last, config, 4).start(), after_crash=True)
        contents = last.inner.contents()
        assert [one for one in (DATA_DIR, OTHER_DIR) if f"{one}/{PARTITION}" in contents] == [target]
    return place


@WORKS
def test_dying_while_a_start_settles_a_move_leaves_one_log(beside: Beside, config: LogConfig) -> None:
    """A start that finds the partition twice, in the midst of which the machine dies again."""
    trace, _ = count_operations(beside, config)
    aside = next(
        number
        for number, name in enumerate(trace, start=1)
        if name.startswith(f"rename {DATA_DIR}/{PARTITION} ")
    )
    disk = FaultyFileSystem()
    disk.crash_at(aside)
    ledger = LogLedger()
    with pytest.raises(SimulatedCrash):
        work(moving_machine(disk, config), ledger, beside)
    first = disk.reopened(EVERYTHING_KEPT)
    assert {f"{path}/{PARTITION}" for path in (DATA_DIR, OTHER_DIR)} <= first.inner.contents().keys()
    moving_machine(first, config, 1).start()
    places = set[str]()
    for operation, part in Sampling().some(deaths(first.trace), 3):
        again = disk.reopened(EVERYTHING_KEPT)
        again.crash_at(operation, part=part)
        with pytest.raises(SimulatedCrash):
            moving_machine(again, config, 1).start()
        for survival in (NOTHING_KEPT, Survival(Kept.HALF, Kept.HALF), EVERYTHING_KEPT):
            goes_on = survival == NOTHING_KEPT
            places.add(verify_found(again.reopened(survival), config, ledger, goes_on=goes_on))
    assert places == {OTHER_DIR}


@WORKS
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_at_any_operation_of_a_move_loses_nothing(
    beside: Beside, config: LogConfig, number: int
) -> None:
    """A target that fails or is full ends the move, and the log goes on where it is; a source that fails
    takes the log along."""
    trace, begin_count = count_operations(beside, config)
    sampling = Sampling()
    states = set[MoveState]()
    survivor_count = 0
    for operation in range(begin_count + 1, len(trace) + 1):
        if not sampling.one_in(20):
            continue
        disk = FaultyFileSystem()
        # The operation may have happened all the same.
        disk.fail_at(operation, number=number, part=float(operation % 2))
        machine, ledger = moving_machine(disk, config), LogLedger()
        try:
            work(machine, ledger, beside)
        except LogStoreError:
            pass
        assert machine.manager is not None
        log = machine.manager.log(PARTITION)
        progress = machine.manager.moves.progress()
        states |= {one.state for one in progress}
        failed_path = trace[operation - 1].split(" ")[1]
        if not log.availability.is_offline:
            survivor_count += 1
            ledger.append(log, [ledger.batch(2)])
            ledger.flush(log)
            ledger.verify(log, after_crash=False)
        else:
            # Where it is now is where the disk failed.
            assert failed_path.startswith(log.local_log.directory.rpartition("/")[0])
        for survival in (NOTHING_KEPT, EVERYTHING_KEPT):
            verify_found(disk.reopened(survival), config, ledger, goes_on=survival == NOTHING_KEPT)
    assert states >= {MoveState.DONE, MoveState.FAILED}
    assert survivor_count
