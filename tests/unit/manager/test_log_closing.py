"""What a stop leaves where a log could not be closed."""

from __future__ import annotations

import errno

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.logs.log_machine import PARTITION, PARTITION_DIR, TOPIC_ID, LogMachine

BATCH = encode_batch([Record(0, 1000, b"k", b"v")])
CONFIG = LogConfig()
SECOND = TopicPartition("orders", 1)


def test_a_log_that_cannot_be_closed_leaves_no_marker() -> None:
    disk = FaultyFileSystem()
    machine = LogMachine(disk)
    log = machine.start()
    log.appender.append_as_leader(BATCH, 1)
    disk.fail_at(disk.operation_count + 1)
    with pytest.raises(DataDirectoryError, match="offline"):
        machine.stop()
    found = LogMachine(disk.killed())
    assert not found.open().was_clean


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC])
def test_a_log_that_cannot_be_closed_leaves_no_marker_on_a_disk_that_works(number: int) -> None:
    """Neither is a failed disk, so the directory stays in use, and the other log is closed."""

    def with_two_logs() -> tuple[FaultyFileSystem, LogMachine]:
        disk = FaultyFileSystem()
        machine = LogMachine(disk)
        manager = machine.open()
        manager.open_log(PARTITION, TOPIC_ID, CONFIG).appender.append_as_leader(BATCH, 1)
        manager.open_log(SECOND, TOPIC_ID, CONFIG).appender.append_as_leader(BATCH, 1)
        return disk, machine

    disk, machine = with_two_logs()
    first = disk.operation_count + 1
    machine.stop()
    at = disk.trace.index(f"sync {PARTITION_DIR}/{0:020d}.log", first - 1) + 1
    disk, machine = with_two_logs()
    disk.fail_at(at, number=number)
    with pytest.raises(DataDirectoryError):
        machine.stop()
    manager = LogMachine(disk.killed()).open()
    assert not manager.was_clean
    assert not manager.open_log(PARTITION, TOPIC_ID, CONFIG).recovery_report.was_clean
