"""What a partition that has moved leaves behind, where its disk is full or refuses that it goes."""

from __future__ import annotations

import errno
import os

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.log.retention.late_removal import RETRY_MS
from stratalog.manager.moves.log_move import MoveState
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.crash_moments import NOTHING_KEPT
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.log_machine import DATA_DIR, PARTITION_DIR, machine_on
from tests.support.logs.moving_log import OTHER_PARTITION_DIR, MovingLog, flip_of

DELAY_MS = 1000


def refuse_names(disk: FaultyFileSystem, number: int, *, keeps_files: bool = False) -> None:
    """Refuse another name for the partition in the first directory, and to remove its files."""

    def is_refused(line: str) -> bool:
        kind, path = line.split(" ", 1)
        if keeps_files and kind in ("unlink", "remove_tree"):
            return path.startswith(PARTITION_DIR)
        return kind == "rename" and path.startswith(f"{PARTITION_DIR} ")

    disk.fail_where(is_refused, number=number)


def full(disk: FullFileSystem) -> MovingLog:
    """The first directory is full, and so is its own block of names."""
    moving = MovingLog(disk)
    moving.manager.bind_store("store")
    moving.ledger.flush(moving.log)
    moving.machine.checkpoint()
    disk.names_are_full = True
    disk.fill(DATA_DIR)
    return moving


def go_on(moving: MovingLog) -> None:
    """The partition serves from the other directory, and all of it is there after a restart."""
    assert moving.log.local_log.directory == OTHER_PARTITION_DIR
    moving.append()
    moving.ledger.flush(moving.log)
    moving.ledger.verify(moving.log, after_crash=False)
    machine = machine_on(moving.disk.reopened(NOTHING_KEPT), ids=1)
    log = machine.start()
    assert log.local_log.directory == OTHER_PARTITION_DIR
    moving.ledger.copy().verify(log, after_crash=True)


def test_a_move_off_a_full_disk_frees_it() -> None:
    disk = FullFileSystem()
    moving = full(disk)
    assert moving.begin().run() is MoveState.DONE
    assert not disk.inner.exists(PARTITION_DIR)
    # Files go at once only where they must.
    [left_path] = moving.left_over()
    assert disk.inner.exists(f"{left_path}/partition.metadata")
    go_on(moving)
    moving.machine.clock.advance(DELAY_MS)
    assert moving.left_over() == []
    assert [path for path in moving.files(DATA_DIR) if path.startswith("orders")] == []


def test_a_full_disk_without_room_for_a_manifest_keeps_its_log_and_serves_it() -> None:
    disk = FullFileSystem(MemoryFileSystem(can_reserve=False))
    moving = full(disk)
    move = moving.begin()
    assert move.run() is MoveState.FAILED
    assert "the local disk is full" in move.progress.reason
    assert moving.left_over() == []
    assert moving.log.local_log.directory == PARTITION_DIR
    moving.ledger.verify(moving.log, after_crash=False)
    disk.fill(None)
    assert moving.begin().run() is MoveState.DONE
    go_on(moving)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSPC])
def test_what_cannot_be_put_away_is_told_and_tried_again(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullFileSystem()
    moving = full(disk)
    refuse_names(disk, number, keeps_files=True)
    assert moving.begin().run() is MoveState.DONE
    go_on(moving)
    moving.machine.clock.advance(0)
    [told] = [one.message for one in caplog.records if "tried again" in one.message]
    assert DATA_DIR in told
    assert "orders-0" in told
    assert os.strerror(number) in told
    moving.machine.clock.advance(RETRY_MS)
    assert disk.inner.exists(PARTITION_DIR)
    disk.mend()
    moving.machine.clock.advance(RETRY_MS + DELAY_MS)
    assert not disk.inner.exists(PARTITION_DIR)
    assert moving.left_over() == []
    assert not moving.machine.scheduler.failures
    go_on(moving)


def cut_off(disk: FullFileSystem) -> MovingLog:
    """Both directories have the partition, of which the other one's is the newer."""
    rehearsal = full(FullFileSystem())
    assert rehearsal.begin().run() is MoveState.DONE
    moving = full(disk)
    # The manifest is there, and its name is not durable.
    disk.crash_at(flip_of(rehearsal.disk.trace), part=1)
    with pytest.raises(SimulatedCrash):
        moving.begin().run()
    return moving


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSPC])
def test_a_start_that_cannot_put_it_away_serves_the_newer_one_and_tries_again(number: int) -> None:
    moving = cut_off(FullFileSystem())
    disk = moving.disk.killed()
    refuse_names(disk, number, keeps_files=True)
    machine = machine_on(disk, ids=1)
    log = machine.start()
    assert log.local_log.directory == OTHER_PARTITION_DIR
    assert disk.inner.exists(PARTITION_DIR)
    moving.ledger.copy().verify(log, after_crash=True)
    assert machine.manager is not None
    assert machine.manager.directories()[0].partition_count == 0
    disk.mend()
    machine.clock.advance(2 * RETRY_MS)
    assert not disk.inner.exists(PARTITION_DIR)


def test_no_start_takes_an_older_copy_for_the_partition() -> None:
    """The machine dies anywhere in the move, and the newer copy's disk is away then."""
    sweep = CrashSweep(lambda: full(FullFileSystem()), move_and_remove)
    end_offset, other = sweep.whole.ledger.durable_end_offset, sweep.whole.manager.directories()[1]
    flip = flip_of(sweep.trace)
    outcomes = set[str]()

    def verify(death: Death[MovingLog]) -> None:
        for found in death.disks():
            assert isinstance(found, FullFileSystem)
            found.fill(None)
            try:
                log = machine_on(found, ids=1, data_dirs=(DATA_DIR,)).start()
            except DataDirectoryError as failure:
                outcomes.add(str(failure.fields["directory_id"]))
            else:
                assert death.operation <= flip, "the newer copy counts"
                assert log.offsets.log_end_offset == end_offset
                outcomes.add("whole")

    sweep.at_deaths(verify)
    assert outcomes == {"whole", other.directory_id}


def move_and_remove(moving: MovingLog) -> None:
    """And remove the older copy."""
    moving.begin().run()
    moving.machine.clock.advance(DELAY_MS)
