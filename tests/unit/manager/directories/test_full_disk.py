"""A full disk: what it still lets be done, and what its checkpoints say then."""

from __future__ import annotations

import errno
import os
from uuid import UUID

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.retention.late_removal import RETRY_MS
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.directory_checkpoints import DirectoryCheckpoints
from stratalog.manager.directories.locked_directory import CLEAN_SHUTDOWN_FILE
from stratalog.manager.directories.manifest import ManifestFile, read_manifest
from stratalog.manager.directories.spare_space import (
    SHORT_BYTES,
    SPARE_BYTES,
    SPARE_DELETION_FILE,
    SPARE_STOP_FILE,
    SpareSpace,
)
from stratalog.manager.log_manager import LogManager
from stratalog.manager.partitions.stray_partitions import PartitionClaim
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.disk_refusals import refused_by_disk
from tests.support.logs.crash_sweep import CrashSweep, Failure
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import DATA_DIR, PARTITION, TOPIC_ID, LogMachine, checkpoint

CONFIG = LogConfig(remote_storage_enable=False, retention_ms=-1, segment_bytes=1024)
SECOND = TopicPartition("orders", 1)
BATCH = encode_batch([Record(0, 1000, b"key", b"v" * 400)])
SPARE_PATH = f"{DATA_DIR}/{SPARE_DELETION_FILE}"
STOP_PATH = f"{DATA_DIR}/{SPARE_STOP_FILE}"
DELETE_DELAY_MS = 1000
NEW_ID = UUID(int=8)


class Machine:
    """Two partitions with 20 records each, and a start that is over."""

    def __init__(self, disk: FaultyFileSystem, *, is_new: bool = True) -> None:
        self.disk = disk
        self.machine = LogMachine(disk, ids=SequentialIds(1 if is_new else 100))
        self.start()
        for log in (self.first, self.second) if is_new else ():
            for _ in range(20):
                log.appender.append_as_leader(BATCH, 1)

    def start(self) -> None:
        self.manager: LogManager = self.machine.open()
        self.first: UnifiedLog = self.manager.open_log(PARTITION, TOPIC_ID, CONFIG)
        self.second: UnifiedLog = self.manager.open_log(SECOND, TOPIC_ID, CONFIG)
        self.manager.end_start(lambda _partition, _topic_id: PartitionClaim.WANTED)

    def paths(self, suffix: str) -> list[str]:
        return [path for path in self.disk.inner.contents() if path.endswith(suffix)]


def test_records_are_deleted_by_the_space_that_was_kept_aside_and_some_is_kept_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = FullFileSystem()
    machine = Machine(disk)
    assert disk.inner.spare_bytes(SPARE_PATH) == SPARE_BYTES
    disk.fill(DATA_DIR)
    with pytest.RaisesExc(DataDirectoryError, check=refused_by_disk(errno.ENOSPC)):
        machine.first.appender.append_as_leader(BATCH, 1)
    machine.first.increment_log_start_offset(15)
    assert not disk.inner.exists(SPARE_PATH)
    assert disk.inner.spare_bytes(STOP_PATH) == SPARE_BYTES
    assert "the space that was kept aside for deletions is in use now" in caplog.text
    assert machine.first.retention.delete_old_segments() > 1
    machine.machine.clock.advance(CONFIG.file_delete_delay_ms)
    assert machine.paths(".deleted") == []
    disk.fill(None)
    checkpoint(machine.manager)
    assert disk.inner.spare_bytes(SPARE_PATH) == SPARE_BYTES
    log = LogMachine(disk.killed(), ids=SequentialIds(100)).open().open_log(PARTITION, TOPIC_ID, CONFIG)
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (15, 20)


def test_who_writes_now_and_then_does_not_take_it() -> None:
    disk = FullFileSystem()
    machine = Machine(disk)
    disk.fill(DATA_DIR)
    with pytest.RaisesExc(DataDirectoryError, check=refused_by_disk(errno.ENOSPC)):
        checkpoint(machine.manager)
    assert disk.inner.exists(SPARE_PATH)


def test_a_full_disk_is_left_in_order_and_found_so() -> None:
    disk = FullFileSystem()
    machine = Machine(disk)
    disk.fill(DATA_DIR)
    machine.machine.stop()
    assert disk.inner.exists(f"{DATA_DIR}/{CLEAN_SHUTDOWN_FILE}")
    machine.start()
    assert machine.manager.was_clean
    assert (machine.first.offsets.log_end_offset, machine.second.offsets.log_end_offset) == (20, 20)
    machine.manager.delete_log(PARTITION)
    machine.machine.clock.advance(DELETE_DELAY_MS)
    assert machine.paths("-delete") == []


def test_a_stop_without_any_room_says_what_to_do() -> None:
    disk = FullFileSystem(MemoryFileSystem(can_reserve=False))
    machine = Machine(disk)
    disk.fill(DATA_DIR)
    with pytest.RaisesExc(DataDirectoryError, check=refused_by_disk(errno.ENOSPC)):
        machine.machine.stop()


def test_a_deleted_partition_that_cannot_be_removed_is_tried_again() -> None:
    disk = FaultyFileSystem()
    machine = Machine(disk)
    machine.manager.delete_log(PARTITION)
    disk.fail_where(lambda line: line.startswith("remove_tree "), number=errno.EPERM)
    machine.machine.clock.advance(DELETE_DELAY_MS)
    assert len(machine.paths("-delete")) == 1
    disk.mend()
    machine.machine.clock.advance(RETRY_MS)
    assert machine.paths("-delete") == []


@pytest.mark.parametrize("free_bytes", [SHORT_BYTES - 1, SHORT_BYTES])
def test_what_a_former_process_has_deleted_goes_at_once_where_space_is_short(free_bytes: int) -> None:
    disk = FaultyFileSystem(MemoryFileSystem(free_bytes=free_bytes))
    machine = Machine(disk)
    machine.manager.delete_log(PARTITION)
    disk = FaultyFileSystem(disk.killed().inner)
    again = LogMachine(disk, ids=SequentialIds(100))
    again.open()
    left = [path for path in disk.inner.contents() if path.endswith("-delete")]
    assert len(left) == (free_bytes == SHORT_BYTES)
    again.clock.advance(DELETE_DELAY_MS)
    assert not any("-delete" in path for path in disk.inner.contents())


def test_little_is_kept_of_little_and_more_when_there_is_more() -> None:
    disk = FullFileSystem()
    disk.make_directories(DATA_DIR)
    disk.fill(DATA_DIR)
    spare = SpareSpace(disk, DATA_DIR)

    def kept(free_bytes: int) -> tuple[int, int]:
        """For a stop, and for deletions, where so much is free before each."""
        disk.room_bytes = free_bytes
        spare.keep()
        paths = [path for path in (STOP_PATH, SPARE_PATH) if disk.inner.exists(path)]
        stop_bytes, deletion_bytes, *_ = (*map(disk.inner.spare_bytes, paths), 0, 0)
        return stop_bytes, deletion_bytes

    assert kept(0) == (0, 0)
    assert kept(2**17 - 1) == (0, 0)
    assert kept(2**17 + 2**13) == (2**16 + 2**12, 2**16 + 2**12)
    assert kept(0) == (2**16 + 2**12, 2**16 + 2**12)
    assert kept(2**30) == (SPARE_BYTES, SPARE_BYTES)
    assert kept(2**30) == (SPARE_BYTES, SPARE_BYTES)
    spare.give_up()
    assert disk.inner.list_directory(DATA_DIR) == []


def refuse() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_refuses_space_stops_no_caller() -> None:
    disk = FullFileSystem()
    disk.make_directories(DATA_DIR)
    spare = SpareSpace(disk, DATA_DIR)
    for kind, after in (("free_bytes", 1), ("open_append", 2), ("reserve", 3)):
        at = disk.operation_count + after
        disk.fail_at(at, number=errno.ENOSPC)
        spare.keep()
        assert disk.trace[at - 1].startswith(kind)
        assert disk.operation_count == at + (kind == "reserve"), "the file is closed"
        with pytest.RaisesExc(OSError, check=refused_by_disk(errno.ENOSPC)):
            spare.writing(refuse)
    spare.keep()
    assert disk.inner.spare_bytes(SPARE_PATH) == SPARE_BYTES


def test_a_new_directory_on_a_full_disk_is_no_directory_of_other_rights() -> None:
    disk = FullFileSystem()
    disk.fill(DATA_DIR)
    with pytest.RaisesExc(DataDirectoryError, check=refused_by_disk(errno.ENOSPC)):
        LogMachine(disk).open()


def new_checkpoints(disk: FaultyFileSystem) -> DirectoryCheckpoints:
    manifest = ManifestFile(disk, DATA_DIR, read_manifest(disk, DATA_DIR))
    return DirectoryCheckpoints(disk, DATA_DIR, SpareSpace(disk, DATA_DIR), manifest)


class DeletedRecords(Machine):
    """All is flushed, and records of the first below 15 are deleted."""

    def __init__(self, disk: FaultyFileSystem) -> None:
        super().__init__(disk)
        for log in (self.first, self.second):
            log.flusher.flush()
        self.first.increment_log_start_offset(15)

    def delete(self) -> None:
        self.manager.delete_log(PARTITION)

    def create_again(self) -> None:
        """Another topic has the first one's name, and 25 records that are durable."""
        log = self.manager.open_log(PARTITION, NEW_ID, CONFIG, is_first_opening=True)
        assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (0, 0)
        for _ in range(25):
            log.appender.append_as_leader(encode_batch([Record(0, 1000, b"key", b"new")]), 1)
        log.flusher.flush()


def require_all_of_the_new(disk: FaultyFileSystem) -> None:
    log = LogMachine(disk, ids=SequentialIds(1000)).open().open_log(PARTITION, NEW_ID, CONFIG)
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (0, 25)
    assert [one.value for one in read_local(log)] == [b"new"] * 25


def test_whichever_step_of_a_deletion_or_a_creation_is_refused_nothing_old_is_believed() -> None:
    def replace(machine: DeletedRecords) -> None:
        for work in (machine.delete, machine.create_again):
            for _ in range(3):
                try:
                    work()
                    break
                except DataDirectoryError:
                    if work == machine.create_again:
                        # As a server does with what it could not create.
                        machine.delete()

    sweep = CrashSweep(lambda: DeletedRecords(FaultyFileSystem()), replace)
    sweep.at_failures(
        lambda failure: require_all_of_the_new(failure.subject.disk.killed()),
        errors=(errno.ENOSPC, errno.EACCES),
    )


def test_a_deletion_of_records_that_is_refused_is_not_written_down_later() -> None:
    def verify(failure: Failure[DeletedRecords]) -> None:
        machine = failure.subject
        if failure.error is None:
            return
        assert machine.first.offsets.log_start_offset == 15
        machine.second.increment_log_start_offset(2)
        checkpoint(machine.manager)
        reopened = LogMachine(machine.disk.killed(), ids=SequentialIds(1000)).open()
        assert reopened.open_log(PARTITION, TOPIC_ID, CONFIG).offsets.log_start_offset == 15

    sweep = CrashSweep(
        lambda: DeletedRecords(FaultyFileSystem()),
        lambda machine: machine.first.increment_log_start_offset(18),
    )
    sweep.at_failures(verify, errors=(errno.ENOSPC,))


def test_a_start_that_is_written_is_not_taken_back_by_who_writes_all() -> None:
    disk = FaultyFileSystem()
    log = DeletedRecords(disk).first
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
    DeletedRecords(disk)
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


def test_what_is_kept_for_a_stop_is_not_for_deletions_and_serves_the_next_start() -> None:
    disk = FullFileSystem()
    machine = Machine(disk)
    disk.fill(DATA_DIR)
    machine.first.increment_log_start_offset(5)
    disk.room_bytes = 0
    with pytest.RaisesExc(DataDirectoryError, check=refused_by_disk(errno.ENOSPC)):
        machine.first.increment_log_start_offset(6)
    machine = Machine(disk.killed(), is_new=False)
    assert (machine.first.offsets.log_start_offset, machine.first.offsets.log_end_offset) == (5, 20)
    machine.machine.stop()
    assert disk.inner.exists(f"{DATA_DIR}/{CLEAN_SHUTDOWN_FILE}")


def test_what_cannot_be_removed_at_a_start_does_not_keep_it_and_is_tried_again() -> None:
    disk = FaultyFileSystem(MemoryFileSystem(free_bytes=0))
    machine = Machine(disk)
    machine.manager.delete_log(PARTITION)
    disk = FaultyFileSystem(disk.killed().inner)
    disk.fail_where(lambda line: line.startswith("remove_tree "), number=errno.EPERM)
    again = LogMachine(disk, ids=SequentialIds(100))
    again.open()
    again.clock.advance(RETRY_MS)
    disk.mend()
    assert any("-delete" in path for path in disk.inner.contents())
    again.clock.advance(RETRY_MS)
    assert not any("-delete" in path for path in disk.inner.contents())
