"""Moves between two log directories that fail, and older copies that cannot be removed."""

from __future__ import annotations

import errno
import os
from functools import partial

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.log.retention.late_removal import RETRY_MS
from stratalog.manager.directories.manifest import MANIFEST_FILE, PartitionState, read_manifest
from stratalog.manager.moves.log_move import MoveState
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.crash_moments import NOTHING_KEPT
from tests.support.logs.log_machine import DATA_DIR, OTHER_DIR, PARTITION, PARTITION_DIR, machine_on
from tests.support.logs.moving_log import OTHER_PARTITION_DIR, MovingLog, aside_of, flip_of

DELAY_MS = 1000


def test_a_directory_in_the_partitions_directory_is_for_a_human(caplog: pytest.LogCaptureFixture) -> None:
    moving = MovingLog()
    moving.disk.make_directories(f"{PARTITION_DIR}/notes")
    move = moving.begin()
    assert move.run() is MoveState.FAILED
    assert "move that away" in move.progress.reason
    assert moving.left_over() == []
    [told] = [one for one in caplog.records if "has ended: failed" in one.getMessage()]
    assert (told.levelname, "move that away" in told.getMessage()) == ("WARNING", True)


@pytest.mark.parametrize("part", [0.0, 1.0])
@pytest.mark.parametrize("operation", ["rename", "sync"])
def test_a_target_that_fails_at_the_flip_counts_for_nothing(operation: str, part: float) -> None:
    moving = MovingLog()
    assert moving.begin().run() is MoveState.DONE
    flip = flip_of(moving.disk.trace) + (operation == "sync")
    assert moving.disk.trace[flip - 1].startswith("sync_directory" if operation == "sync" else "rename")
    disk = FaultyFileSystem()
    disk.fail_at(flip, number=errno.EIO, part=part)
    moving = MovingLog(disk)
    move = moving.begin()
    assert move.run() is MoveState.FAILED
    assert OTHER_DIR in move.progress.reason
    assert moving.log.local_log.directory == PARTITION_DIR
    moving.append()
    moving.ledger.flush(moving.log)
    moving.ledger.verify(moving.log, after_crash=False)
    # The next start finds two live copies, or not; what was acknowledged since is in the source.
    state = read_manifest(disk, OTHER_DIR).partitions[PARTITION].state
    has_both = operation == "sync" or part == 1
    assert state is (PartitionState.LIVE if has_both else PartitionState.INCOMING)
    machine = machine_on(disk.killed(), ids=1)
    log = machine.start()
    assert log.local_log.directory == PARTITION_DIR
    moving.ledger.verify(log, after_crash=True)
    assert (PARTITION in [one.partition for one in machine.manager.moves.wanted]) is not has_both
    assert machine.manager.begin_move(PARTITION, OTHER_DIR).run() is MoveState.DONE
    moving.ledger.verify(log, after_crash=False)


@pytest.mark.parametrize(
    ("number", "directory"), [(errno.EIO, OTHER_PARTITION_DIR), (errno.ENOSPC, PARTITION_DIR)]
)
def test_where_the_outcome_is_unknown_the_log_is_offline(number: int, directory: str) -> None:
    """Nothing is acknowledged after that, so either copy has everything."""
    rehearsal = MovingLog()
    assert rehearsal.begin().run() is MoveState.DONE
    flip = flip_of(rehearsal.disk.trace)
    disk = FaultyFileSystem()
    disk.fail_at(flip + 1, number=number, part=1)
    # And the source does not take the number that makes its copy the newer one.
    disk.fail_at(flip + 2, number=number)
    moving = MovingLog(disk)
    assert moving.begin().run() is MoveState.FAILED
    assert disk.trace[flip + 1].endswith(f"{DATA_DIR}/{MANIFEST_FILE}.tmp")
    assert moving.log.availability.is_offline
    with pytest.raises(LogStoreError):
        moving.log.flusher.flush()
    moving.ledger.durable_end_offset = moving.log.offsets.recovery_point
    machine = machine_on(disk.killed(), ids=1)
    log = machine.start()
    assert log.local_log.directory == directory
    moving.ledger.verify(log, after_crash=True)


def test_a_copy_that_cannot_be_removed_is_tried_again_and_is_no_wish() -> None:
    disk = FaultyFileSystem()
    disk.fail_where(lambda line: line.startswith("remove_tree "), number=errno.EPERM)
    moving = MovingLog(disk)
    disk.make_directories(f"{PARTITION_DIR}/notes")
    assert moving.begin().run() is MoveState.FAILED
    assert len([path for path in moving.left_over() if path.endswith("-delete")]) == 1
    moving.machine.clock.advance(RETRY_MS)
    assert moving.left_over() != []
    disk.mend()
    moving.machine.clock.advance(RETRY_MS)
    assert moving.left_over() == []


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
    moving.manager.directories.bind_store("store")
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
def test_what_cannot_be_put_away_is_logged_and_tried_again(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullFileSystem()
    moving = full(disk)
    refuse_names(disk, number, keeps_files=True)
    assert moving.begin().run() is MoveState.DONE
    go_on(moving)
    moving.machine.clock.advance(0)
    [told] = [one.getMessage() for one in caplog.records if "tried again" in one.getMessage()]
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


def test_what_never_has_room_for_another_name_is_removed_at_once() -> None:
    disk = FullFileSystem()
    moving = full(disk)
    refuse_names(disk, errno.ENOSPC)
    assert moving.begin().run() is MoveState.DONE
    assert not disk.inner.exists(PARTITION_DIR)
    assert moving.left_over() == []
    go_on(moving)


def not_left(disk: FaultyFileSystem) -> MovingLog:
    """A partition that has moved, and left a copy that is tried again."""
    moving = MovingLog(disk)
    refuse_names(disk, errno.EPERM)
    assert moving.begin().run() is MoveState.DONE
    disk.mend()
    return moving


def test_what_is_tried_again_leaves_alone_what_another_process_has() -> None:
    disk = FullFileSystem()
    moving = not_left(disk)
    moving.machine.stop()
    moving.machine.clock.advance(2 * RETRY_MS)
    assert disk.inner.exists(PARTITION_DIR)
    assert not moving.machine.scheduler.failures


@pytest.mark.parametrize("is_beside", [True, False])
def test_what_is_tried_again_leaves_alone_what_has_the_name_since(is_beside: bool) -> None:
    """The partition moves back, once a human has removed the older copy. `is_beside`: it is tried while that
    move gives the name."""
    disk = FullFileSystem()
    moving = not_left(disk)
    disk.inner.remove_tree(PARTITION_DIR)
    advance = partial(moving.machine.clock.advance, 2 * RETRY_MS)
    move = moving.begin(lambda _: advance() if is_beside else None, target=DATA_DIR)
    assert move.run() is MoveState.DONE
    advance()
    assert disk.inner.exists(PARTITION_DIR)
    assert not moving.machine.scheduler.failures
    moving.append()
    moving.ledger.verify(moving.log, after_crash=False)


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


def test_a_start_on_a_full_disk_keeps_the_newer_copy() -> None:
    moving = cut_off(FullFileSystem())
    disk = moving.disk.killed()
    log = machine_on(disk, ids=1).start()
    assert log.local_log.directory == OTHER_PARTITION_DIR
    assert not disk.inner.exists(PARTITION_DIR)
    moving.ledger.verify(log, after_crash=True)


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
    assert machine.manager.directories.statuses()[0].partition_count == 0
    disk.mend()
    machine.clock.advance(2 * RETRY_MS)
    assert not disk.inner.exists(PARTITION_DIR)


def test_the_disk_of_an_older_copy_that_fails_is_left_alone() -> None:
    disk = FaultyFileSystem()
    moving = MovingLog(disk)
    assert moving.begin().run() is MoveState.DONE
    aside = aside_of(disk.trace)
    disk = FaultyFileSystem()
    disk.fail_at(aside, number=errno.EIO)
    moving = MovingLog(disk)
    assert moving.begin().run() is MoveState.DONE
    moving.machine.clock.advance(RETRY_MS)
    assert moving.files(DATA_DIR).keys() > {f"{PARTITION_DIR.rpartition('/')[2]}/partition.metadata"}
    assert not moving.machine.scheduler.failures
    assert not moving.log.availability.is_offline
    assert not any(one.startswith(OTHER_DIR) for one in moving.left_over())
