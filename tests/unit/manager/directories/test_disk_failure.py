"""A disk that fails takes its own directory away, once, and nothing else; a full one takes nothing away."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.directory_health import DISK_FAILURES, DirectoryHealth
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.manager.directories.watched_filesystem import WatchedFileSystem
from stratalog.manager.log_manager import LogManager
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.disk_refusals import refused_by_disk
from tests.support.logs.log_machine import TOPIC_ID, LogMachine, checkpoint

A, B = "/disk-a/logs", "/disk-b/logs"
BATCH = encode_batch([Record(0, 1000, b"k", b"v")])
CONFIG = LogConfig(remote_storage_enable=False, retention_ms=-1, segment_bytes=1024)
P = [TopicPartition("orders", number) for number in range(6)]


class TwoDisks:
    """Partitions 0, 2 and 4 are on disk A, the others on B; each has five records, flushed."""

    def __init__(self, config: LogConfig = CONFIG) -> None:
        self.disk = FaultyFileSystem()
        self.machine = LogMachine(self.disk, data_dirs=(A, B), ids=SequentialIds())
        self.manager: LogManager = self.machine.open()
        for partition in P:
            log = self.manager.open_log(partition, TOPIC_ID, config)
            for _ in range(5):
                log.appender.append_as_leader(BATCH, 1)
            log.flusher.flush()

    def log(self, number: int) -> UnifiedLog:
        return self.manager.log(P[number])

    def fail_next(self, number: int = errno.EIO) -> None:
        self.disk.fail_at(self.disk.operation_count + 1, number=number)

    @property
    def states(self) -> list[DirectoryState]:
        return [status.state for status in self.manager.directories.statuses()]

    def require_only_a_failed(self) -> None:
        """A answers clearly and is left alone."""
        assert self.states == [DirectoryState.OFFLINE, DirectoryState.LIVE]
        assert self.machine.all_failed_count == 0
        before = self.disk.operation_count
        for number in (0, 2, 4):
            log = self.log(number)
            assert log.availability.is_offline
            calls: tuple[Callable[[], object], ...] = (
                partial(log.appender.append_as_leader, BATCH, 1),
                partial(log.reader.read, 0, 100),
                partial(log.reader.offset_for_timestamp, 0),
                log.reader.segments,
                log.flusher.flush,
                log.roll,
                partial(log.increment_log_start_offset, 2),
                partial(log.truncation.truncate_to, 1),
            )
            for refused in calls:
                with pytest.raises(DataDirectoryError) as failure:
                    refused()
                assert failure.value.fields["path"] == A
                assert failure.value.fields["reason"]
        assert not [one for one in self.disk.trace[before:] if A in one], "the disk is left alone"
        checkpoint(self.manager)
        self.manager.tasks.flush_old()
        self.manager.check()
        assert not [one for one in self.disk.trace[before:] if A in one], "no checkpoint is written there"


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ESTALE])
def test_an_append_that_the_disk_refuses_takes_the_directory_away(number: int) -> None:
    disks = TwoDisks()
    disks.fail_next(number)
    with pytest.raises(DataDirectoryError):
        disks.log(2).appender.append_as_leader(BATCH, 1)
    disks.require_only_a_failed()


@pytest.mark.parametrize("paths", [(A, B), (B, A)])
def test_a_log_that_is_deleted_on_a_failed_disk_leaves_its_name_to_another_one(
    paths: tuple[str, str],
) -> None:
    disks = TwoDisks()
    disks.fail_next()
    with pytest.raises(DataDirectoryError):
        disks.log(0).appender.append_as_leader(BATCH, 1)
    with pytest.raises(DataDirectoryError) as failure:
        disks.manager.delete_log(P[0])
    assert failure.value.fields["path"] == A
    other_id = UUID(int=8)
    log = disks.manager.open_log(P[0], other_id, CONFIG, is_first_opening=True)
    log.appender.append_as_leader(BATCH, 1)
    assert log.local_log.directory == f"{B}/orders-0"
    disks.machine.stop()
    # The disk is repaired. What is deleted is the older topic's, whichever directory comes first.
    found = disks.disk.killed()
    machine = LogMachine(found, data_dirs=paths, ids=SequentialIds(1))
    manager = machine.open()
    assert {one for one in manager.found.with_topics() if one[0] == P[0]} == {
        (P[0], TOPIC_ID),
        (P[0], other_id),
    }
    manager.delete_leftover(P[0], TOPIC_ID)
    assert not found.exists(f"{A}/orders-0")
    machine.clock.advance(1000)
    assert not [name for name in found.list_directory(A) if name.startswith("orders-0")]
    log = manager.open_log(P[0], other_id, CONFIG)
    assert (log.local_log.directory, log.offsets.log_end_offset) == (f"{B}/orders-0", 1)
    manager.delete_leftover(P[1], UUID(int=9))
    assert manager.open_log(P[1], TOPIC_ID, CONFIG).offsets.log_end_offset == 5
    manager.let_go(P[1])
    manager.delete_leftover(P[1], TOPIC_ID)
    assert not found.exists(f"{B}/orders-1")


def test_the_last_directory_ends_it_once() -> None:
    disks = TwoDisks()
    for number in (0, 1):
        assert disks.machine.all_failed_count == 0
        disks.fail_next()
        with pytest.raises(DataDirectoryError):
            disks.log(number).appender.append_as_leader(BATCH, 1)
    assert disks.machine.all_failed_count == 1
    with pytest.raises(DataDirectoryError):
        disks.log(3).appender.append_as_leader(BATCH, 1)
    assert disks.machine.all_failed_count == 1
    disks.manager.close()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_errors_that_are_not_of_the_disk_leave_the_directory_alone(number: int) -> None:
    disks = TwoDisks()
    disks.fail_next(number)
    with pytest.raises(DataDirectoryError):
        disks.log(0).reader.read(0, 100)
    assert disks.states == [DirectoryState.LIVE, DirectoryState.LIVE]
    assert disks.log(0).reader.read(0, 10_000).next_offset == 5


def test_cleaning_ends_where_the_disk_failed() -> None:
    disks = TwoDisks(dataclasses.replace(CONFIG, cleanup_policy=frozenset({"compact"})))
    assert len(disks.manager.cleaner.cleaned_logs()) == 6
    disks.fail_next()
    with pytest.raises(DataDirectoryError):
        disks.log(0).appender.append_as_leader(BATCH, 1)
    assert [log.topic_partition.partition for log in disks.manager.cleaner.cleaned_logs()] == [1, 3, 5]


class TestWatchedFileSystem:
    """Every operation is looked at, and none is asked for once the directory is offline."""

    def test_every_operation_of_the_seam_and_of_open_files_is_watched(self) -> None:
        path, other = f"{A}/file", f"{A}/other"
        special: dict[str, list[Any]] = {
            **{name: [path, other] for name in ("rename", "link", "copy_file")},
            "set_modified_ms": [path, 5],
        }
        of_files: dict[str, list[Any]] = {
            "append": [[b"x"]],
            "read_at": [0, 1],
            "read_into": [0, bytearray(1)],
            "read_cached": [0, 1],
            "truncate": [0],
            "reserve": [10],
            "size": [],
            "sync": [],
        }
        seam = {name: special.get(name, [path]) for name in vars(FileSystem) if not name.startswith("_")}
        assert len(seam) > 15
        for name, arguments in (*seam.items(), *of_files.items()):
            disk = FaultyFileSystem()
            disk.make_directories(A)
            health = DirectoryHealth(A)
            watched = WatchedFileSystem(disk, [health])
            file = watched.open_append(path)
            operation = getattr(file if name in of_files else watched, name)
            disk.fail_at(disk.operation_count + 1)
            with pytest.RaisesExc(OSError, check=refused_by_disk(errno.EIO)):
                operation(*arguments)
            assert health.reason is not None, name
            count = disk.operation_count
            with pytest.RaisesExc(OSError, check=refused_by_disk(errno.EIO)):
                operation(*arguments)
            assert disk.operation_count == count, name
            file.close()

    def test_other_paths_pass_through(self) -> None:
        disk = MemoryFileSystem()
        health = DirectoryHealth(A)
        watched = WatchedFileSystem(disk, [health])
        health.fail("it is gone")
        watched.make_directories(f"{A}-beside")
        file = watched.open_append(f"{A}-beside/file")
        file.append([b"x"])
        file.close()
        assert watched.read_file(f"{A}-beside/file") == b"x"
        with pytest.RaisesExc(OSError, check=refused_by_disk(errno.EIO)):
            watched.exists(A)

    def test_the_first_reason_is_kept_and_told_once(self) -> None:
        told: list[str] = []
        health = DirectoryHealth(A, lambda failed: told.append(failed.path))
        health.observe(FileNotFoundError(errno.ENOENT, "no"))
        health.observe(OSError("without a number"))
        assert not told
        for reason in ("first", "second"):
            health.observe(OSError(errno.EIO, reason))
        assert [health.reason, *told] == ["[Errno 5] first", A]
        assert errno.ENOSPC not in DISK_FAILURES


def test_a_disk_that_fails_while_all_are_tied_to_a_store_keeps_no_other_from_it() -> None:
    disks = TwoDisks()
    # To look whether it is tied is no operation; to write takes some.
    disks.fail_next()
    disks.manager.directories.bind_store("store-1")
    assert disks.states == [DirectoryState.OFFLINE, DirectoryState.LIVE]
    assert disks.manager.directories.bound_store_id == "store-1"
    disks.log(1).appender.append_as_leader(BATCH, 1)


def test_a_full_disk_that_cannot_be_tied_to_a_store_is_named() -> None:
    disk = FullFileSystem()
    manager = LogMachine(disk, data_dirs=(A, B), ids=SequentialIds()).open()
    disk.fill(B)
    with pytest.raises(DataDirectoryError) as failure:
        manager.directories.bind_store("store-1")
    assert failure.value.fields["path"] == B


def test_new_partitions_go_to_the_disks_that_are_left() -> None:
    disks = TwoDisks()
    disks.fail_next()
    with pytest.raises(DataDirectoryError):
        disks.log(0).appender.append_as_leader(BATCH, 1)
    log = disks.manager.open_log(TopicPartition("new", 0), TOPIC_ID, CONFIG)
    assert log.local_log.directory == f"{B}/new-0"
    disks.manager.let_go(P[0])
    with pytest.raises(DataDirectoryError) as failure:
        disks.manager.open_log(P[0], TOPIC_ID, CONFIG, is_first_opening=True)
    assert failure.value.fields["path"] == f"{A}/orders-0"
    with pytest.raises(DataDirectoryError) as failure:
        disks.manager.delete_log(P[2])
    assert failure.value.fields["path"] == A
