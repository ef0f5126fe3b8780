"""Disk space that new segments take at once, who gives it back when, and a disk that has none."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import logging
import os
from pathlib import Path

import pytest

from stratalog.base import posix_filesystem
from stratalog.base.errors import DataDirectoryError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.log.append_info import AppendInfo
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.filled_log import path_of
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import PARTITION, PARTITION_DIR, TOPIC_ID, LogMachine
from tests.support.logs.plain_batches import batch

SEGMENT_BYTES = 4096
RESERVING = LogConfig(segment_bytes=SEGMENT_BYTES, preallocate=True)
PLAIN = dataclasses.replace(RESERVING, preallocate=False)


def spares(disk: MemoryFileSystem) -> dict[int, int]:
    """By base offset: the bytes that are reserved behind each segment's data."""
    paths = [path for path in disk.contents() if path.endswith(".log")]
    return {int(Path(path).stem): disk.spare_bytes(path) for path in paths}


def test_only_the_active_segment_has_space_that_it_does_not_need() -> None:
    disk = MemoryFileSystem()
    machine = LogMachine(disk, RESERVING)
    log = machine.start()
    assert spares(disk) == {0: SEGMENT_BYTES}
    log.appender.append_as_leader(batch(value_bytes=1000), 1)
    assert spares(disk) == {0: SEGMENT_BYTES - log.local_log.segments.size_bytes}
    assert disk.file_size(path_of(0)) == log.local_log.segments.size_bytes
    log.roll()
    assert spares(disk) == {0: 0, 1: SEGMENT_BYTES}
    for _ in range(7):
        log.appender.append_as_leader(batch(value_bytes=1000), 1)
    assert list(spares(disk).values()) == [0, 0, 0, SEGMENT_BYTES - log.reader.segments()[-1].size_bytes]
    log.truncation.truncate_fully_and_start_at(100)
    assert spares(disk)[100] == SEGMENT_BYTES
    log.appender.append_as_leader(batch(), 1)
    machine.stop()
    assert spares(disk)[100] == 0


def test_the_space_of_a_process_that_was_killed_is_given_back() -> None:
    disk = MemoryFileSystem()
    log = LogMachine(disk, RESERVING).start()
    log.appender.append_as_leader(batch(), 1)
    log.flusher.flush()
    found = disk.after_crash(Survival(Kept.NONE, Kept.ALL))
    assert spares(found) == spares(disk)
    # Also where the key was altered meanwhile.
    machine = LogMachine(found, PLAIN)
    log = machine.start()
    assert log.recovery_report.truncated_bytes == 0
    log.roll()
    assert spares(found) == {0: 0, 1: 0}
    found = disk.after_crash(Survival(Kept.NONE, Kept.ALL))
    machine = LogMachine(found, PLAIN)
    machine.start()
    machine.stop()
    assert spares(found) == {0: 0}


def test_an_altered_key_holds_from_the_next_segment_on() -> None:
    disk = FaultyFileSystem()
    log = LogMachine(disk, PLAIN).start()
    log.appender.append_as_leader(batch(), 1)
    log.reconfigure(RESERVING)
    assert spares(disk.inner) == {0: 0}
    log.roll()
    assert spares(disk.inner) == {0: 0, 1: SEGMENT_BYTES}
    log.appender.append_as_leader(batch(), 1)
    log.reconfigure(PLAIN)
    log.roll()
    assert spares(disk.inner) == {0: 0, 1: 0, 2: 0}
    # Logs that have nothing reserved do no more than before.
    log.appender.append_as_leader(batch(), 1)
    before = disk.operation_count
    log.roll()
    assert disk.trace[before:].count(f"truncate {path_of(2)}") == 0


def reserve_of(disk: FaultyFileSystem, work: str) -> int:
    """The number of the operation that reserves."""
    return next(number for number, name in enumerate(disk.trace, start=1) if name == work)


def fill(log: UnifiedLog) -> AppendInfo:
    """Append until a second segment has begun."""
    while True:
        info = log.appender.append_as_leader(batch(value_bytes=1000), 1)
        if log.local_log.segments.active.base_offset:
            return info


def test_a_full_disk_shows_where_a_segment_begins_and_nothing_is_stored() -> None:
    disk = FaultyFileSystem()
    fill(LogMachine(disk, RESERVING).start())
    operation = reserve_of(disk, f"reserve {path_of(3)}")

    disk = FaultyFileSystem()
    disk.fail_at(operation, number=errno.ENOSPC, part=1.0)
    log = LogMachine(disk, RESERVING).start()
    with pytest.raises(DataDirectoryError) as failure:
        fill(log)
    assert "No space" in str(failure.value.fields["reason"])
    assert not log.availability.is_offline
    assert [info.base_offset for info in log.reader.segments()] == [0]
    assert not disk.inner.exists(path_of(3))
    assert len(read_local(log)) == 3
    # There is room again.
    assert fill(log).base_offset == 3
    assert spares(disk.inner)[0] == 0
    log.check()


def test_a_disk_that_is_too_small_for_one_segment_takes_no_log() -> None:
    disk = MemoryFileSystem(free_bytes=SEGMENT_BYTES - 1)
    with pytest.raises(DataDirectoryError) as failure:
        LogMachine(disk, RESERVING).start()
    assert "No space" in str(failure.value.fields["reason"])
    assert not disk.exists(path_of(0))
    LogMachine(MemoryFileSystem(free_bytes=SEGMENT_BYTES), RESERVING).start()


def test_where_space_cannot_be_reserved_the_topic_does_without_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = FaultyFileSystem(MemoryFileSystem(can_reserve=False))
    machine = LogMachine(disk, RESERVING)
    with caplog.at_level(logging.WARNING):
        log = machine.start()
        for _ in range(3):
            log.appender.append_as_leader(batch(), 1)
            log.roll()
    [said] = caplog.records
    assert "preallocate" in said.getMessage()
    assert sum(name.startswith("reserve ") for name in disk.trace) == 1
    assert len(read_local(log)) == 3
    machine.stop()


@pytest.mark.parametrize("has_batches", [True, False])
@pytest.mark.parametrize("recovery_point", ["none", "end"])
def test_the_zeros_that_a_broker_had_reserved_are_cut_off(has_batches: bool, recovery_point: str) -> None:
    disk = MemoryFileSystem()
    machine = LogMachine(disk, PLAIN)
    log = machine.start()
    for _ in range(3 if has_batches else 0):
        log.appender.append_as_leader(batch(value_bytes=1000), 1)
    size_bytes = log.local_log.segments.size_bytes
    expected = read_local(log)
    if recovery_point == "end":
        log.flusher.flush()
        machine.checkpoint()
    # The file is as long as the segment may become, and so are the indexes, all of it synced.
    for suffix, reserved_bytes in ((".log", 3 * SEGMENT_BYTES), (".index", 80_000), (".timeindex", 120_000)):
        file = disk.open_append(f"{PARTITION_DIR}/{0:020d}{suffix}")
        file.truncate(reserved_bytes)
        file.sync()
    machine.kill()
    log = machine.start()
    assert not log.recovery_report.was_clean
    assert log.recovery_report.truncated_bytes == 3 * SEGMENT_BYTES - size_bytes
    assert disk.file_size(path_of(0)) == size_bytes
    assert read_local(log) == expected
    log.appender.append_as_leader(batch(), 1)
    log.check()


def test_zeros_are_cut_off_also_where_a_stop_is_said_to_have_been_clean() -> None:
    disk = MemoryFileSystem()
    machine = LogMachine(disk, PLAIN)
    machine.start().appender.append_as_leader(batch(), 1)
    machine.stop()
    size_bytes = disk.file_size(path_of(0))
    disk.open_append(path_of(0)).truncate(SEGMENT_BYTES)
    log = machine.start()
    assert (log.offsets.log_end_offset, disk.file_size(path_of(0))) == (1, size_bytes)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """On a file system that reserves."""
    file = PosixFileSystem().open_append(str(tmp_path / "probe"))
    is_reserved = file.reserve(4096)
    file.close()
    if not is_reserved:
        pytest.skip("the file system of the tests cannot reserve space")
    return str(tmp_path)


def allocated_bytes(path: str) -> int:
    return os.stat(path).st_blocks * 512


def test_the_operating_systems_files_reserve_and_give_back(directory: str) -> None:
    path = f"{directory}/a"
    file = PosixFileSystem().open_append(path)
    file.append([b"abc"])
    assert file.reserve(1 << 20)
    assert allocated_bytes(path) >= 1 << 20
    assert os.stat(path).st_size == 3
    file.append([b"x" * 100_000])
    file.sync()
    assert allocated_bytes(path) >= 1 << 20
    file.truncate(100_003)
    assert 100_003 <= allocated_bytes(path) < 200_000
    assert file.read_at(0, 4) == b"abcx"
    with pytest.RaisesExc(OSError, check=lambda error: error.errno in (errno.ENOSPC, errno.EFBIG)):
        file.reserve(1 << 60)
    assert file.size() == 100_003
    file.close()


def test_a_log_on_the_operating_systems_files(directory: str) -> None:
    config = LogConfig(segment_bytes=1 << 20, preallocate=True)
    disk = PosixFileSystem()
    machine = LogMachine(disk, config, data_dirs=(directory,))
    log = machine.start()
    for _ in range(3):
        log.appender.append_as_leader(batch(value_bytes=400_000), 1)
    first, second = (f"{log.local_log.directory}/{offset:020d}.log" for offset in (0, 2))
    assert os.stat(first).st_size <= allocated_bytes(first) < 1 << 20
    assert allocated_bytes(second) >= 1 << 20
    machine.stop()
    assert os.stat(second).st_size <= allocated_bytes(second) < 1 << 19
    assert len(read_local(machine.start())) == 3
    machine.stop()


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([errno.EOPNOTSUPP], False),
        ([errno.ENOSYS], False),
        ([errno.EINTR, errno.EINTR, 0], True),
        ([errno.EINTR, errno.ENOSPC], errno.ENOSPC),
        ([errno.EIO], errno.EIO),
        (None, False),
    ],
)
def test_what_the_system_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: list[int] | None, expected: bool | int
) -> None:
    answers = list(numbers or [])

    def fallocate(_descriptor: int, mode: int, position: int, size: int) -> int:
        assert (mode, position, size) == (1, 0, 77)
        number = answers.pop(0)
        ctypes.set_errno(number)
        return -1 if number else 0

    monkeypatch.setattr(posix_filesystem, "_fallocate", None if numbers is None else fallocate)
    file = PosixFileSystem().open_append(str(tmp_path / "a"))
    if isinstance(expected, bool):
        assert file.reserve(77) is expected
    else:
        with pytest.RaisesExc(OSError, check=lambda error: error.errno == expected):
            file.reserve(77)
    assert not answers
    file.close()


def test_a_reservation_leaves_the_floor_of_free_space_free(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryFileSystem(free_bytes=3 * SEGMENT_BYTES)
    machine = LogMachine(disk, RESERVING)
    manager = machine.open()
    manager.leave_free(2 * SEGMENT_BYTES + 1)
    log = manager.open_log(PARTITION, TOPIC_ID, RESERVING)
    with caplog.at_level(logging.WARNING):
        assert spares(disk) == {0: 0}, "at the creation"
        log.appender.append_as_leader(batch(), 1)
        log.roll()
        assert list(spares(disk).values()) == [0, 0], "at a roll"
    [said] = caplog.records
    assert "log.dir.min.free.bytes" in said.getMessage()
    log.appender.append_as_leader(batch(), 1)
    # There is room again: a reservation leaves exactly the floor.
    manager.leave_free(2 * SEGMENT_BYTES - log.local_log.segments.size_bytes)
    log.roll()
    assert list(spares(disk).values()) == [0, 0, SEGMENT_BYTES]
    log.check()
