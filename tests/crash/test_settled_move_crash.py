"""A process that is killed as the target of a move becomes the partition, and a machine that loses power
while the next process settles that.

The target's manifest need not be durable when the next process finds it, and that process puts the older
copy away for good. At whichever operation the power goes: one directory has the partition, with all that was
flushed.
"""

from __future__ import annotations

import pytest

from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.moves.log_move import MoveState
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.memory_filesystem import Kept, Survival
from tests.support.logs.crash_moments import EVERYTHING_KEPT, NOTHING_KEPT, deaths
from tests.support.logs.log_ledger import LogLedger
from tests.support.logs.log_machine import DATA_DIR, PARTITION
from tests.support.logs.moving_log import aside_of, flip_of
from tests.support.logs.moving_machine import OTHER_DIR, moving_machine

CONFIG = LogConfig(segment_bytes=1024, remote_storage_enable=False, retention_ms=-1)


class Move:
    """Of a small log, all of which was flushed. Used by one thread."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.ledger = LogLedger()
        self._machine = moving_machine(self.disk, CONFIG)
        self._log: UnifiedLog = self._machine.start()
        for _ in range(3):
            self.ledger.append(self._log, [self.ledger.batch(7)])
        self.ledger.flush(self._log)
        self._machine.checkpoint()

    def run(self) -> None:
        assert self._machine.manager is not None
        assert self._machine.manager.begin_move(PARTITION, OTHER_DIR).run() is MoveState.DONE


def killed_at(operation: int) -> tuple[FaultyFileSystem, LogLedger]:
    """What the next process finds: all that was done, durable or not."""
    move = Move()
    move.disk.crash_at(operation)
    with pytest.raises(SimulatedCrash):
        move.run()
    return move.disk.killed(), move.ledger


def test_losing_power_while_a_start_settles_what_a_kill_left_leaves_one_log() -> None:
    rehearsal = Move()
    rehearsal.run()
    trace = rehearsal.disk.trace
    flip, aside = flip_of(trace), aside_of(trace)
    assert flip < aside
    places = set[str]()
    for killed_operation in range(flip + 1, aside + 1):
        started, _ = killed_at(killed_operation)
        moving_machine(started, CONFIG, 1).open()
        assert aside_of(started.trace), "the older copy is put away by that start"
        # Behind its last operation the power may go as well.
        for operation, part in (*deaths(started.trace), (len(started.trace) + 1, 0.0)):
            found, ledger = killed_at(killed_operation)
            found.crash_at(operation, part=part)
            if operation <= len(started.trace):
                with pytest.raises(SimulatedCrash):
                    moving_machine(found, CONFIG, 1).open()
            else:
                moving_machine(found, CONFIG, 1).open()
            for survival in (NOTHING_KEPT, Survival(Kept.HALF, Kept.HALF), EVERYTHING_KEPT):
                places.add(verified_place(found.reopened(survival), ledger))
    assert places == {DATA_DIR, OTHER_DIR}


def verified_place(disk: FaultyFileSystem, ledger: LogLedger) -> str:
    """The log directory that has the partition, with all that it must have."""
    log = moving_machine(disk, CONFIG, 2).start()
    ledger.copy().verify(log, after_crash=True)
    return log.local_log.directory.rpartition("/")[0]
