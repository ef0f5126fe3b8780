"""Late removals happen in the end, each for itself."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

import pytest

from stratalog.log.log_config import LogConfig
from stratalog.log.retention.late_removal import RETRY_MS, LateRemovals, Removal, unlink_leftover
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.background.thread_scheduler import ThreadScheduler
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.gate import Gate
from tests.support.logs.log_machine import LogMachine

DELAY_MS = 1000
SIZE_BYTES = 10


class Removals:
    """Things to remove, of which some refuse for a while."""

    def __init__(self, count: int) -> None:
        self.left = set(range(count))
        self.refusing: set[int] = set()
        self.try_count = 0
        self.is_over = False
        self.clock = ManualClock()
        scheduler = ManualScheduler(self.clock)
        self.removals = LateRemovals(scheduler)
        self.removals.add(
            "/d",
            "remove things",
            [Removal(self._removal(one), SIZE_BYTES) for one in range(count)],
            DELAY_MS,
            is_over=lambda: self.is_over,
        )
        self.scheduler = scheduler

    def _removal(self, one: int) -> Callable[[], None]:
        def remove() -> None:
            self.try_count += 1
            if one in self.refusing:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), f"/{one}")
            self.left.remove(one)

        return remove


def test_one_that_refuses_keeps_no_other_and_is_tried_until_it_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    removals = Removals(5)
    removals.refusing = {0, 3}
    removals.clock.advance(DELAY_MS - 1)
    assert len(removals.left) == 5
    removals.clock.advance(1)
    assert removals.left == {0, 3}
    removals.refusing = {3}
    removals.clock.advance(RETRY_MS)
    assert removals.left == {3}
    removals.clock.advance(10 * RETRY_MS)
    assert removals.try_count == 5 + 2 + 10
    removals.refusing = set()
    removals.clock.advance(RETRY_MS)
    assert (removals.left, removals.scheduler.pending()) == (set(), [])
    [told] = caplog.messages
    assert "left_count=`2`" in told


def test_nothing_is_tried_again_once_it_is_over() -> None:
    removals = Removals(2)
    removals.refusing, removals.is_over = {0}, True
    removals.clock.advance(DELAY_MS)
    assert (removals.left, removals.scheduler.pending()) == ({0}, [])


def test_what_is_over_meanwhile_is_not_tried_again() -> None:
    removals = Removals(1)
    removals.refusing = {0}
    removals.clock.advance(DELAY_MS)
    removals.is_over = True
    removals.clock.advance(10 * RETRY_MS)
    assert (removals.try_count, removals.scheduler.pending()) == (1, [])


def test_what_waits_in_a_directory_that_is_short_of_space_goes_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    removals = Removals(5)
    assert removals.removals.hurry("/other") == 0
    assert len(removals.left) == 5
    removals.refusing = {3}
    assert removals.removals.hurry("/d") == 4 * SIZE_BYTES
    assert removals.removals.hurry("/d") == 0
    assert (removals.left, removals.try_count, caplog.messages) == ({3}, 6, [])
    removals.clock.advance(DELAY_MS)
    assert removals.try_count == 7, "what fails keeps its turn"
    [told] = caplog.messages
    assert "left_count=`1`" in told
    removals.refusing = set()
    assert removals.removals.hurry("/d") == SIZE_BYTES
    removals.clock.advance(RETRY_MS)
    assert (removals.left, removals.try_count, removals.scheduler.pending()) == (set(), 8, [])


def test_removals_on_a_disk_that_hangs_take_one_thread() -> None:
    """Each log with a deleted segment took one, until no background task had a thread."""
    scheduler, gate, removed = ThreadScheduler(2), Gate(), list[str]()
    removals = LateRemovals(scheduler)

    def add(directory: str, name: str, gate: Gate | None = None) -> None:
        def remove() -> None:
            if gate is not None:
                gate.pass_through()
            if name == "defect":
                raise ZeroDivisionError
            removed.append(name)

        removals.add(directory, name, [Removal(remove)], 0, is_over=lambda: False)

    try:
        gate.close()
        add("/hung", "first", gate)
        assert gate.is_reached.wait(30)
        for name in ("second", "defect", "third"):
            add("/hung", name)
        other = threading.Event()
        removals.add("/other", "other", [Removal(other.set)], 0, is_over=lambda: False)
        assert other.wait(30)
        assert removed == []
        gate.open()
        last = threading.Event()
        removals.add("/hung", "last", [Removal(last.set)], 0, is_over=lambda: False)
        assert last.wait(30)
        assert removed == ["first", "second", "third"]
    finally:
        gate.open()
        scheduler.close()


def test_what_is_over_is_not_hurried() -> None:
    removals = Removals(2)
    removals.is_over = True
    assert removals.removals.hurry("/d") == 0
    assert len(removals.left) == 2


def refuse_to_unlink(disk: FaultyFileSystem, ending: str) -> None:
    """Until the disk is mended."""
    disk.fail_where(lambda line: line.startswith("unlink ") and line.endswith(ending), number=errno.EPERM)


def deleted(disk: FaultyFileSystem) -> list[str]:
    return [path for path in disk.inner.contents() if path.endswith(".deleted")]


def test_a_log_that_is_closed_leaves_the_rest_to_who_opens_it_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = FaultyFileSystem()
    machine = LogMachine(
        disk,
        LogConfig(remote_storage_enable=False, segment_bytes=1024, retention_bytes=0, file_delete_delay_ms=1),
        ids=SequentialIds(),
    )
    log = machine.start()
    for _ in range(10):
        log.appender.append_as_leader(encode_batch([Record(0, 1000, b"k", b"v" * 400)]), 1)
    assert log.retention.delete_old_segments() > 1
    refuse_to_unlink(disk, ".log.deleted")
    machine.clock.advance(1)
    machine.stop()
    count = disk.operation_count
    machine.clock.advance(10 * RETRY_MS)
    assert disk.operation_count == count
    assert deleted(disk)
    # Nor does it keep that one from opening the log.
    machine.start().check()
    assert "cannot be removed and stays until the next start" in caplog.text
    assert all(path.endswith(".log.deleted") for path in deleted(disk))
    machine.stop()
    disk.mend()
    machine.start()
    assert deleted(disk) == []


def test_a_disk_that_fails_at_a_leftover_raises() -> None:
    disk = FaultyFileSystem()
    disk.make_directories("/d")
    disk.fail_at(disk.operation_count + 1, number=errno.EIO)
    with pytest.raises(OSError) as failure:  # noqa: PT011 - the number says which
        unlink_leftover(disk, "/d/a.deleted")
    assert failure.value.errno == errno.EIO
