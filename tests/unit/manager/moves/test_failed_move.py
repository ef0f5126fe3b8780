"""Moves between two log directories that fail: what is refused, what is left, and which copy counts."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from stratalog.base.errors import DataDirectoryError, LogStoreError
from stratalog.log.retention.late_removal import RETRY_MS
from stratalog.manager.directories.manifest import MANIFEST_FILE, PartitionState, read_manifest
from stratalog.manager.moves.log_move import MoveState
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.logs.log_machine import DATA_DIR, OTHER_DIR, PARTITION, PARTITION_DIR, machine_on
from tests.support.logs.moving_log import OTHER_PARTITION_DIR, MovingLog, flip_of


def test_a_directory_in_the_partitions_directory_is_for_a_human(caplog: pytest.LogCaptureFixture) -> None:
    moving = MovingLog()
    moving.disk.make_directories(f"{PARTITION_DIR}/notes")
    move = moving.begin()
    assert move.run() is MoveState.FAILED
    assert "move that away" in move.progress.reason
    assert moving.left_over() == []
    [told] = [one for one in caplog.records if "has ended: failed" in one.message]
    assert (told.levelname, "move that away" in told.message) == ("WARNING", True)


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
    assert machine.manager is not None
    assert (PARTITION in [one.partition for one in machine.manager.moves.wanted]) is not has_both
    assert machine.manager.begin_move(PARTITION, OTHER_DIR).run() is MoveState.DONE
    moving.ledger.verify(log, after_crash=False)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_where_the_outcome_is_unknown_the_log_is_offline(number: int) -> None:
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
    assert log.local_log.directory == OTHER_PARTITION_DIR
    moving.ledger.verify(log, after_crash=True)


def settle_of(trace: Sequence[str], flip: int) -> int:
    """The number of the operation that begins to change the source's manifest after the flip."""
    return next(
        number
        for number, one in enumerate(trace, start=1)
        if number > flip and one == f"open_append {DATA_DIR}/{MANIFEST_FILE}.tmp"
    )


def test_an_older_copy_on_a_disk_that_comes_back_is_put_away() -> None:
    """The source failed right after the commit, and was away at the next start."""
    moving = MovingLog()
    assert moving.begin().run() is MoveState.DONE
    disk = FaultyFileSystem()
    # The source's manifest is changed no more.
    disk.fail_at(settle_of(moving.disk.trace, flip_of(moving.disk.trace)))
    moving = MovingLog(disk)
    assert moving.begin().run() is MoveState.DONE
    moving.append()
    moving.ledger.flush(moving.log)
    disk = disk.killed()

    def start(seed: int, *data_dirs: str) -> None:
        machine = machine_on(disk, ids=seed, data_dirs=data_dirs)
        log = machine.start()
        assert log.local_log.directory == OTHER_PARTITION_DIR
        moving.ledger.verify(log, after_crash=True)
        moving.log = log
        moving.append()
        machine.stop()
        moving.ledger.durable_end_offset = log.offsets.log_end_offset

    start(1, OTHER_DIR)
    assert disk.inner.exists(PARTITION_DIR)
    start(2, DATA_DIR, OTHER_DIR)
    assert PARTITION_DIR not in disk.inner.contents()
    start(3, DATA_DIR, OTHER_DIR)


def test_an_older_copy_is_not_served_where_its_target_has_passed_it_on() -> None:
    """A's disk was away when the partition went on from B to C; then C's is away."""
    dirs = (DATA_DIR, OTHER_DIR, "/third")
    disk = FaultyFileSystem()
    moving = MovingLog(disk)
    moving.machine.stop()
    moving.machine = machine_on(disk, ids=1, data_dirs=dirs)
    moving.log = moving.machine.start()
    count = disk.operation_count
    assert moving.begin().run() is MoveState.DONE
    flip, rehearsed = count + flip_of(disk.trace[count:]), disk.trace
    disk = FaultyFileSystem()
    disk.fail_at(settle_of(rehearsed, flip))
    moving = MovingLog(disk)
    moving.machine.stop()
    moving.machine = machine_on(disk, ids=1, data_dirs=dirs)
    moving.log = moving.machine.start()
    assert moving.begin().run() is MoveState.DONE
    assert moving.begin(target="/third").run() is MoveState.DONE
    moving.append()
    moving.ledger.flush(moving.log)
    disk = disk.killed()
    machine = machine_on(disk, ids=2, data_dirs=(DATA_DIR, OTHER_DIR))
    with pytest.raises(DataDirectoryError) as failure:
        machine.start()
    assert failure.value.fields["path"] == PARTITION_DIR
    machine.stop()
    log = machine_on(disk, ids=3, data_dirs=dirs).start()
    assert log.local_log.directory == f"/third/{PARTITION}"
    moving.ledger.verify(log, after_crash=True)
    assert not disk.exists(PARTITION_DIR)


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
