"""Several directories that hold logs: which are taken, where partitions go, what happens when one is gone."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import DataDirectoryError, DataDirectoryInUseError, InvalidRequestError
from stratalog.base.filesystem import FileSystem
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import parse_checkpoint
from stratalog.log.log_config import LogConfig
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.manager.directories.manifest import MANIFEST_FILE, read_manifest
from stratalog.manager.log_manager import LogManager
from stratalog.manager.partitions.stray_partitions import PartitionClaim
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.edited_manifest import edit_manifest
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.logs.log_machine import TOPIC_ID, LogMachine, checkpoint

A, B, C = "/disk-a/logs", "/disk-b/logs", "/disk-c/logs"
BATCH = encode_batch([Record(0, 1000, b"k", b"v")])
CONFIG = LogConfig()
# No two directories have the same id.
IDS = SequentialIds()
P = [TopicPartition("orders", number) for number in range(8)]


def machine_of(disk: FileSystem | None = None, *dirs: str) -> LogMachine:
    return LogMachine(disk, data_dirs=dirs or (A, B), ids=IDS)


def append(manager: LogManager, partition: TopicPartition, count: int = 1) -> None:
    log = manager.open_log(partition, TOPIC_ID, CONFIG)
    for _ in range(count):
        log.appender.append_as_leader(BATCH, 1)


def where(manager: LogManager) -> dict[str, list[int]]:
    """The open partitions by directory."""
    found: dict[str, list[int]] = {A: [], B: []}
    for log in manager.logs():
        found.setdefault(os.path.dirname(log.local_log.directory), []).append(log.topic_partition.partition)
    return found


def test_new_partitions_go_where_the_fewest_are() -> None:
    machine = machine_of()
    manager = machine.open()
    for partition in P[:5]:
        append(manager, partition)
    assert where(manager) == {A: [0, 2, 4], B: [1, 3]}
    manager.delete_log(P[0])
    manager.delete_log(P[2])
    append(manager, P[6])
    assert where(manager) == {A: [4, 6], B: [1, 3]}
    assert manager.path_of(P[6]) == f"{A}/orders-6"
    assert manager.directory_of(P[3]) == B
    assert manager.directory_of(P[7]) is None


def test_a_partition_is_found_where_it_is() -> None:
    machine = machine_of()
    manager = machine.open()
    for partition in P[:4]:
        append(manager, partition, partition.partition + 1)
    machine.stop()
    # The other way round, and with one more: what is there stays there.
    again = machine_of(machine.disk, C, B, A)
    manager = again.open()
    assert manager.was_clean is False, "the new directory belonged to no server"
    assert manager.found.with_topics() == tuple((partition, TOPIC_ID) for partition in P[:4])
    for partition in P[:4]:
        assert manager.open_log(partition, TOPIC_ID, CONFIG).offsets.log_end_offset == partition.partition + 1
    assert where(manager) == {A: [0, 2], B: [1, 3]}
    append(manager, P[4])
    assert manager.directory_of(P[4]) == C
    manager.check()
    again.stop()
    assert again.open().was_clean


def test_each_directory_has_its_own_checkpoints_and_marker() -> None:
    disk = MemoryFileSystem()
    machine = machine_of(disk)
    manager = machine.open()
    append(manager, P[0], 3)
    append(manager, P[1], 5)
    manager.log(P[0]).flusher.flush()
    manager.log(P[0]).increment_log_start_offset(2)
    machine.stop()

    def checkpoint(path: str) -> dict[TopicPartition, int]:
        return parse_checkpoint(disk.read_file(path).decode())

    assert checkpoint(f"{A}/recovery-point-offset-checkpoint") == {P[0]: 3}
    assert checkpoint(f"{B}/recovery-point-offset-checkpoint") == {P[1]: 5}
    assert checkpoint(f"{B}/log-start-offset-checkpoint") == {}
    assert disk.exists(f"{A}/.kafka_cleanshutdown")
    disk.unlink(f"{B}/.kafka_cleanshutdown")
    manager = machine.open()
    assert not manager.was_clean
    assert manager.open_log(P[0], TOPIC_ID, CONFIG).recovery_report.was_clean
    assert not manager.open_log(P[1], TOPIC_ID, CONFIG).recovery_report.was_clean


def test_two_names_of_one_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "logs")
    paths = (str(tmp_path / "logs"), str(tmp_path / "link"))
    machine = machine_of(PosixFileSystem(), *paths)
    with pytest.raises(DataDirectoryError) as failure:
        machine.open()
    assert failure.value.fields["other_path"] == paths[0]
    assert not list((tmp_path / "logs").iterdir())


def test_a_directory_inside_another_is_refused() -> None:
    with pytest.raises(DataDirectoryError) as failure:
        machine_of(None, "/disk-a", A).open()
    assert failure.value.fields == {"path": A, "other_path": "/disk-a"}


def test_a_copy_of_a_directory_is_refused() -> None:
    disk = MemoryFileSystem()
    machine = machine_of(disk, A)
    machine.open()
    machine.stop()
    disk.make_directories(B)
    replace_file(disk, f"{B}/meta.properties", disk.read_file(f"{A}/meta.properties"))
    for _ in range(2):
        # The lock is given back: the same error again.
        with pytest.raises(DataDirectoryError) as failure:
            machine_of(disk, A, B).open()
        assert (failure.value.fields["path"], failure.value.fields["other_path"]) == (B, A)


def test_a_directory_of_another_process_is_refused_and_the_others_are_given_back() -> None:
    disk = MemoryFileSystem()
    machine_of(disk, B).open()
    with pytest.raises(DataDirectoryInUseError) as failure:
        machine_of(disk, A, B).open()
    assert failure.value.fields["path"] == B
    machine_of(disk, A).open()


def test_a_start_that_is_refused_is_no_crash() -> None:
    disk = MemoryFileSystem()
    machine = machine_of(disk, A)
    append(machine.open(), P[0], 2)
    machine.stop()
    machine_of(disk, B).open()
    with pytest.raises(DataDirectoryInUseError):
        machine_of(disk, A, B).open()
    assert machine_of(disk, A).open().was_clean


def test_all_directories_belong_to_one_store() -> None:
    disk = MemoryFileSystem()
    machine = machine_of(disk, A)
    machine.open().directories.bind_store("store-1")
    machine.stop()
    machine = machine_of(disk, B, A)
    manager = machine.open()
    assert manager.directories.bound_store_id == "store-1"
    with pytest.raises(DataDirectoryError) as failure:
        manager.directories.bind_store("store-2")
    assert failure.value.fields == {"path": A, "store_id": "store-1", "wanted_store_id": "store-2"}
    manager.directories.bind_store("store-1")
    machine.stop()
    assert "store.id=store-1" in disk.read_file(f"{B}/meta.properties").decode()
    other = machine_of(disk, C)
    other.open().directories.bind_store("store-2")
    other.stop()
    with pytest.raises(DataDirectoryError) as failure:
        machine_of(disk, A, B, C).open()
    assert {failure.value.fields["store_id"], failure.value.fields["other_store_id"]} == {
        "store-1",
        "store-2",
    }


def test_a_cordoned_directory_serves_what_it_has_and_takes_nothing_new() -> None:
    disk = MemoryFileSystem()
    machine = machine_of(disk)
    manager = machine.open()
    for partition in P[:4]:
        append(manager, partition)
    manager.directories.alter_cordons([B])
    append(manager, P[4])
    append(manager, P[5])
    assert where(manager) == {A: [0, 2, 4, 5], B: [1, 3]}
    manager.log(P[1]).appender.append_as_leader(BATCH, 1)
    assert [one.state for one in manager.directories.statuses()] == [
        DirectoryState.LIVE,
        DirectoryState.CORDONED,
    ]
    manager.directories.alter_cordons([A, B])
    with pytest.raises(DataDirectoryError) as failure:
        append(manager, P[6])
    assert failure.value.fields == {"path": A}
    manager.directories.alter_cordons([A])
    append(manager, P[6])
    assert manager.directory_of(P[6]) == B
    with pytest.raises(InvalidRequestError) as refusal:
        manager.directories.alter_cordons([C])
    assert refusal.value.fields == {"path": C}
    machine.stop()
    manager = machine_of(disk).open()
    assert manager.open_log(P[0], TOPIC_ID, CONFIG).offsets.log_end_offset == 1
    append(manager, P[7])
    assert manager.directory_of(P[7]) == B


def test_a_partition_in_two_directories_is_a_matter_for_a_human() -> None:
    disk = MemoryFileSystem()
    for path in (A, B):
        machine = machine_of(disk, path)
        append(machine.open(), P[0], 2)
        machine.stop()
    before = disk.contents()
    manager = machine_of(disk).open()
    with pytest.raises(DataDirectoryError) as failure:
        manager.open_log(P[0], TOPIC_ID, CONFIG)
    assert failure.value.fields == {"path": f"{A}/orders-0", "other_path": f"{B}/orders-0"}
    after = disk.contents()
    assert {path: after[path] for path in before if "orders-0" in path} == {
        path: data for path, data in before.items() if "orders-0" in path
    }


@pytest.mark.parametrize("paths", [(A, B), (B, A)])
def test_a_directory_that_never_held_anything_gives_way(paths: tuple[str, str]) -> None:
    disk = MemoryFileSystem()
    for path, count in ((A, 3), (B, 0)):
        machine = machine_of(disk, path)
        append(machine.open(), P[0], count)
        machine.stop()
    manager = machine_of(disk, *paths).open()
    assert manager.open_log(P[0], TOPIC_ID, CONFIG).offsets.log_end_offset == 3
    assert manager.directory_of(P[0]) == A
    assert [name for name in disk.list_directory(B) if name.endswith("-stray")]


def test_the_directory_of_an_older_topic_does_not_hide_the_right_one() -> None:
    disk = MemoryFileSystem()
    machine = machine_of(disk, A)
    machine.open().open_log(P[0], UUID(int=9), CONFIG).appender.append_as_leader(BATCH, 1)
    machine.stop()
    machine = machine_of(disk, B)
    append(machine.open(), P[0], 3)
    machine.stop()
    manager = machine_of(disk).open()
    assert manager.open_log(P[0], TOPIC_ID, CONFIG).offsets.log_end_offset == 3
    assert manager.directory_of(P[0]) == B
    assert [name for name in disk.list_directory(A) if name.endswith("-stray")]


def test_what_is_asked_of_all_logs_is_asked_of_all_directories() -> None:
    disk = MemoryFileSystem()
    machine = machine_of(disk)
    manager = machine.open()
    append(manager, P[0])
    manager.open_log(P[1], TOPIC_ID, CONFIG).appender.append_as_leader(BATCH, 7)
    machine.stop()
    edit_manifest(disk, B, P[1], import_epoch=5)
    manager = machine.open()
    assert {tip.partition: epoch for tip, epoch in manager.found.epochs()} == {0: 1, 1: 7}
    assert manager.import_epoch(P[1]) == 5
    assert manager.import_epoch(P[0]) is None


class TestOfflineFromTheStart:
    """A directory that the operating system refuses."""

    def broken(self, *, number: int = errno.EACCES) -> tuple[FaultyFileSystem, LogMachine]:
        """Partitions 0 and 2 are in A, 1 and 3 in B; B cannot be locked."""
        inner = MemoryFileSystem()
        machine = machine_of(inner)
        manager = machine.open()
        for partition in P[:4]:
            append(manager, partition, 2)
        manager.directories.bind_store("store-1")
        machine.stop()
        disk = FaultyFileSystem(inner)
        machine_of(disk).open()
        operation = disk.trace.index(f"try_lock {B}/.lock") + 1
        inner.release_locks()
        disk = FaultyFileSystem(inner)
        disk.fail_at(operation, number=number)
        return disk, machine_of(disk)

    def test_the_others_go_on(self) -> None:
        _, machine = self.broken()
        manager = machine.open()
        assert machine.all_failed_count == 0
        first, second = manager.directories.statuses()
        assert (first.state, first.partition_count, first.remaining_log_count) == (DirectoryState.LIVE, 2, 2)
        assert (second.state, second.partition_count) == (DirectoryState.OFFLINE, 0)
        assert "Permission denied" in second.reason
        assert manager.directories.bound_store_id == "store-1"
        assert [partition for partition, _ in manager.found.with_topics()] == [P[0], P[2]]
        assert manager.open_log(P[0], TOPIC_ID, CONFIG).offsets.log_end_offset == 2

    def test_a_partition_that_may_be_there_is_not_begun_anew(self) -> None:
        disk, machine = self.broken()
        manager = machine.open()
        with pytest.raises(DataDirectoryError) as failure:
            manager.open_log(P[1], TOPIC_ID, CONFIG)
        assert failure.value.fields["path"] == f"{B}/orders-1"
        assert not disk.exists(f"{A}/orders-1")
        # A partition that no directory has ever held is created.
        log = manager.open_log(P[7], TOPIC_ID, CONFIG, is_first_opening=True)
        assert log.local_log.directory == f"{A}/orders-7"
        manager.open_log(P[0], TOPIC_ID, CONFIG)
        machine.stop()
        manager = machine.open()
        assert manager.open_log(P[1], TOPIC_ID, CONFIG).offsets.log_end_offset == 2

    def test_when_none_is_left_there_is_no_start(self) -> None:
        disk = FaultyFileSystem()
        for operation in range(1, 40):
            disk.fail_at(operation, number=errno.EROFS)
        machine = machine_of(disk)
        with pytest.raises(DataDirectoryError) as failure:
            machine.open()
        assert failure.value.fields["path"] == A
        assert machine.all_failed_count == 0, "the error tells the caller"


def test_the_start_says_how_much_is_left() -> None:
    machine = machine_of()
    manager = machine.open()
    for partition in P[:5]:
        append(manager, partition, 3)
    machine.kill()
    manager = machine.open()
    assert [one.remaining_log_count for one in manager.directories.statuses()] == [3, 2]
    seen: list[dict[str, int]] = []
    manager.open_log(
        P[0], TOPIC_ID, CONFIG, on_progress=lambda _: seen.append(manager.remaining_segment_counts)
    )
    assert [list(counts.values()) for counts in seen] == [[1]]
    assert list(manager.remaining_segment_counts.values()) == [0]
    assert [one.remaining_log_count for one in manager.directories.statuses()] == [2, 2]
    manager.end_start(lambda _partition, _topic_id: PartitionClaim.WANTED)
    assert [one.remaining_log_count for one in manager.directories.statuses()] == [0, 0]


def test_what_one_file_system_cannot_do_the_other_may(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryFileSystem()

    def before(_: str, path: str) -> None:
        disk.can_reserve = not path.startswith(A)

    manager = machine_of(HookedDisk(before, disk)).open()
    for partition in P[:4]:
        manager.open_log(partition, TOPIC_ID, LogConfig(preallocate=True, segment_bytes=4096))
    spare = [disk.spare_bytes(f"{manager.path_of(partition)}/{0:020d}.log") for partition in P[:4]]
    assert spare == [0, 4096, 0, 4096]
    assert len([record for record in caplog.records if "cannot reserve space" in record.getMessage()]) == 1


def test_a_cordon_is_in_the_manifest_and_stronger_than_the_settings() -> None:
    disk = FaultyFileSystem()

    def cordons(*given: str) -> tuple[bool | None, ...]:
        """The cordon of each manifest, then the states, of a machine that starts with these settings."""
        machine = LogMachine(disk, data_dirs=(A, B, C), ids=SequentialIds(), cordoned_dirs=given)
        manager = machine.open()
        manager.directories.alter_cordons(wanted)
        marks = tuple(read_manifest(disk, path).cordoned for path in (A, B, C))
        found = tuple(
            one.path for one in manager.directories.statuses() if one.state is DirectoryState.CORDONED
        )
        assert found == (tuple(given) if wanted is None else tuple(sorted(wanted)))
        assert manager.directories.altered_cordons() == (None if marks == (None, None, None) else found)
        machine.stop()
        return marks

    wanted: list[str] | None = [A, C]
    assert cordons() == (True, False, True)
    wanted = [C]
    assert cordons(A) == (False, False, True)
    wanted = []
    assert cordons(A, B, C) == (False, False, False)
    wanted = None
    assert cordons(B) == (None, None, None)


def test_an_alteration_is_remembered_when_the_settings_change() -> None:
    disk = FaultyFileSystem()
    for given, altered, found in [((), [], ()), ((B,), None, ()), ((A,), [A], (A,)), ((), None, (A,))]:
        machine = LogMachine(disk, data_dirs=(A, B, C), ids=SequentialIds(), cordoned_dirs=given)
        manager = machine.open()
        if altered is not None:
            manager.directories.alter_cordons(altered)
        assert manager.directories.altered_cordons() == found
        machine.stop()


def test_the_cordon_of_an_offline_directory_stays() -> None:
    disk = FaultyFileSystem()
    machine = LogMachine(disk, data_dirs=(A, B, C), ids=SequentialIds())
    manager = machine.open()
    manager.directories.alter_cordons([B])
    disk.fail_where(lambda line: f"{B}/" in line)
    with pytest.raises(DataDirectoryError):
        checkpoint(manager)
    for refused in ([], [A], None):
        with pytest.raises(DataDirectoryError) as failure:
            manager.directories.alter_cordons(refused)
        assert failure.value.fields["path"] == B
        assert manager.directories.altered_cordons() == (B,), "nothing has changed"
    # Others may change while it stays cordoned.
    manager.directories.alter_cordons([B, C])
    disk.mend()
    disk = disk.killed()
    assert [read_manifest(disk, path).cordoned for path in (A, B, C)] == [False, True, True]


def test_a_refused_cordon_names_the_directories_that_have_changed() -> None:
    disk = FaultyFileSystem()
    manager = LogMachine(disk, data_dirs=(A, B, C), ids=SequentialIds()).open()
    disk.fail_where(lambda line: f"{B}/{MANIFEST_FILE}" in line, number=errno.EACCES)
    with pytest.raises(DataDirectoryError) as failure:
        manager.directories.alter_cordons([A, B, C])
    assert (failure.value.fields["path"], failure.value.fields["altered"]) == (B, A)
    disk.mend()
    assert [read_manifest(disk, path).cordoned for path in (A, B, C)] == [True, None, None]


class CordoningMachine:
    """Three directories, the second of which is cordoned."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.manager = LogMachine(self.disk, data_dirs=(A, B, C), ids=SequentialIds()).open()
        self.manager.directories.alter_cordons([B])


def test_a_crash_leaves_each_cordon_as_it_was_or_as_it_was_to_be() -> None:
    def verify(death: Death[CordoningMachine]) -> None:
        for disk in death.disks():
            manager = LogMachine(disk, data_dirs=(A, B, C), ids=SequentialIds()).open()
            found = tuple(
                one.path for one in manager.directories.statuses() if one.state is DirectoryState.CORDONED
            )
            assert found in ((B,), (A, B), (A,), (A, C))

    CrashSweep(CordoningMachine, lambda one: one.manager.directories.alter_cordons([A, C])).at_deaths(verify)


def test_closing_waits_for_every_thread_and_marks_last() -> None:
    disk = FaultyFileSystem()
    machine = machine_of(disk)
    manager = machine.open()
    for partition in P:
        append(manager, partition, 3)
    before = disk.operation_count
    with ThreadPoolExecutor(4) as pool:
        manager.close(lambda _: pool)
    closing = disk.trace[before:]
    for path in (A, B):
        of_directory = [one.split(" ", 1) for one in closing if f" {path}/" in one or one.endswith(path)]
        [marked] = [
            number
            for number, (name, paths) in enumerate(of_directory)
            if name == "rename" and paths.endswith(".kafka_cleanshutdown")
        ]
        assert of_directory[marked + 1] == ["sync_directory", path]
        assert {name for name, _ in of_directory[marked + 2 :]} <= {"close"}
    assert machine_of(disk).open().was_clean
