"""Owners of logs over time: pauses, deletions, directories that fail."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from errno import ENOSPC

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.base.types import TopicPartition
from stratalog.cleaner.cleaner_checkpoints import CLEANER_OFFSET_FILE
from stratalog.cleaner.cleaner_failures import FIRST_DELAY_MS
from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.cleaner.failure_kind import FailureKind
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.checkpoint import parse_checkpoint
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.native.cleaned_batches import NO_HORIZON
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.cleaner.cleaner_machine import COMPACTED, CleanerMachine
from tests.support.logs.log_machine import DATA_DIR

CHECKPOINT = f"{DATA_DIR}/{CLEANER_OFFSET_FILE}"


def taken(manager: CleanerManager) -> LogToClean:
    found = manager.take_filthiest()
    assert found is not None
    return found


def checkpoint_on_disk(machine: CleanerMachine, path: str = CHECKPOINT) -> dict[TopicPartition, int]:
    return parse_checkpoint(machine.machine.disk.read_file(path).decode())


def started(count: int = 1) -> CleanerMachine:
    machine = CleanerMachine()
    for number in range(count):
        machine.fill(machine.open(number), 1 + number, 1 + number)
    return machine


def test_a_log_is_looked_at_again_once_no_other_thread_can_change_it() -> None:
    """Others may have altered it since the first look."""
    machine = started()
    manager = machine.manager

    def fill(log: UnifiedLog) -> bool:
        machine.fill(log, 3)
        return True

    found = manager.take_filthiest(fill)
    assert found is not None
    assert (found.first_uncleanable_offset, found.log.offsets.log_end_offset) == (5, 5)
    manager.release(found.partition)

    def clean(log: UnifiedLog) -> bool:
        other = taken(manager)
        assert other.log is log
        manager.done(other, 5)
        return True

    assert manager.take_filthiest(clean) is None
    # No worker has it then.
    machine.fill(found.log, 9)
    assert taken(manager).first_dirty_offset == 5
    manager.check()


def test_a_worker_does_not_wait_for_itself() -> None:
    machine = started()
    found = taken(machine.manager)
    with pytest.raises(AssertionError):
        machine.manager.pause(found.partition)


def test_a_log_that_was_deleted_in_a_pause_is_not_taken() -> None:
    """Also by a worker that had looked at it before; and a log of the same name begins anew."""
    machine = started()
    manager, partition = machine.manager, machine.partition(0)
    manager.done(taken(manager), 2)
    stale = machine.log_manager.logs()
    with manager.paused(partition):
        machine.log_manager.delete_log(partition)
        manager.forget(partition)
    assert checkpoint_on_disk(machine) == {}
    with manager.held(stale[0]) as is_held:
        assert not is_held
    manager.check()
    machine.fill(machine.open(0), 3)
    found = taken(manager)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, 3)
    assert found.log is not stale[0]


@pytest.mark.parametrize(
    ("checkpoint", "expected", "told"), [(3, 5, "DEBUG"), (5, 5, None), (7, 7, None), (11, 5, "WARNING")]
)
def test_a_checkpoint_that_the_log_does_not_reach_is_corrected_at_once(
    checkpoint: int, expected: int, told: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Even of a log with nothing to clean: it will grow. That the start has passed it is no news: retention
    and deletions do that."""
    caplog.set_level(logging.DEBUG, "stratalog.cleaner.cleaner_manager")
    machine = CleanerMachine()
    log = machine.open(0, start_offset=5)
    machine.fill(log, 5)
    machine.machine.disk.open_append(CHECKPOINT).append([b"0\n1\norders 0 %d\n" % checkpoint])
    manager = machine.new_manager()
    with manager.paused(log.topic_partition):
        assert manager.take_filthiest() is None
    assert checkpoint_on_disk(machine) == {log.topic_partition: checkpoint}
    found = taken(manager)
    assert found.first_dirty_offset == expected
    assert checkpoint_on_disk(machine) == {log.topic_partition: expected}
    assert [
        (record.levelname, "its log does not have" in record.getMessage()) for record in caplog.records
    ] == ([] if told is None else [(told, told == "WARNING")])


def test_a_damaged_checkpoint_counts_as_empty() -> None:
    machine = started()
    machine.machine.disk.open_append(CHECKPOINT).append([b"0\n9\norders 0 2\n"])
    manager = machine.new_manager()
    assert taken(manager).first_dirty_offset == 0


def test_a_checkpoint_that_cannot_be_written_costs_a_pause() -> None:
    disk = FaultyFileSystem()
    machine = CleanerMachine(disk)
    machine.fill(machine.open(0), 2)
    found = taken(machine.manager)
    disk.fail_at(disk.operation_count + 1, number=ENOSPC)
    machine.manager.done(found, 2, NO_HORIZON)
    (failure,) = machine.manager.failures()
    assert (failure.kind, failure.dirty_bytes) == (FailureKind.FULL_DISK, 0)
    machine.manager.check()
    # The manager knows what the disk does not: no work is done twice, and the disk gets it later.
    assert machine.manager.take_filthiest() is None
    assert len(machine.manager.failures()) == 1
    machine.clock.advance(FIRST_DELAY_MS)
    assert machine.manager.take_filthiest() is None
    assert machine.manager.failures() == ()
    assert checkpoint_on_disk(machine) == {found.partition: 2}


class BrokenOffError(BaseException):
    """The waiting thread is interrupted."""


def test_a_pause_that_is_broken_off_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = started()
    manager, partition = machine.manager, machine.partition(0)
    found = taken(manager)

    def break_off(condition: threading.Condition, timeout_s: float | None) -> bool:
        raise BrokenOffError

    monkeypatch.setattr(machine.clock, "wait", break_off)
    with ThreadPoolExecutor(1) as pool, pytest.raises(BrokenOffError):
        pool.submit(manager.pause, partition).result(30)
    manager.check_done(found.log)
    manager.release(partition)
    manager.check()


def test_an_error_of_a_look_concerns_one_log() -> None:
    machine = started(2)
    directory = f"{DATA_DIR}/{machine.partition(1)}"
    first = machine.log_manager.log(machine.partition(1))
    first.reconfigure(replace(COMPACTED, max_compaction_lag_ms=60_000))
    machine.clock.advance(120_000)
    for name in machine.machine.disk.list_directory(directory):
        if name.endswith((".log", ".timeindex")) and name.startswith("0" * 19):
            file = machine.machine.disk.open_append(f"{directory}/{name}")
            size = file.size()
            file.truncate(0)
            file.append([b"\xff" * size])
    assert taken(machine.manager).partition == machine.partition(0)
    (failure,) = machine.manager.failures()
    assert failure.partition == machine.partition(1)
    assert failure.kind is FailureKind.DAMAGE
    assert failure.dirty_bytes > 0
    assert failure.directory == DATA_DIR


def test_what_failed_is_forgotten_with_its_log() -> None:
    machine = started()
    found = taken(machine.manager)
    machine.manager.failed(found.log, CorruptRecordError("no batch begins here", path="/x", position=7))
    (failure,) = machine.manager.failures()
    assert failure.reason == "no batch begins here path=`/x` position=`7`"
    assert machine.manager.take_filthiest() is None
    found.log.close()
    assert machine.manager.take_filthiest() is None
    assert machine.manager.failures() == ()


def test_the_end_of_a_clean_is_noted_before_a_pause_may_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a pause the log may be cut, which lowers the note."""
    machine = started()
    found, held = taken(machine.manager), list[bool]()

    def note(*_: object) -> None:
        with machine.manager.held(found.log) as is_held:
            held.append(is_held)

    monkeypatch.setattr(machine.horizons, "set_horizon", note)
    machine.manager.done(found, 2, 5)
    assert set(held) == {False}
    assert checkpoint_on_disk(machine) == {found.partition: 2}
