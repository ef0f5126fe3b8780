"""A process that is killed as the target of a move becomes the partition, and a machine that loses power
while the next process settles that.

The target's manifest need not be durable when the next process finds it, and that process puts the older
copy away for good. At whichever operation the power goes: one directory has the partition, with all that was
flushed.
"""

from __future__ import annotations

from functools import partial

import pytest

from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.moves.log_move import MoveState
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.log_ledger import LogLedger
from tests.support.logs.log_machine import DATA_DIR, OTHER_DIR, PARTITION, machine_on
from tests.support.logs.moving_log import aside_of, flip_of


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
        assert self._machine.manager is not None
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
        sweep = CrashSweep(partial(Start, killed_operation), Start.run)
        assert aside_of(sweep.trace), "the older copy is put away by that start"
        sweep.at_deaths(verify)
    assert places == {DATA_DIR, OTHER_DIR}


def verified_place(disk: FaultyFileSystem, ledger: LogLedger) -> str:
    """The log directory that has the partition, with all that it must have."""
    log = machine_on(disk, ids=2).start()
    ledger.copy().verify(log, after_crash=True)
    return log.local_log.directory.rpartition("/")[0]
