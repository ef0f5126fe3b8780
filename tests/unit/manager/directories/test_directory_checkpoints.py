"""What the checkpoints of a directory know, and what their files say, where a disk is full for a while."""

from __future__ import annotations

import errno
from uuid import UUID

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.directory_checkpoints import DirectoryCheckpoints
from stratalog.manager.directories.manifest import ManifestFile, read_manifest
from stratalog.manager.directories.spare_space import SpareSpace
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.disk_refusals import refused_by_disk
from tests.support.logs.crash_sweep import CrashSweep, Failure
from tests.support.logs.log_machine import DATA_DIR, PARTITION, TOPIC_ID, LogMachine

UNTIERED = LogConfig(remote_storage_enable=False, retention_ms=-1)
SECOND = TopicPartition("orders", 1)
NEW_ID = UUID(int=8)


def new_checkpoints(disk: FaultyFileSystem) -> DirectoryCheckpoints:
    manifest = ManifestFile(disk, DATA_DIR, read_manifest(disk, DATA_DIR))
    return DirectoryCheckpoints(disk, DATA_DIR, SpareSpace(disk, DATA_DIR), manifest)


def batch(value: bytes) -> bytes:
    return encode_batch([Record(0, 1000, b"key", value)])


def fill(log: UnifiedLog, count: int, value: bytes = b"value") -> None:
    for _ in range(count):
        log.appender.append_as_leader(batch(value), 1)
    log.flusher.flush()


class Machine:
    """Two partitions in one directory, each with 20 records; those of the first below 15 are deleted."""

    def __init__(self, disk: FaultyFileSystem) -> None:
        self.disk = disk
        self.manager = LogMachine(disk, ids=SequentialIds()).open()
        self.first, self.second = (
            self.manager.open_log(partition, TOPIC_ID, UNTIERED) for partition in (PARTITION, SECOND)
        )
        for log in (self.first, self.second):
            fill(log, 20)
        self.first.increment_log_start_offset(15)

    def delete(self) -> None:
        self.manager.delete_log(PARTITION)

    def create_again(self) -> None:
        """Another topic has the first one's name, and 25 records that are durable."""
        log = self.manager.open_log(PARTITION, NEW_ID, UNTIERED, is_first_opening=True)
        assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (0, 0)
        fill(log, 25, b"new")


def require_all_of_the_new(disk: FaultyFileSystem) -> None:
    log = LogMachine(disk, ids=SequentialIds(1000)).open().open_log(PARTITION, NEW_ID, UNTIERED)
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (0, 25)
    assert log.reader.read(0, 100_000).batches.count(b"new") == 25


def test_whichever_step_of_a_deletion_or_a_creation_is_refused_nothing_old_is_believed() -> None:
    def replace(machine: Machine) -> None:
        for work in (machine.delete, machine.create_again):
            for _ in range(3):
                try:
                    work()
                    break
                except DataDirectoryError:
                    if work == machine.create_again:
                        # As a server does with what it could not create.
                        machine.delete()

    sweep = CrashSweep(lambda: Machine(FaultyFileSystem()), replace)
    sweep.at_failures(
        lambda failure: require_all_of_the_new(failure.subject.disk.killed()),
        errors=(errno.ENOSPC, errno.EACCES),
    )


def test_a_deletion_of_records_that_is_refused_is_not_written_down_later() -> None:
    def verify(failure: Failure[Machine]) -> None:
        machine = failure.subject
        if failure.error is None:
            return
        assert machine.first.offsets.log_start_offset == 15
        machine.second.increment_log_start_offset(2)
        machine.manager.checkpoint()
        reopened = LogMachine(machine.disk.killed(), ids=SequentialIds(1000)).open()
        assert reopened.open_log(PARTITION, TOPIC_ID, UNTIERED).offsets.log_start_offset == 15

    sweep = CrashSweep(
        lambda: Machine(FaultyFileSystem()), lambda machine: machine.first.increment_log_start_offset(18)
    )
    sweep.at_failures(verify, errors=(errno.ENOSPC,))


def test_a_start_that_is_written_is_not_taken_back_by_who_writes_all() -> None:
    disk = FaultyFileSystem()
    log = Machine(disk).first
    checkpoints = new_checkpoints(disk)
    checkpoints.write_for(log, 18)
    checkpoints.write_starts([log], lambda _: True)
    assert new_checkpoints(disk).log_start_offset(PARTITION) == 18
    # The log ends before it: that is written at once, and counts.
    checkpoints.write_for(log, 16)
    checkpoints.write_starts([log], lambda _: True)
    assert new_checkpoints(disk).log_start_offset(PARTITION) == 16


def test_what_could_not_be_written_is_written_by_the_next_who_asks_for_it() -> None:
    disk = FullFileSystem(MemoryFileSystem(can_reserve=False))
    Machine(disk)
    checkpoints = new_checkpoints(disk)
    checkpoints.put_recovery_point(PARTITION, 20)
    checkpoints.put_recovery_point(SECOND, 20)
    disk.fill(DATA_DIR)
    with pytest.RaisesExc(OSError, check=refused_by_disk(errno.ENOSPC)):
        checkpoints.lower_recovery_point(PARTITION, 10)
    with pytest.RaisesExc(OSError, check=refused_by_disk(errno.ENOSPC)):
        checkpoints.lower_recovery_point(PARTITION, 10)
    with pytest.RaisesExc(OSError, check=refused_by_disk(errno.ENOSPC)):
        checkpoints.forget(SECOND)
    with pytest.RaisesExc(OSError, check=refused_by_disk(errno.ENOSPC)):
        checkpoints.forget(SECOND)
    # Partitions without a change are not kept.
    checkpoints.lower_recovery_point(TopicPartition("others", 0), 10)
    checkpoints.forget(TopicPartition("others", 0))
    disk.fill(None)
    checkpoints.forget(SECOND)
    checkpoints.lower_recovery_point(PARTITION, 10)
    found = new_checkpoints(disk)
    assert (found.recovery_point(PARTITION), found.log_start_offset(PARTITION)) == (10, 15)
    assert found.recovery_point(SECOND) == 0
    count = disk.operation_count
    checkpoints.forget(SECOND)
    checkpoints.lower_recovery_point(PARTITION, 10)
    assert disk.operation_count == count, "there is nothing to write"
