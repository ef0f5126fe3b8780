"""Moves between two log directories that fail: what is refused, what is left, and which copy counts."""

from __future__ import annotations

import errno
import os
from uuid import UUID

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.log.retention.late_removal import RETRY_MS
from stratalog.manager.moves.log_move import MoveState
from stratalog.manager.moves.move_mark import MoveMark, read_move_mark, write_move_mark
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.logs.log_machine import DATA_DIR, PARTITION, PARTITION_DIR
from tests.support.logs.moving_log import OTHER_PARTITION_DIR, MovingLog
from tests.support.logs.moving_machine import OTHER_DIR


def test_damage_is_not_copied() -> None:
    moving = MovingLog()
    segment = moving.log.segments()[2]
    path = f"{PARTITION_DIR}/{segment.base_offset:020d}.log"
    data = bytearray(moving.disk.read_file(path))
    data[len(data) // 2] ^= 4
    file = moving.disk.open_append(path)
    file.truncate(0)
    file.append([bytes(data)])
    move = moving.begin()
    assert move.run() is MoveState.FAILED
    assert path in move.progress.reason
    assert moving.left_over() == []
    assert moving.log.directory == PARTITION_DIR
    assert not moving.log.is_offline
    moving.append()


def test_a_directory_in_the_partitions_directory_is_for_a_human(caplog: pytest.LogCaptureFixture) -> None:
    moving = MovingLog()
    moving.disk.make_directories(f"{PARTITION_DIR}/notes")
    move = moving.begin()
    assert move.run() is MoveState.FAILED
    assert "move that away" in move.progress.reason
    assert moving.left_over() == []
    [told] = [one for one in caplog.records if "has ended: failed" in one.message]
    assert (told.levelname, "move that away" in told.message) == ("WARNING", True)


def commit_of(moving: MovingLog) -> int:
    """The number of the operation that gives the copy its name."""
    return next(
        number
        for number, one in enumerate(moving.disk.trace, start=1)
        if one.startswith("rename") and one.endswith(f"-future {OTHER_PARTITION_DIR}")
    )


@pytest.mark.parametrize("part", [0.0, 1.0])
@pytest.mark.parametrize("operation", ["rename", "sync"])
def test_a_target_that_fails_at_the_commit_counts_for_nothing(operation: str, part: float) -> None:
    moving = MovingLog()
    assert moving.begin().run() is MoveState.DONE
    commit = commit_of(moving) + (operation == "sync")
    assert moving.disk.trace[commit - 1].startswith(
        "rename" if operation == "rename" else f"sync_directory {OTHER_DIR}"
    )
    disk = FaultyFileSystem()
    disk.fail_at(commit, number=errno.EIO, part=part)
    moving = MovingLog(disk)
    move = moving.begin()
    assert move.run() is MoveState.FAILED
    assert OTHER_DIR in move.progress.reason
    assert moving.log.directory == PARTITION_DIR
    moving.append()
    moving.ledger.flush(moving.log)
    moving.ledger.verify(moving.log, after_crash=False)
    # The next start finds both, or not; what was acknowledged since is in the source.
    has_both = OTHER_PARTITION_DIR in disk.inner.contents()
    assert has_both == (operation == "sync" or part == 1)
    machine = moving.new_machine(disk.killed(), 1)
    log = machine.start()
    assert log.directory == PARTITION_DIR
    moving.ledger.verify(log, after_crash=True)
    assert OTHER_PARTITION_DIR not in disk.inner.contents()
    assert machine.manager is not None
    assert machine.manager.begin_move(PARTITION, OTHER_DIR).run() is MoveState.DONE
    moving.ledger.verify(log, after_crash=False)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_where_nobody_knows_which_copy_counts_the_log_is_offline(number: int) -> None:
    moving = MovingLog()
    assert moving.begin().run() is MoveState.DONE
    commit = commit_of(moving) + 1
    disk = FaultyFileSystem()
    disk.fail_at(commit, number=number, part=1)
    # And the source does not take the word that voids it.
    disk.fail_at(commit + 2, number=number)
    moving = MovingLog(disk)
    assert moving.begin().run() is MoveState.FAILED
    assert disk.trace[commit + 1].endswith("move.void.tmp")
    assert moving.log.is_offline
    with pytest.raises(LogStoreError):
        moving.log.flush()
    moving.ledger.durable_end_offset = moving.log.recovery_point
    machine = moving.new_machine(disk.killed(), 1)
    log = machine.start()
    assert log.directory == OTHER_PARTITION_DIR
    moving.ledger.verify(log, after_crash=True)


def test_a_source_that_fails_takes_the_log_and_the_move_along() -> None:
    moving = MovingLog()

    def fail(step: int) -> None:
        if step == 2:
            moving.disk.fail_at(moving.disk.operation_count + 1)
            with pytest.raises(LogStoreError):
                moving.log.flush()

    move = moving.begin(fail)
    assert move.run() is MoveState.FAILED
    assert moving.log.is_offline
    assert moving.log.directory == PARTITION_DIR
    assert OTHER_PARTITION_DIR not in moving.disk.inner.contents()


def test_an_older_copy_on_a_disk_that_comes_back_is_put_away() -> None:
    """The source failed right after the commit, and was away at the next start."""
    moving = MovingLog()
    assert moving.begin().run() is MoveState.DONE
    [aside] = [
        number
        for number, one in enumerate(moving.disk.trace, start=1)
        if one.startswith(f"rename {PARTITION_DIR} ")
    ]
    disk = FaultyFileSystem()
    disk.fail_at(aside)
    moving = MovingLog(disk)
    assert moving.begin().run() is MoveState.DONE
    moving.append()
    moving.ledger.flush(moving.log)
    disk = disk.killed()

    def start(seed: int, *data_dirs: str) -> None:
        machine = moving.new_machine(disk, seed, data_dirs)
        log = machine.start()
        assert log.directory == OTHER_PARTITION_DIR
        moving.ledger.verify(log, after_crash=True)
        moving.log = log
        moving.append()
        machine.stop()
        moving.ledger.durable_end_offset = log.log_end_offset

    start(1, OTHER_DIR)
    assert f"{OTHER_PARTITION_DIR}/move.metadata" in disk.inner.contents()
    start(2, DATA_DIR, OTHER_DIR)
    assert PARTITION_DIR not in disk.inner.contents()
    start(3, DATA_DIR, OTHER_DIR)


def test_a_partition_that_was_in_the_target_before_moves_there_again() -> None:
    """Its mark still names the target, and another directory, which may have older copies."""

    def marked(disk: FaultyFileSystem) -> MovingLog:
        moving = MovingLog(disk)
        [_, target_id] = [one.directory_id for one in moving.manager.directories()]
        write_move_mark(disk, PARTITION_DIR, MoveMark(PARTITION, UUID(int=5), (target_id, "away")))
        return moving

    rehearsal = marked(FaultyFileSystem())
    assert rehearsal.begin().run() is MoveState.DONE
    disk = FaultyFileSystem()
    # The source takes no further change once the target has the partition.
    disk.fail_at(commit_of(rehearsal) + 2)
    moving = marked(disk)
    source_id = moving.manager.directories()[0].directory_id
    assert moving.begin().run() is MoveState.DONE
    moving.append()
    moving.ledger.flush(moving.log)
    disk = disk.killed()
    mark = read_move_mark(disk, OTHER_PARTITION_DIR)
    assert mark is not None
    assert mark.source_ids == (source_id, "away")
    # Two copies that name each other would be for a human.
    assert disk.exists(PARTITION_DIR)
    log = moving.new_machine(disk, 1).start()
    assert log.directory == OTHER_PARTITION_DIR
    moving.ledger.verify(log, after_crash=True)
    assert not disk.exists(PARTITION_DIR)


def test_a_directory_that_was_away_stays_in_the_mark_of_every_later_copy() -> None:
    moving = MovingLog()
    write_move_mark(moving.disk, PARTITION_DIR, MoveMark(PARTITION, UUID(int=5), ("away",)))
    for directory in (OTHER_DIR, DATA_DIR):
        assert moving.begin(target=directory).run() is MoveState.DONE
        mark = read_move_mark(moving.disk, f"{directory}/{PARTITION}")
        assert mark is not None
        assert mark.source_ids == ("away",)


class Unremovable(FaultyFileSystem):
    """Refuses to remove directories for a while."""

    is_refusing = True

    def remove_tree(self, path: str) -> None:
        if self.is_refusing:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        super().remove_tree(path)


def test_a_copy_that_cannot_be_removed_is_tried_again_and_is_no_wish() -> None:
    disk = Unremovable()
    moving = MovingLog(disk)
    disk.make_directories(f"{PARTITION_DIR}/notes")
    assert moving.begin().run() is MoveState.FAILED
    assert [path for path in moving.left_over() if path.endswith("-future")] == []
    assert len([path for path in moving.left_over() if path.endswith("-delete")]) == 1
    moving.machine.clock.advance(RETRY_MS)
    assert moving.left_over() != []
    disk.is_refusing = False
    moving.machine.clock.advance(RETRY_MS)
    assert moving.left_over() == []
