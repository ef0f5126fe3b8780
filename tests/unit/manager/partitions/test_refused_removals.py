"""A disk refuses while segments and partitions are removed: the log goes on, whole, and the next try removes
the rest."""

from __future__ import annotations

import errno
import os

import pytest

from stratalog.base.errors import DataDirectoryError, OffsetOutOfRangeError
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.manifest import read_manifest
from stratalog.manager.directories.spare_space import SPARE_DELETION_FILE
from stratalog.manager.log_manager import LogManager
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.disk_refusals import refused_by_disk
from tests.support.logs.crash_moments import NOTHING_KEPT
from tests.support.logs.crash_sweep import CrashSweep, Death, Failure
from tests.support.logs.log_machine import DATA_DIR, PARTITION, PARTITION_DIR, TOPIC_ID, LogMachine

KEEP = LogConfig(remote_storage_enable=False, retention_ms=-1, segment_bytes=1024)
DROP = LogConfig(remote_storage_enable=False, retention_ms=-1, segment_bytes=1024, retention_bytes=0)
COUNT = 12
SPARE_PATH = f"{DATA_DIR}/{SPARE_DELETION_FILE}"


def value_of(offset: int) -> bytes:
    return b"%03d" % offset * 100


def append(log: UnifiedLog, offset: int) -> None:
    info = log.appender.append_as_leader(encode_batch([Record(0, 1000, b"key", value_of(offset))]), 1)
    assert info.base_offset == offset


def started(disk: FaultyFileSystem, *, is_new: bool = True) -> tuple[LogManager, UnifiedLog]:
    """With twelve records in six segments, the last of which is the active one."""
    manager = LogMachine(disk, ids=SequentialIds(1 if is_new else 100)).open()
    log = manager.open_log(PARTITION, TOPIC_ID, KEEP)
    if is_new:
        for offset in range(COUNT):
            append(log, offset)
        log.flusher.flush()
        assert len(log.local_log.segments) > 4
    return manager, log


def require_whole(log: UnifiedLog, end_offset: int = COUNT) -> None:
    """Every record from the log's start to its end is read as it was written."""
    log.check()
    assert log.offsets.log_end_offset == end_offset
    assert log.offsets.local_log_start_offset == max(
        log.offsets.log_start_offset, log.local_log.segments.start_offset
    )
    offset = log.offsets.log_start_offset
    while offset < end_offset:
        found = log.reader.read(offset, 1, Isolation.LOG_END)
        assert value_of(offset) in found.batches
        assert found.next_offset == offset + 1
        offset = found.next_offset
    if log.offsets.log_start_offset:
        with pytest.raises(OffsetOutOfRangeError):
            log.reader.read(log.offsets.log_start_offset - 1, 1)


def names(disk: FaultyFileSystem) -> list[str]:
    return disk.inner.list_directory(PARTITION_DIR)


def make_immutable(disk: FaultyFileSystem, *suffixes: str) -> None:
    """Refuse to rename and to unlink files whose names end so, as if an operator had made them immutable."""

    def is_refused(line: str) -> bool:
        kind, path, *_ = line.split(" ")
        return kind in ("rename", "unlink") and path.endswith(suffixes)

    disk.fail_where(is_refused, number=errno.EPERM)


@pytest.mark.parametrize("room_bytes", [0, 1, 3 * 4096])
def test_retention_frees_a_disk_that_has_no_room_for_names(room_bytes: int) -> None:
    """Some files are renamed then, and the others unlinked."""
    disk = FullFileSystem(MemoryFileSystem(can_reserve=False))
    _, log = started(disk)
    log.reconfigure(DROP)
    disk.fill(DATA_DIR)
    disk.names_are_full, disk.room_bytes = True, room_bytes
    count = len(log.local_log.segments) - 1
    assert log.retention.delete_old_segments() >= count
    assert not log.availability.is_offline
    assert disk.room_bytes > 0
    live = [name for name in names(disk) if name.endswith(".log")]
    assert len(live) == len(log.local_log.segments)
    require_whole(log)
    require_whole(started(disk.killed(), is_new=False)[1])
    disk.fill(None)
    append(log, COUNT)
    require_whole(log, COUNT + 1)


class StartedLog:
    """A log of twelve records, as `started` makes it."""

    def __init__(self, config: LogConfig = KEEP) -> None:
        self.disk = FaultyFileSystem()
        _, self.log = started(self.disk)
        self.log.reconfigure(config)
        self.segments = self.log.local_log.segments

    def drop(self) -> None:
        self.log.retention.delete_old_segments()

    def delete(self) -> None:
        self.log.increment_log_start_offset(5)


def test_whatever_is_refused_while_segments_are_dropped_the_log_goes_on() -> None:
    """A failed sync takes the log offline. After any other failure the log is online and whole, without the
    segments that could be dropped."""
    refused: set[str] = set()

    def verify(failure: Failure[StartedLog]) -> None:
        disk, log = failure.subject.disk, failure.subject.log
        operation = disk.trace[failure.operation - 1].split(" ")[0]
        refused.add(operation)
        segments = (*failure.subject.segments, *log.local_log.segments)
        assert log.offsets.log_start_offset in {segment.base_offset for segment in segments}
        for found in (disk.killed(), disk.reopened(NOTHING_KEPT)):
            require_whole(started(found, is_new=False)[1])
        if log.availability.is_offline:
            assert operation in ("open_append", "sync", "close", "sync_directory"), operation
            return
        require_whole(log)
        log.retention.delete_old_segments()
        assert (log.offsets.log_start_offset, len(log.local_log.segments)) == (COUNT, 1)
        append(log, COUNT)
        require_whole(log, COUNT + 1)

    sweep = CrashSweep(lambda: StartedLog(DROP), StartedLog.drop)
    sweep.at_failures(verify, errors=(errno.ENOSPC, errno.EDQUOT, errno.EPERM, errno.EMFILE))
    assert {"rename", "sync_directory"} <= refused


def test_a_segment_that_must_stay_keeps_itself_and_what_is_behind_it() -> None:
    disk = FaultyFileSystem()
    _, log = started(disk)
    log.reconfigure(DROP)
    segments = log.local_log.segments
    make_immutable(disk, os.path.basename(segments[2].path))
    assert log.retention.delete_old_segments() == 2
    assert log.local_log.segments[0] is segments[2]
    assert log.offsets.log_start_offset == segments[2].base_offset
    require_whole(log)
    with pytest.RaisesExc(DataDirectoryError, check=refused_by_disk(errno.EPERM)):
        log.retention.delete_old_segments()
    assert not log.availability.is_offline
    require_whole(log)
    append(log, COUNT)
    killed = disk.killed()
    make_immutable(killed, os.path.basename(segments[2].path))
    require_whole(started(killed, is_new=False)[1], COUNT + 1)
    disk.mend()
    log.retention.delete_old_segments()
    assert log.offsets.log_start_offset == log.offsets.log_end_offset == COUNT + 1


def test_without_a_descriptor_records_are_not_deleted_and_the_log_goes_on() -> None:
    def verify(failure: Failure[StartedLog]) -> None:
        log = failure.subject.log
        if failure.error is not None:
            assert log.offsets.log_start_offset == 0
        assert not log.availability.is_offline
        require_whole(log)
        log.increment_log_start_offset(5)
        require_whole(log)

    sweep = CrashSweep(StartedLog, StartedLog.delete)
    sweep.at_failures(verify, errors=(errno.EMFILE, errno.ENFILE, errno.EACCES))


class UnflushedLog:
    """A log of twelve records that are not flushed."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        manager = LogMachine(self.disk, ids=SequentialIds()).open()
        self.log = manager.open_log(PARTITION, TOPIC_ID, KEEP)
        for offset in range(COUNT):
            append(self.log, offset)

    def flush(self) -> None:
        self.log.flusher.flush()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOSPC])
def test_a_flush_that_opens_no_file_is_made_up_for_by_the_next_one(number: int) -> None:
    """One that failed at a sync is not: it takes the log offline."""

    def verify(failure: Failure[UnflushedLog]) -> None:
        disk, log = failure.subject.disk, failure.subject.log
        assert log.availability.is_offline == (failure.error is not None and number == errno.ENOSPC)
        if log.availability.is_offline:
            return
        assert log.flusher.flush() == COUNT
        durable = disk.reopened(NOTHING_KEPT)
        for name in names(disk):
            if name.endswith(".snapshot"):
                path = f"{PARTITION_DIR}/{name}"
                assert durable.inner.read_file(path) == disk.inner.read_file(path)
        require_whole(started(durable, is_new=False)[1])

    CrashSweep(UnflushedLog, UnflushedLog.flush).at_failures(verify, errors=(number,))


@pytest.mark.parametrize("can_reserve", [True, False])
def test_a_partition_is_deleted_where_there_is_no_room_for_its_other_name(can_reserve: bool) -> None:
    """By the space that is kept aside; without that, by what the partition has."""
    disk = FullFileSystem(MemoryFileSystem(can_reserve=can_reserve))
    machine = LogMachine(disk, ids=SequentialIds())
    manager = machine.open()
    log = manager.open_log(PARTITION, TOPIC_ID, KEEP)
    for offset in range(COUNT):
        append(log, offset)
    manager.tasks.keep_spare_space()
    assert (disk.inner.exists(SPARE_PATH) and disk.inner.spare_bytes(SPARE_PATH) > 0) == can_reserve
    disk.fill(DATA_DIR)
    disk.names_are_full = True
    manager.delete_log(PARTITION)
    assert PARTITION not in read_manifest(disk, DATA_DIR).partitions
    left = [path for path in disk.inner.list_directory(DATA_DIR) if path.endswith("-delete")]
    segments = [name for path in left for name in disk.inner.list_directory(f"{DATA_DIR}/{path}")]
    # Without room for a name it is removed where it is.
    assert any(name.endswith(".log") for name in segments) == can_reserve
    machine.clock.advance(1000)
    assert not [path for path in disk.inner.list_directory(DATA_DIR) if path.startswith("orders")]
    disk.fill(None)
    log = manager.open_log(PARTITION, TOPIC_ID, KEEP)
    assert log.offsets.log_end_offset == 0


def nameless(inner: MemoryFileSystem | None = None) -> FaultyFileSystem:
    """A disk that refuses every other name for the partition's directory, whatever is removed."""
    disk = FaultyFileSystem(inner)
    disk.fail_where(lambda line: line.startswith(f"rename {PARTITION_DIR} "), number=errno.ENOSPC)
    return disk


def test_a_partition_that_gets_no_other_name_at_all_is_removed_where_it_is() -> None:
    disk = nameless()
    manager, log = started(disk)
    manager.delete_log(PARTITION)
    assert log.availability.is_closed
    assert not [name for name in disk.inner.list_directory(DATA_DIR) if name.startswith("orders")]
    log = manager.open_log(PARTITION, TOPIC_ID, KEEP)
    append(log, 0)
    require_whole(log, 1)


def test_what_is_set_aside_for_a_human_is_never_removed_for_room() -> None:
    disk = nameless()
    manager, _ = started(disk)
    with pytest.RaisesExc(DataDirectoryError, check=refused_by_disk(errno.ENOSPC)):
        manager.set_aside(PARTITION, "fenced")
    require_whole(started(disk.killed(), is_new=False)[1])


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_file_that_must_stay_is_logged_and_keeps_nothing(
    suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyFileSystem()
    _, log = started(disk)
    log.reconfigure(DROP)
    left = os.path.basename(log.local_log.segments[1].path).replace(".log", suffix)
    make_immutable(disk, left)
    log.retention.delete_old_segments()
    assert (log.offsets.log_start_offset, len(log.local_log.segments)) == (COUNT, 1)
    assert "orders-0: a file of a deleted segment cannot be removed" in caplog.text
    assert [name for name in names(disk) if name.endswith(suffix)] == [left]
    append(log, COUNT)
    require_whole(log, COUNT + 1)
    log.flusher.flush()
    caplog.clear()
    disk = disk.killed()
    make_immutable(disk, left)
    require_whole(started(disk, is_new=False)[1], COUNT + 1)
    assert left in names(disk)
    assert "a file of a deleted segment cannot be removed" in caplog.text
    disk = disk.killed()
    require_whole(started(disk, is_new=False)[1], COUNT + 1)
    assert left not in names(disk)


def test_a_drop_that_could_not_be_made_durable_is_so_with_the_next_flush() -> None:
    disk = FaultyFileSystem()
    _, log = started(disk)
    log.increment_log_start_offset(5)
    first_operation = disk.operation_count
    count = log.retention.delete_old_segments()
    assert count == 2
    [sync] = [at for at, found in enumerate(disk.trace) if at > first_operation and "sync_directory" in found]
    disk = FaultyFileSystem()
    _, log = started(disk)
    log.increment_log_start_offset(5)
    disk.fail_at(sync + 1, number=errno.EMFILE)
    assert log.retention.delete_old_segments() == count
    assert not log.availability.is_offline
    require_whole(log)
    assert names(disk.reopened(NOTHING_KEPT)) != names(disk)
    log.flusher.flush()
    assert names(disk.reopened(NOTHING_KEPT)) == names(disk)


def test_a_crash_while_it_is_removed_in_place_leaves_none_of_it() -> None:
    class Removing:
        def __init__(self) -> None:
            self.disk = nameless()
            self.manager, _ = started(self.disk)

    def verify(death: Death[Removing]) -> None:
        for disk in death.disks():
            manager = LogMachine(nameless(disk.inner), ids=SequentialIds(100)).open()
            is_listed = PARTITION in read_manifest(disk, DATA_DIR).partitions
            assert disk.inner.exists(PARTITION_DIR) == is_listed
            outcomes.add(is_listed)
            if is_listed:
                require_whole(manager.open_log(PARTITION, TOPIC_ID, KEEP))

    outcomes = set[bool]()
    CrashSweep(Removing, lambda one: one.manager.delete_log(PARTITION)).at_deaths(verify)
    assert outcomes == {False, True}
