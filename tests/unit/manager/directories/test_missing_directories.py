"""A log directory that was used once and is not there any more: noticed, waited for, given up on purpose."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

import pytest

from stratalog.base.errors import DataDirectoryError, InvalidRequestError
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.manager.directories.manifest import MANIFEST_FILE, read_manifest
from stratalog.manager.log_manager import LogManager
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.disk_refusals import refused_by_disk
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.log_machine import TOPIC_ID, LogMachine

A, B, C = "/disk-a/logs", "/disk-b/logs", "/disk c/log=s,@1"
BATCH = encode_batch([Record(0, 1000, b"k", b"v")])
CONFIG = LogConfig()
P = [TopicPartition("orders", number) for number in range(6)]


class Machine:
    """One disk after the other, with partitions 0, 2, ... in A and 1, 3, ... in B, two records each."""

    def __init__(self, disk: FaultyFileSystem | None = None) -> None:
        self.disk = disk or FaultyFileSystem()
        self._ids = SequentialIds()
        with_both = self.open(A, B)
        for partition in P[:4]:
            log = with_both.open_log(partition, TOPIC_ID, CONFIG, is_first_opening=True)
            for _ in range(2):
                log.appender.append_as_leader(BATCH, 1)
        self.id_a, self.id_b = (one.directory_id for one in with_both.directories.statuses())
        self.stop()

    def open(self, *paths: str) -> LogManager:
        self._process = LogMachine(self.disk, data_dirs=paths, ids=self._ids)
        manager = self._process.open()
        manager.directories.bind_store("store-1")
        return manager

    def stop(self) -> None:
        self._process.stop()

    def siblings(self, path: str) -> Mapping[str, str]:
        return read_manifest(self.disk, path).siblings


def missing(manager: LogManager) -> Sequence[tuple[str, str]]:
    assert all(one.state is DirectoryState.MISSING and one.reason for one in manager.directories.missing())
    return [(one.directory_id, one.path) for one in manager.directories.missing()]


def test_one_that_is_left_out_is_missed() -> None:
    machine = Machine()
    manager = machine.open(A)
    assert missing(manager) == [(machine.id_b, B)]
    assert [one.state for one in manager.directories.statuses()] == [DirectoryState.LIVE]
    # Partitions of this directory open, and so do new ones.
    assert manager.open_log(P[0], TOPIC_ID, CONFIG).offsets.log_end_offset == 2
    manager.open_log(P[4], TOPIC_ID, CONFIG, is_first_opening=True)
    with pytest.raises(DataDirectoryError) as failure:
        manager.open_log(P[1], TOPIC_ID, CONFIG)
    assert failure.value.fields["path"] == f"{B}/orders-1"
    assert failure.value.fields["directory_id"] == machine.id_b
    assert not machine.disk.exists(f"{A}/orders-1")
    machine.stop()
    manager = machine.open(A, B)
    assert missing(manager) == []
    assert manager.open_log(P[1], TOPIC_ID, CONFIG).offsets.log_end_offset == 2
    assert manager.open_log(P[4], TOPIC_ID, CONFIG).offsets.log_end_offset == 0


def test_an_empty_directory_in_its_place_does_not_hide_it(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.disk.rename("/disk-b", "/unmounted")
    manager = machine.open(A, B)
    new_id = manager.directories.statuses()[1].directory_id
    assert new_id != machine.id_b
    assert missing(manager) == [(machine.id_b, B)]
    [record] = [record for record in caplog.records if "is missing" in record.getMessage()]
    assert machine.id_b in record.getMessage()
    with pytest.raises(DataDirectoryError) as failure:
        manager.open_log(P[3], TOPIC_ID, CONFIG)
    assert failure.value.fields["directory_id"] == machine.id_b
    assert not machine.disk.exists(f"{B}/orders-3")
    log = manager.open_log(P[4], TOPIC_ID, CONFIG, is_first_opening=True)
    log.appender.append_as_leader(BATCH, 1)
    assert log.local_log.directory == f"{B}/orders-4"
    machine.stop()
    # Mounted again: now it is the one that stood in its place that is missed, and what was put there.
    machine.disk.rename("/disk-b", "/below")
    machine.disk.rename("/unmounted", "/disk-b")
    manager = machine.open(A, B)
    assert missing(manager) == [(new_id, B)]
    assert manager.open_log(P[3], TOPIC_ID, CONFIG).offsets.log_end_offset == 2
    with pytest.raises(DataDirectoryError) as failure:
        manager.open_log(P[4], TOPIC_ID, CONFIG)
    assert failure.value.fields["directory_id"] == new_id
    machine.stop()
    manager = machine.open(A, B, "/below/logs")
    assert missing(manager) == []
    assert manager.open_log(P[4], TOPIC_ID, CONFIG).offsets.log_end_offset == 1


def test_a_directory_at_another_path_is_the_same_one() -> None:
    machine = Machine()
    machine.disk.rename("/disk-b", "/new")
    assert missing(machine.open(A, "/new/logs")) == []
    machine.stop()
    assert machine.siblings(A) == {machine.id_b: "/new/logs"}
    assert missing(machine.open(A)) == [(machine.id_b, "/new/logs")]


def test_a_single_directory_names_no_others_and_may_go_anywhere() -> None:
    disk = MemoryFileSystem()
    process = LogMachine(disk, data_dirs=(A,))
    manager = process.open()
    manager.directories.bind_store("store-1")
    manager.open_log(P[0], TOPIC_ID, CONFIG).appender.append_as_leader(BATCH, 1)
    process.stop()
    assert read_manifest(disk, A).siblings == {}
    disk.rename("/disk-a", "/elsewhere")
    manager = LogMachine(disk, data_dirs=("/elsewhere/logs",)).open()
    assert missing(manager) == []
    assert manager.open_log(P[0], TOPIC_ID, CONFIG).offsets.log_end_offset == 1
    assert manager.open_log(P[1], TOPIC_ID, CONFIG).offsets.log_end_offset == 0


def test_who_is_forgotten_is_not_waited_for() -> None:
    machine = Machine()
    manager = machine.open(A, C)
    id_c = manager.directories.statuses()[1].directory_id
    for wrong in (id_c, machine.id_a, "unknown"):
        with pytest.raises(InvalidRequestError) as refusal:
            manager.directories.forget(wrong)
        assert refusal.value.fields["missing_ids"] == machine.id_b
    assert manager.directories.forget(machine.id_b) == B
    assert missing(manager) == []
    assert manager.open_log(P[1], TOPIC_ID, CONFIG).offsets.log_end_offset == 0
    assert machine.siblings(A) == {id_c: C}
    with pytest.raises(InvalidRequestError) as refusal:
        manager.directories.forget(machine.id_b)
    assert refusal.value.fields["missing_ids"] == "none"
    machine.stop()
    assert missing(machine.open(A, C)) == []
    machine.stop()
    # It comes back after all: taken in again, and nothing is put in the place of anything.
    manager = machine.open(A, B, C)
    assert missing(manager) == []
    assert machine.siblings(A) == {id_c: C, machine.id_b: B}
    assert manager.open_log(P[1], TOPIC_ID, CONFIG).offsets.log_end_offset == 2


def test_a_directory_that_was_away_remembers_who_was_forgotten() -> None:
    machine = Machine()
    machine.open(A, B, C)
    machine.stop()
    machine.open(A).directories.forget(machine.id_b)
    machine.stop()
    assert missing(machine.open(A, C)) == [(machine.id_b, B)]


def test_a_disk_that_refuses_leaves_the_directory_missed() -> None:
    disk = FaultyFileSystem()
    machine = Machine(disk)
    manager = machine.open(A)
    disk.fail_at(disk.operation_count + 1, number=errno.ENOSPC)
    with pytest.RaisesExc(DataDirectoryError, check=refused_by_disk(errno.ENOSPC)):
        manager.directories.forget(machine.id_b)
    assert missing(manager) == [(machine.id_b, B)]
    manager.directories.forget(machine.id_b)
    assert missing(manager) == []


def test_a_full_disk_does_not_keep_the_server_from_starting(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyFileSystem()
    machine = Machine(disk)
    process = LogMachine(disk, data_dirs=(A, B, C), ids=SequentialIds(100))
    manager = process.open()
    # The new one is tied to the store first.
    disk.fail_at(disk.operation_count + 10, number=errno.ENOSPC)
    manager.directories.bind_store("store-1")
    assert "cannot note which others it is used with" in caplog.text
    assert manager.open_log(P[1], TOPIC_ID, CONFIG).offsets.log_end_offset == 2
    process.stop()
    assert {len(machine.siblings(path)) for path in (A, B, C)} == {1, 2}
    machine.open(A, B, C)
    assert {len(machine.siblings(path)) for path in (A, B, C)} == {2}


def test_one_that_cannot_be_read_is_offline_and_not_missing() -> None:
    inner = MemoryFileSystem()
    machine = Machine(FaultyFileSystem(inner))
    disk = FaultyFileSystem(inner)
    LogMachine(disk, data_dirs=(A, B)).open()
    operation = disk.trace.index(f"try_lock {B}/.lock") + 1
    inner.release_locks()
    disk = FaultyFileSystem(inner)
    disk.fail_at(operation, number=errno.EACCES)
    process = LogMachine(disk, data_dirs=(A, B))
    manager = process.open()
    manager.directories.bind_store("store-1")
    assert [one.state for one in manager.directories.statuses()] == [
        DirectoryState.LIVE,
        DirectoryState.OFFLINE,
    ]
    assert missing(manager) == []
    with pytest.raises(DataDirectoryError) as failure:
        manager.open_log(P[1], TOPIC_ID, CONFIG)
    assert "log-dirs forget" in failure.value.message
    process.stop()
    assert machine.siblings(A) == {machine.id_b: B}
    assert missing(machine.open(A)) == [(machine.id_b, B)]


def test_a_crash_while_the_lists_are_written_loses_nothing() -> None:
    """Whatever a crash leaves of them, the next start writes them again before it opens a log."""

    class Binding(Machine):
        def __init__(self) -> None:
            super().__init__(FaultyFileSystem())
            self.manager = LogMachine(self.disk, data_dirs=(A, B, C), ids=SequentialIds(100)).open()

    def verify(death: Death[Binding]) -> None:
        for disk in death.disks():
            machine = death.subject
            machine.disk = disk
            manager = machine.open(A, B, C)
            assert missing(manager) == []
            id_c = manager.directories.statuses()[2].directory_id
            assert machine.siblings(A) == {machine.id_b: B, id_c: C}
            assert machine.siblings(C) == {machine.id_a: A, machine.id_b: B}
            assert manager.open_log(P[1], TOPIC_ID, CONFIG).offsets.log_end_offset == 2

    CrashSweep(Binding, lambda one: one.manager.directories.bind_store("store-1")).at_deaths(verify)


def copy_tree(disk: FileSystem, source: str, target: str, *, names: Sequence[str]) -> None:
    disk.make_directories(target)
    for name in names:
        if disk.is_directory(f"{source}/{name}"):
            copy_tree(
                disk, f"{source}/{name}", f"{target}/{name}", names=disk.list_directory(f"{source}/{name}")
            )
        else:
            disk.copy_file(f"{source}/{name}", f"{target}/{name}")


def test_a_copy_without_the_manifest_is_offline_and_its_original_counts_no_crash() -> None:
    machine = Machine()
    copy_tree(machine.disk, B, C, names=["meta.properties", "orders-1"])
    manager = machine.open(A, C)
    assert [one.state for one in manager.directories.statuses()] == [
        DirectoryState.LIVE,
        DirectoryState.OFFLINE,
    ]
    assert f"{C}/{MANIFEST_FILE}" in manager.directories.statuses()[1].reason
    with pytest.raises(DataDirectoryError):
        manager.open_log(P[1], TOPIC_ID, CONFIG)
    assert manager.open_log(P[0], TOPIC_ID, CONFIG).offsets.log_end_offset == 2
    machine.stop()
    manager = machine.open(B)
    assert manager.was_clean
    assert manager.open_log(P[1], TOPIC_ID, CONFIG).offsets.log_end_offset == 2


def test_a_whole_copy_takes_the_place_of_its_original_and_needs_it_no_more() -> None:
    machine = Machine()
    names = [name for name in machine.disk.list_directory(B) if name != ".lock"]
    copy_tree(machine.disk, B, C, names=names)
    manager = machine.open(A, C)
    assert (missing(manager), machine.siblings(A)) == ([], {machine.id_b: C})
    assert manager.open_log(P[3], TOPIC_ID, CONFIG).offsets.log_end_offset == 2
    manager.delete_log(P[3])
    machine.stop()
    # From now on no directory refers to the former place.
    assert missing(machine.open(A, C)) == []
