"""A log file that a broker's directory shares is never changed, whatever is done to the log."""

from __future__ import annotations

import pytest

from stratalog.log.log_config import LogConfig
from stratalog.segment.own_file import own_file
from stratalog.testing.faulty_filesystem import ALL_SURVIVALS, FaultyFileSystem, SimulatedCrash
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.log_ledger import LogLedger
from tests.support.logs.log_machine import DATA_DIR, PARTITION_DIR, LogMachine

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


def test_a_shared_file_becomes_a_copy_and_one_that_is_not_shared_stays() -> None:
    disk = shared_disk()
    own_file(disk, "/d/a.log")
    assert disk.link_count(f"{BROKER}/a.log") == disk.link_count("/d/a.log") == 1
    assert disk.list_directory("/d") == ["a.log"]
    own = disk.open_append("/d/a.log")
    own_file(disk, "/d/a.log")
    own.truncate(5)
    assert disk.file_size("/d/a.log") == 5
    assert disk.read_file(f"{BROKER}/a.log") == BYTES
    own_file(disk, "/d/missing.log")
    assert disk.list_directory("/d") == ["a.log"]


def test_a_crash_at_any_operation_leaves_the_shared_file_or_the_copy() -> None:
    whole = shared_disk()
    own_file(whole, "/d/a.log")
    for operation in range(1, whole.operation_count + 1):
        for part in (0.0, 0.5, 1.0):
            disk = shared_disk()
            disk.crash_at(operation, part=part)
            with pytest.raises(SimulatedCrash):
                own_file(disk, "/d/a.log")
            for survival in ALL_SURVIVALS:
                found = disk.reopened(survival)
                assert found.read_file("/d/a.log") == found.read_file(f"{BROKER}/a.log") == BYTES
                own_file(found, "/d/a.log")
    # What is changed in the copy, and synced, is still there when the machine dies at once.
    own = whole.open_append("/d/a.log")
    own.append([b"more"])
    own.sync()
    assert whole.reopened(Survival(Kept.NONE, Kept.NONE)).read_file("/d/a.log") == BYTES + b"more"


def imported() -> tuple[LogMachine, LogLedger, dict[str, bytes]]:
    """A closed log all of whose batches are shared with a broker's directory, and what that holds."""
    disk = MemoryFileSystem()
    machine = LogMachine(disk, CONFIG)
    log, ledger = machine.start(), LogLedger()
    for _ in range(20):
        ledger.append(log, [ledger.batch(3)])
    machine.stop()
    ledger.durable_end_offset = log.offsets.log_end_offset
    disk.make_directories(BROKER)
    names = [name for name in disk.list_directory(PARTITION_DIR) if name.endswith(".log")]
    assert len(names) > 3
    for name in names:
        disk.link(f"{PARTITION_DIR}/{name}", f"{BROKER}/{name}")
    return machine, ledger, broker_files(disk)


def broker_files(disk: MemoryFileSystem) -> dict[str, bytes]:
    return {name: disk.read_file(f"{BROKER}/{name}") for name in disk.list_directory(BROKER)}


def test_truncations_appends_and_recoveries_leave_a_brokers_files_alone() -> None:
    machine, ledger, files = imported()
    disk = machine.disk
    assert isinstance(disk, MemoryFileSystem)
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
    machine, ledger, _ = imported()
    disk = machine.disk
    assert isinstance(disk, MemoryFileSystem)
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
    machine, ledger, files = imported()
    disk = machine.disk
    assert isinstance(disk, MemoryFileSystem)
    disk.unlink(f"{DATA_DIR}/recovery-point-offset-checkpoint")
    disk.unlink(f"{DATA_DIR}/.kafka_cleanshutdown")
    ledger.verify(machine.start(), after_crash=True)
    assert broker_files(disk) == files
    assert {disk.link_count(f"{BROKER}/{name}") for name in files} == {2}
