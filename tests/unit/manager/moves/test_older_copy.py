"""What a partition that has moved leaves behind, where its disk is full or refuses that it goes."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.log.retention.late_removal import RETRY_MS
from stratalog.manager.moves.log_move import MoveState
from stratalog.testing.faulty_filesystem import Fate, FaultyFileSystem, SimulatedCrash
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.crash_moments import NOTHING_KEPT, SURVIVALS, deaths
from tests.support.logs.log_machine import DATA_DIR, PARTITION_DIR
from tests.support.logs.moving_log import OTHER_PARTITION_DIR, MovingLog, aside_of, flip_of
from tests.support.logs.moving_machine import OTHER_DIR

DELAY_MS = 1000


class Refusing(FullFileSystem):
    """Refuses that anything in the first directory gets another name, and that this one is removed."""

    refused: int | None = None
    """By this error."""
    keeps_files = False
    """Refuses that files are unlinked as well."""

    on_name: Callable[[], None] | None = None
    """Called once, before the partition's name in the first directory is made durable."""

    def next_fate(self, name: str, path: str) -> Fate | None:
        on_name = self.on_name
        is_named = (name, path) == ("sync_directory", DATA_DIR) and self.inner.exists(PARTITION_DIR)
        if on_name is not None and is_named:
            self.on_name = None
            on_name()
        fate = super().next_fate(name, path)
        is_refused = name == "rename" and path.startswith(f"{PARTITION_DIR} ")
        is_refused |= (
            self.keeps_files and name in ("unlink", "remove_tree") and path.startswith(PARTITION_DIR)
        )
        if fate is None and self.refused is not None and is_refused:
            return Fate(0, OSError(self.refused, os.strerror(self.refused), path))
        return fate


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
    machine = moving.new_machine(moving.disk.reopened(NOTHING_KEPT), 1)
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


def test_what_never_has_room_for_another_name_is_removed_at_once() -> None:
    disk = Refusing()
    moving = full(disk)
    disk.refused = errno.ENOSPC
    assert moving.begin().run() is MoveState.DONE
    assert not disk.inner.exists(PARTITION_DIR)
    assert moving.left_over() == []
    go_on(moving)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSPC])
def test_what_cannot_be_put_away_is_told_and_tried_again(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Refusing()
    moving = full(disk)
    disk.refused, disk.keeps_files = number, True
    assert moving.begin().run() is MoveState.DONE
    go_on(moving)
    moving.machine.clock.advance(0)
    [told] = [one.message for one in caplog.records if "is tried again" in one.message]
    assert DATA_DIR in told
    assert "orders-0" in told
    assert os.strerror(number) in told
    moving.machine.clock.advance(RETRY_MS)
    assert disk.inner.exists(PARTITION_DIR)
    disk.refused = None
    moving.machine.clock.advance(RETRY_MS + DELAY_MS)
    assert not disk.inner.exists(PARTITION_DIR)
    assert moving.left_over() == []
    assert not moving.machine.scheduler.failures
    go_on(moving)


def not_left(disk: Refusing) -> MovingLog:
    """A partition that has moved, and left a copy that is tried again."""
    moving = MovingLog(disk)
    disk.refused = errno.EPERM
    assert moving.begin().run() is MoveState.DONE
    disk.refused = None
    return moving


def test_what_is_tried_again_leaves_alone_what_another_process_has() -> None:
    disk = Refusing()
    moving = not_left(disk)
    moving.machine.stop()
    moving.machine.clock.advance(2 * RETRY_MS)
    assert disk.inner.exists(PARTITION_DIR)
    assert not moving.machine.scheduler.failures


@pytest.mark.parametrize("is_beside", [True, False])
def test_what_is_tried_again_leaves_alone_what_has_the_name_since(is_beside: bool) -> None:
    """The partition moves back, once a human has removed the older copy. `is_beside`: it is tried while that
    move gives the name."""
    disk = Refusing()
    moving = not_left(disk)
    disk.inner.remove_tree(PARTITION_DIR)
    advance = partial(moving.machine.clock.advance, 2 * RETRY_MS)
    if is_beside:
        disk.on_name = advance
    assert moving.begin(target=DATA_DIR).run() is MoveState.DONE
    assert disk.on_name is None
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
    log = moving.new_machine(disk, 1).start()
    assert log.local_log.directory == OTHER_PARTITION_DIR
    assert not disk.inner.exists(PARTITION_DIR)
    moving.ledger.verify(log, after_crash=True)


def test_the_newer_copy_is_durable_before_the_older_one_goes() -> None:
    """The former process was killed at the flip; the power fails while the next one settles it."""
    rehearsal = cut_off(FullFileSystem())
    disk = rehearsal.disk.killed()
    rehearsal.new_machine(disk, 1).start()
    places: Counter[str] = Counter()
    for operation, part in deaths(disk.trace):
        moving = cut_off(FullFileSystem())
        disk = moving.disk.killed()
        disk.crash_at(operation, part=part)
        with pytest.raises(SimulatedCrash):
            moving.new_machine(disk, 1).start()
        for survival in SURVIVALS:
            log = moving.new_machine(FaultyFileSystem(disk.inner.after_crash(survival)), 2).start()
            places[log.local_log.directory] += 1
            moving.ledger.copy().verify(log, after_crash=True)
    assert places.keys() == {PARTITION_DIR, OTHER_PARTITION_DIR}


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSPC])
def test_a_start_that_cannot_put_it_away_serves_the_newer_one_and_tries_again(number: int) -> None:
    moving = cut_off(FullFileSystem())
    disk = Refusing(moving.disk.killed().inner)
    disk.refused, disk.keeps_files = number, True
    machine = moving.new_machine(disk, 1)
    log = machine.start()
    assert log.local_log.directory == OTHER_PARTITION_DIR
    assert disk.inner.exists(PARTITION_DIR)
    moving.ledger.copy().verify(log, after_crash=True)
    assert machine.manager is not None
    assert machine.manager.directories()[0].partition_count == 0
    disk.refused = None
    machine.clock.advance(2 * RETRY_MS)
    assert not disk.inner.exists(PARTITION_DIR)


def test_no_start_takes_an_older_copy_for_the_partition() -> None:
    """The machine dies anywhere in the move, and the newer copy's disk is away then."""
    rehearsal = full(FullFileSystem())
    end_offset, other = rehearsal.log.offsets.log_end_offset, rehearsal.manager.directories()[1]
    first = rehearsal.disk.operation_count + 1
    move_and_remove(rehearsal)
    flip = flip_of(rehearsal.disk.trace)
    outcomes: Counter[str] = Counter()
    for operation, part in deaths(rehearsal.disk.trace, first):
        disk = FullFileSystem()
        moving = full(disk)
        disk.crash_at(operation, part=part)
        with pytest.raises(SimulatedCrash):
            move_and_remove(moving)
        some = (Survival(Kept.ALL, Kept.EACH, seed=seed) for seed in range(2))
        for survival in (*SURVIVALS, *some):
            found = disk.reopened(survival)
            found.fill(None)
            try:
                log = moving.new_machine(found, 1, (DATA_DIR,)).start()
            except DataDirectoryError as failure:
                outcomes[str(failure.fields["directory_id"])] += 1
            else:
                assert operation <= flip, "the newer copy counts"
                assert log.offsets.log_end_offset == end_offset
                outcomes["whole"] += 1
    assert outcomes.keys() == {"whole", other.directory_id}


def move_and_remove(moving: MovingLog) -> None:
    """And remove the older copy."""
    moving.begin().run()
    moving.machine.clock.advance(DELAY_MS)


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
