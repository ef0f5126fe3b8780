"""A process that is killed as a move's copy takes the partition's name, and a machine that loses power while
the next process settles that.

Nothing of the new name need be durable when the next process finds it, and it puts the older copy away for
good. At whichever operation the power goes: the partition is in one directory, with all that was flushed.
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
    [commit] = [number for number, name in enumerate(trace, start=1) if is_commit(name)]
    [aside] = [number for number, name in enumerate(trace, start=1) if is_aside(name)]
    assert commit < aside
    places = set[str]()
    for killed_operation in range(commit + 1, aside + 1):
        started, _ = killed_at(killed_operation)
        moving_machine(started, CONFIG, 1).open()
        assert any(map(is_aside, started.trace)), "the older copy is not put away by that start"
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


def is_commit(name: str) -> bool:
    return name.startswith(f"rename {OTHER_DIR}/{PARTITION}.") and name.endswith(f" {OTHER_DIR}/{PARTITION}")


def is_aside(name: str) -> bool:
    return name.startswith(f"rename {DATA_DIR}/{PARTITION} ")


def verified_place(disk: FaultyFileSystem, ledger: LogLedger) -> str:
    """The log directory that has the partition, with all that it must have."""
    names = disk.inner.contents()
    assert {f"{path}/{PARTITION}" for path in (DATA_DIR, OTHER_DIR)} & names.keys(), "the partition is lost"
    log = moving_machine(disk, CONFIG, 2).start()
    ledger.copy().verify(log, after_crash=True)
    return log.directory.rpartition("/")[0]
