"""A disk is silent if none of its operations ends, and not if none is asked of it."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from stratalog.base.scheduler import run_here
from stratalog.base.types import TopicPartition
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.manager.directories.silent_disks import PROBE_FILE, SilentDisks
from stratalog.manager.log_manager import LogManager
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.log_machine import SMALL_SEGMENTS, TOPIC_ID, LogMachine
from tests.support.logs.plain_batches import batch

A, B = "/disk-a/logs", "/disk-b/logs"


def manager_on(disk: FaultyFileSystem) -> LogManager:
    return LogMachine(disk, data_dirs=(A, B), ids=SequentialIds()).open()


def probes(disk: FaultyFileSystem) -> list[str]:
    return [line for line in disk.trace if PROBE_FILE in line]


def test_a_disk_that_is_not_asked_is_asked_once_and_has_answered() -> None:
    disk = FaultyFileSystem()
    disks = SilentDisks(manager_on(disk).directories, run_here)
    assert [disks.look(A) for _ in range(5)] == [0, 1, 0, 1, 0]
    assert [line.split()[0] for line in probes(disk)] == 2 * [
        "open_append",
        "append",
        "sync",
        "close",
        "unlink",
    ]
    assert not disk.exists(f"{A}/{PROBE_FILE}")


def test_a_question_without_an_answer_is_not_asked_again() -> None:
    held: list[Callable[[], None]] = []
    disk = FaultyFileSystem()
    manager = manager_on(disk)
    disks = SilentDisks(manager.directories, held.append)
    assert [disks.look(A) for _ in range(4)] == [0, 1, 2, 3]
    assert [disks.look(B) for _ in range(2)] == [0, 1]
    assert len(held) == 2
    # Any operation is an answer.
    manager.filesystem.exists(A)
    assert [disks.look(A) for _ in range(2)] == [0, 1]
    assert len(held) == 2
    for question in held:
        question()
    assert disks.look(A) == 0
    assert disks.look(A) == 1
    assert len(held) == 3


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES])
@pytest.mark.parametrize("operation", ["open_append", "append", "sync", "unlink"])
def test_a_refusal_is_an_answer(operation: str, number: int) -> None:
    disk = FaultyFileSystem()
    manager = manager_on(disk)
    disks = SilentDisks(manager.directories, run_here)
    disk.fail_where(lambda line: line.startswith(f"{operation} {A}/{PROBE_FILE}"), number=number)
    assert [disks.look(A) for _ in range(5)] == [0, 1, 0, 1, 0]
    assert [one.state for one in manager.directories.statuses()] == [DirectoryState.LIVE] * 2
    disk.mend()
    assert [disks.look(A) for _ in range(2)] == [1, 0]
    assert not disk.exists(f"{A}/{PROBE_FILE}")


def test_operations_on_open_files_are_answers() -> None:
    """A recovery does little else than to read a large file."""
    manager = manager_on(FaultyFileSystem())
    log = manager.open_log(TopicPartition("orders", 0), TOPIC_ID, SMALL_SEGMENTS)
    directories, path = manager.directories, f"{A}/file"
    held: list[Callable[[], None]] = []
    disks = SilentDisks(directories, held.append)
    file = manager.filesystem.open_append(path)
    works: list[Callable[[], object]] = [
        lambda: file.append([b"abc"]),
        file.sync,
        lambda: file.read_at(0, 2),
        lambda: file.read_into(0, bytearray(2)),
        lambda: log.appender.append_as_leader(batch(), 1),
    ]
    disks.look(A)
    for work in works:
        assert disks.look(A) == 1
        work()
        assert disks.look(A) == 0
    file.close()
