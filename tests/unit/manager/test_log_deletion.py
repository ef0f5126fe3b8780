"""Partitions that are deleted together: few writes of each file of a log directory, each gone or whole."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.cleaner.cleaner_checkpoints import CLEANER_OFFSET_FILE
from stratalog.log.checkpoint import RECOVERY_POINT_FILE, OffsetCheckpoint
from stratalog.log.log_config import LogConfig
from stratalog.manager import log_manager
from stratalog.manager.directories.manifest import MANIFEST_FILE, read_manifest
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_opener import SoughtPartition
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.crash_sweep import CrashSweep, Death, Failure
from tests.support.logs.log_machine import TOPIC_ID, LogMachine

A, B = "/disk-a/logs", "/disk-b/logs"
CONFIG = LogConfig()
PARTITIONS = [TopicPartition("orders", number) for number in range(5)]
OTHER, OTHER_ID = TopicPartition("kept", 0), UUID(int=8)


def create(manager: LogManager, partitions: list[TopicPartition], topic_id: UUID = TOPIC_ID) -> None:
    """Each has a record, which is durable, and a recovery point and a cleaner's offset in the checkpoints."""
    manager.create_logs([SoughtPartition(one, topic_id, True) for one in partitions])
    for partition in partitions:
        log = manager.open_log(partition, topic_id, CONFIG, is_first_opening=True)
        log.appender.append_as_leader(encode_batch([Record(0, 1000, b"key", b"value")]), 1)
        log.flusher.flush()
    manager.tasks.checkpoint_recovery_points()


class DeletingMachine:
    """Two log directories with five partitions that are to be deleted, and one that stays."""

    def __init__(self, disk: FaultyFileSystem | None = None) -> None:
        self.disk = disk or FaultyFileSystem()
        self.machine = LogMachine(self.disk, data_dirs=(A, B), ids=SequentialIds(1 if disk is None else 100))
        self.manager = self.machine.open()
        self.failures: dict[TopicPartition, DataDirectoryError] = {}
        if disk is None:
            create(self.manager, PARTITIONS)
            create(self.manager, [OTHER], OTHER_ID)

    def delete(self) -> None:
        self.failures = self.manager.delete_logs(PARTITIONS, TOPIC_ID)

    def listed(self) -> set[TopicPartition]:
        return {one for path in (A, B) for one in read_manifest(self.disk, path).partitions}

    def names(self) -> set[str]:
        return {name for path in (A, B) for name in self.disk.inner.list_directory(path)}

    def verify_end(self) -> None:
        """After another deletion, as by a start, nothing of the topic is left, and the other is whole."""
        assert self.manager.delete_logs(PARTITIONS, TOPIC_ID) == {}
        self.machine.clock.advance(120_000)
        assert self.listed() == {OTHER}
        assert not [name for name in self.names() if name.startswith("orders")]
        create(self.manager, PARTITIONS, UUID(int=9))
        assert [self.manager.log(one).offsets.log_end_offset for one in PARTITIONS] == [1] * len(PARTITIONS)


@pytest.mark.parametrize("together", [2, 256])
def test_a_crash_leaves_each_there_or_deleted(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_manager, "DELETED_TOGETHER", together)
    sweep = CrashSweep(DeletingMachine, DeletingMachine.delete)

    def verify(death: Death[DeletingMachine]) -> None:
        for disk in death.disks():
            machine = DeletingMachine(disk)
            is_listed = machine.listed()
            assert OTHER in is_listed
            assert {one for one in PARTITIONS if str(one) in machine.names()} == is_listed - {OTHER}
            assert machine.manager.open_log(OTHER, OTHER_ID, CONFIG).offsets.log_end_offset == 1
            machine.verify_end()

    sweep.at_deaths(verify)


@pytest.mark.parametrize("together", [2, 256])
def test_what_a_disk_refuses_stays_and_the_rest_is_deleted(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_manager, "DELETED_TOGETHER", together)
    refused: Counter[int] = Counter()

    def verify(failure: Failure[DeletingMachine]) -> None:
        machine = failure.subject
        assert failure.error is None
        if any(one.reason for one in machine.manager.directories.statuses()):
            # The next start deletes what is in a directory that has failed.
            DeletingMachine(machine.disk.killed()).verify_end()
            return
        refused[len(machine.failures)] += 1
        assert machine.listed() == {OTHER, *machine.failures}
        assert {one for one in PARTITIONS if str(one) in machine.names()} == {*machine.failures}
        machine.verify_end()

    CrashSweep(DeletingMachine, DeletingMachine.delete).at_failures(verify)
    assert refused[0]
    assert any(refused[count] for count in range(1, len(PARTITIONS)))


def test_one_that_gets_no_other_name_is_alone_in_that() -> None:
    machine = DeletingMachine()
    path = machine.manager.path_of(PARTITIONS[2])
    machine.disk.fail_where(lambda line: line.startswith(f"rename {path} "), number=1)
    machine.delete()
    assert [*machine.failures] == [PARTITIONS[2]]
    assert machine.failures[PARTITIONS[2]].fields["path"] == path
    assert machine.listed() == {OTHER, PARTITIONS[2]}
    machine.disk.mend()
    machine.verify_end()


def test_the_log_of_another_topic_of_the_name_stays() -> None:
    machine = DeletingMachine()
    assert machine.manager.delete_logs([*PARTITIONS, OTHER], TOPIC_ID) == {}
    assert machine.manager.log(OTHER).offsets.log_end_offset == 1


def counted(count: int, *, is_open: bool) -> Counter[str]:
    """The operations of a deletion of so many partitions."""
    disk = FaultyFileSystem()
    machine = LogMachine(disk, data_dirs=(A,), ids=SequentialIds())
    partitions = [TopicPartition("orders", number) for number in range(count)]
    create(machine.open(), partitions)
    machine.stop()
    OffsetCheckpoint(disk, f"{A}/{CLEANER_OFFSET_FILE}").write(dict.fromkeys(partitions, 1))
    manager = machine.open()
    if is_open:
        for partition in partitions:
            manager.open_log(partition, TOPIC_ID, CONFIG)
    before = disk.operation_count
    assert manager.delete_logs(partitions, TOPIC_ID) == {}
    lines = disk.trace[before:]
    kinds = Counter(line.split(" ")[0] for line in lines)
    for name in (MANIFEST_FILE, RECOVERY_POINT_FILE, CLEANER_OFFSET_FILE):
        kinds[name] = lines.count(f"rename {A}/{name}.tmp {A}/{name}")
    return kinds


@pytest.mark.parametrize("is_open", [True, False])
def test_many_partitions_cost_one_write_of_each_file(*, is_open: bool) -> None:
    """Each of them costs its own rename and a few looks, and no fsync: they have the same number with 30 as
    with 10."""
    few, many = counted(10, is_open=is_open), counted(30, is_open=is_open)
    for name in (MANIFEST_FILE, RECOVERY_POINT_FILE, CLEANER_OFFSET_FILE):
        assert few[name] == many[name] == 1
    for kind in many:
        per_partition = (many[kind] - few[kind]) / 20
        assert per_partition <= {"rename": 1, "exists": 2, "close": 4, "free_bytes": 1}.get(kind, 0), kind


def test_more_than_a_group_are_written_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_manager, "DELETED_TOGETHER", 10)
    assert counted(30, is_open=True)[MANIFEST_FILE] == 3
