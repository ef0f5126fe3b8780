"""Work beside the opening of a log, and the remains of an opening that failed."""

from __future__ import annotations

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.logs.log_machine import PARTITION, TOPIC_ID, LogMachine

CONFIG = LogConfig(segment_bytes=1024, remote_storage_enable=False, retention_ms=-1)
SEGMENT_COUNT = 3
HOUR_MS = 3_600_000


def killed_machine(disk: FaultyFileSystem, *partitions: TopicPartition) -> LogMachine:
    """Logs of some segments, each with a producer. They were not closed."""
    machine = LogMachine(disk, CONFIG)
    manager = machine.open()
    for partition in partitions:
        log = manager.open_log(partition, TOPIC_ID, CONFIG)
        for number in range(SEGMENT_COUNT):
            records = [Record(0, machine.clock.now_ms(), b"k", bytes(600))]
            log.appender.append_as_leader(encode_batch(records, producer=BatchProducer(9, 0, number)), 1)
    disk.inner.release_locks()
    after = LogMachine(disk, CONFIG, producer_id_expiration_ms=24 * HOUR_MS)
    after.clock = machine.clock
    return after


def opened(manager: LogManager, partition: TopicPartition = PARTITION) -> None:
    manager.open_log(partition, TOPIC_ID, CONFIG)


def test_an_expiry_of_producers_that_is_altered_while_a_log_opens_holds_for_that_log() -> None:
    """At every operation of the opening: the log is in no list of open ones then."""
    disk = HookedDisk()
    manager = killed_machine(disk, PARTITION).open()
    begin_count = disk.operation_count
    opened(manager)
    count = disk.operation_count - begin_count
    assert count > 10
    for number in range(1, count + 1):
        disk = HookedDisk()
        machine = killed_machine(disk, PARTITION)
        manager = machine.open()
        at, altered_at = disk.operation_count + number, list[int]()

        def alter(
            _name: str,
            _path: str,
            at: int = at,
            disk: HookedDisk = disk,
            altered_at: list[int] = altered_at,
            manager: LogManager = manager,
        ) -> None:
            if disk.operation_count == at:
                altered_at.append(at)
                manager.set_producer_id_expiration_ms(HOUR_MS)

        disk.before = alter
        opened(manager)
        assert altered_at == [at]
        log = manager.log(PARTITION)
        assert [entry.producer_id for entry in log.producers()] == [9]
        machine.clock.advance(2 * HOUR_MS)
        log.remove_expired_producers()
        assert log.producers() == (), f"altered before {disk.trace[at - 1]}"


def test_a_log_whose_opening_was_given_up_is_closed_when_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At every operation of the opening: the last one may be the one that took so long."""
    closed: list[TopicPartition] = []
    real_close = UnifiedLog.close

    def close(log: UnifiedLog, *, flush: bool = True) -> None:
        assert not flush
        closed.append(log.topic_partition)
        real_close(log, flush=flush)

    monkeypatch.setattr(UnifiedLog, "close", close)
    disk = HookedDisk()
    manager = killed_machine(disk, PARTITION).open()
    begin_count = disk.operation_count
    opened(manager)
    for number in range(1, disk.operation_count - begin_count + 1):
        disk = HookedDisk()
        manager = killed_machine(disk, PARTITION).open()
        at = disk.operation_count + number

        def leave(
            _name: str, _path: str, at: int = at, disk: HookedDisk = disk, manager: LogManager = manager
        ) -> None:
            if disk.operation_count == at:
                manager.leave(PARTITION)

        disk.before = leave
        closed.clear()
        with pytest.raises(DataDirectoryError):
            opened(manager)
        assert closed == [PARTITION]
        assert manager.logs() == ()
        with pytest.raises(DataDirectoryError):
            opened(manager)
        with pytest.raises(DataDirectoryError):
            manager.delete_log(PARTITION)
        manager.end_left(PARTITION)
        opened(manager)
        assert [log.topic_partition for log in manager.logs()] == [PARTITION]
