"""A machine that dies at every operation of a move that begins badly: nothing of the log is durable, not even
its directory's name, or the disk that it leaves is full and has no room for another name.

From each moment of a death several disks are built, as they may be found. Each is opened by a new process,
which must find the partition in one directory, with all that was promised to be durable, or say that the disk
is full, and find it once that has room.
"""

from __future__ import annotations

import errno

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.manager.log_manager import LogManager
from stratalog.manager.moves.log_move import MoveState
from stratalog.testing.full_filesystem import FullFileSystem
from tests.support.logs.crash_moments import NOTHING_KEPT
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.log_ledger import LogLedger
from tests.support.logs.log_machine import DATA_DIR, OTHER_DIR, PARTITION, LogMachine, machine_on

STARTS = pytest.mark.parametrize(
    ("is_flushed", "is_full"),
    [
        pytest.param(False, False, id="unflushed"),
        pytest.param(True, True, id="full"),
        pytest.param(False, True, id="unflushed, full"),
    ],
)


class Work:
    """A log that moves off its disk, which may be full. Used by one thread."""

    def __init__(self, *, is_flushed: bool, is_full: bool) -> None:
        self.disk = FullFileSystem()
        self.ledger = LogLedger()
        self.machine = machine_on(self.disk, ids=1)
        self.log = self.machine.start()
        for _ in range(6 if is_flushed else 2):
            self.ledger.append(self.log, [self.ledger.batch(7)])
        if is_flushed:
            self.ledger.flush(self.log)
            self.machine.checkpoint()
        if is_full:
            manager_of(self.machine).tasks.keep_spare_space()
            self.disk.names_are_full = True
            self.disk.fill(DATA_DIR)

    def move(self) -> None:
        """And use it in the new place, until what it has left is removed."""
        manager = manager_of(self.machine)
        assert manager.begin_move(PARTITION, OTHER_DIR).run() is MoveState.DONE
        self.ledger.durable_end_offset = self.log.offsets.recovery_point
        self.ledger.append(self.log, [self.ledger.batch(3)])
        self.ledger.flush(self.log)
        self.machine.clock.advance(60_000)
        assert not self.machine.scheduler.failures


def manager_of(machine: LogMachine) -> LogManager:
    assert machine.manager is not None
    return machine.manager


@STARTS
def test_dying_in_a_move_that_begins_badly_leaves_one_log(is_flushed: bool, is_full: bool) -> None:
    places = set[str]()

    def verify(death: Death[Work]) -> None:
        for disk in death.disks():
            assert isinstance(disk, FullFileSystem)
            places.add(verify_found(disk, death.subject.ledger))

    sweep = CrashSweep(lambda: Work(is_flushed=is_flushed, is_full=is_full), Work.move)
    names = sweep.whole.disk.inner.list_directory(DATA_DIR)
    assert not [name for name in names if "orders" in name]
    sweep.at_deaths(verify)
    assert places == {DATA_DIR, OTHER_DIR}


def verify_found(disk: FullFileSystem, ledger: LogLedger) -> str:
    """Open what is left, twice; returns the directory that has the log."""
    found = ledger.copy()
    try:
        log = machine_on(disk, ids=2).start()
    except DataDirectoryError as failure:
        # The space that was kept aside may be used up, so that a recovery finds no room.
        if f"[Errno {errno.ENOSPC}]" not in str(failure.fields.get("reason")):
            raise
        disk = disk.killed()
        disk.fill(None)
        log = machine_on(disk, ids=3).start()
    place = log.local_log.directory.rpartition("/")[0]
    found.verify(log, after_crash=True)
    again = disk.reopened(NOTHING_KEPT)
    again.fill(None)
    log = machine_on(again, ids=4).start()
    assert log.local_log.directory == f"{place}/{PARTITION}"
    found.verify(log, after_crash=True)
    return place
