"""A log file that a broker's directory shares is never changed, whatever is done to the log."""

from __future__ import annotations

from stratalog.base.filesystem import FileSystem
from stratalog.log.log_config import LogConfig
from stratalog.segment.open_files import OpenFiles
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.crash_moments import NOTHING_KEPT
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.filled_log import FilledLog, path_of
from tests.support.logs.log_machine import DATA_DIR, PARTITION_DIR

CONFIG = LogConfig(segment_bytes=1024, index_interval_bytes=100)
BROKER = "/broker"
BYTES = bytes(range(256)) * 5


def shared_disk() -> FaultyFileSystem:
    """A file with two names, and what an attempt left that was cut off."""
    disk = MemoryFileSystem()
    for directory in (BROKER, "/d"):
        disk.make_directories(directory)
    for path, data in ((f"{BROKER}/a.log", BYTES), ("/d/a.log.cleaned", b"a part of it")):
        file = disk.open_append(path)
        file.append([data])
        file.sync()
    disk.link(f"{BROKER}/a.log", "/d/a.log")
    for directory in ("/", BROKER, "/d"):
        disk.sync_directory(directory)
    return FaultyFileSystem(disk)


def lend(disk: FileSystem, path: str) -> None:
    """Lend the file for writing, which ends its sharing."""
    files = OpenFiles(disk)
    with files.use(path, for_writing=True):
        pass
    files.close()


def test_a_shared_file_becomes_a_copy_and_one_that_is_not_shared_stays() -> None:
    disk = shared_disk()
    lend(disk, "/d/a.log")
    assert disk.link_count(f"{BROKER}/a.log") == disk.link_count("/d/a.log") == 1
    assert disk.list_directory("/d") == ["a.log"]
    own = disk.open_append("/d/a.log")
    lend(disk, "/d/a.log")
    own.truncate(5)
    assert disk.file_size("/d/a.log") == 5
    assert disk.read_file(f"{BROKER}/a.log") == BYTES
    lend(disk, "/d/new.log")
    assert disk.list_directory("/d") == ["a.log", "new.log"]


class Owning:
    """A directory with a shared file that is about to become its own."""

    def __init__(self) -> None:
        self.disk = shared_disk()

    def own(self) -> None:
        lend(self.disk, "/d/a.log")


def test_a_crash_at_any_operation_leaves_the_shared_file_or_the_copy() -> None:
    def verify(death: Death[Owning]) -> None:
        for found in death.disks():
            assert found.read_file("/d/a.log") == found.read_file(f"{BROKER}/a.log") == BYTES
            lend(found, "/d/a.log")

    sweep = CrashSweep(Owning, Owning.own)
    sweep.at_deaths(verify)
    # What is changed in the copy, and synced, is still there when the machine dies at once.
    own = sweep.whole.disk.open_append("/d/a.log")
    own.append([b"more"])
    own.sync()
    assert sweep.whole.disk.reopened(NOTHING_KEPT).read_file("/d/a.log") == BYTES + b"more"


def imported() -> tuple[FilledLog, dict[str, bytes]]:
    """A closed log all of whose batches are shared with a broker's directory, and what that holds."""
    filled = FilledLog(20, CONFIG)
    paths = [path_of(base_offset) for base_offset in filled.bases]
    assert len(paths) > 3
    disk = filled.stopped()
    disk.make_directories(BROKER)
    for path in paths:
        disk.link(path, path.replace(PARTITION_DIR, BROKER))
    return filled, broker_files(disk)


def broker_files(disk: MemoryFileSystem) -> dict[str, bytes]:
    return {name: disk.read_file(f"{BROKER}/{name}") for name in disk.list_directory(BROKER)}


def test_truncations_appends_and_recoveries_leave_a_brokers_files_alone() -> None:
    filled, files = imported()
    machine, ledger, disk = filled.machine, filled.ledger, filled.disk
    log = machine.start()
    ledger.append(log, [ledger.batch(2)])
    assert broker_files(disk) == files, "an append changed them"
    ledger.truncate_to(log, log.reader.segments()[2].base_offset + 4)
    assert broker_files(disk) == files, "a truncation changed them"
    for _ in range(6):
        ledger.append(log, [ledger.batch(3)])
    ledger.flush(log)
    machine.kill()
    log = machine.start()
    ledger.verify(log, after_crash=True)
    ledger.truncate_to(log, 4)
    ledger.append(log, [ledger.batch(5)])
    ledger.verify(log, after_crash=False)
    assert broker_files(disk) == files


def test_a_recovery_that_cuts_a_shared_file_cuts_its_own_copy() -> None:
    filled, _ = imported()
    machine, ledger, disk = filled.machine, filled.ledger, filled.disk
    # Nothing is known to be durable, and the second segment has a torn tail: the broker was killed.
    disk.unlink(f"{DATA_DIR}/recovery-point-offset-checkpoint")
    disk.unlink(f"{DATA_DIR}/.kafka_cleanshutdown")
    second = sorted(broker_files(disk))[1]
    file = disk.open_append(f"{BROKER}/{second}")
    file.truncate(file.size() - 7)
    files = broker_files(disk)
    log = machine.start()
    assert log.recovery_report.truncated_bytes > 0
    assert log.offsets.log_end_offset < ledger.durable_end_offset
    ledger.durable_end_offset = 0
    ledger.verify(log, after_crash=True)
    ledger.append(log, [ledger.batch(5)])
    ledger.verify(log, after_crash=False)
    assert broker_files(disk) == files


def test_what_is_only_read_and_synced_stays_shared() -> None:
    filled, files = imported()
    machine, ledger, disk = filled.machine, filled.ledger, filled.disk
    disk.unlink(f"{DATA_DIR}/recovery-point-offset-checkpoint")
    disk.unlink(f"{DATA_DIR}/.kafka_cleanshutdown")
    ledger.verify(machine.start(), after_crash=True)
    assert broker_files(disk) == files
    assert {disk.link_count(f"{BROKER}/{name}") for name in files} == {2}
