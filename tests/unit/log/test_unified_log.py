"""Appends, rolls, reads and durability of one log."""

from __future__ import annotations

import errno

import pytest

from stratalog.base.errors import (
    CorruptRecordError,
    DataDirectoryError,
    InvalidRecordError,
    InvalidTimestampError,
    LogStoreError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import LogConfig
from stratalog.record.builder import encode_batch
from stratalog.record.header import (
    TimestampType,
    parse_header,
)
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.manual_clock import DEFAULT_NOW_MS
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.decoded_records import decode_all
from tests.support.logs.crash_sweep import CrashSweep, Failure
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine
from tests.support.logs.overwriting import flip
from tests.support.logs.plain_batches import batch

SMALL = LogConfig(segment_bytes=1024, index_interval_bytes=100)


def test_a_group_is_one_write_and_each_request_stands_for_itself() -> None:
    disk = FaultyFileSystem()
    log = LogMachine(disk).start()
    log.appender.append_as_leader(batch(), 1)
    before = disk.operation_count
    outcomes = log.appender.append_group([batch(2), batch()[:-1], batch(3) + batch(1), b""], 4)
    assert disk.trace[before:].count(f"append {PARTITION_DIR}/{0:020d}.log") == 1
    assert outcomes[0] == AppendInfo(1, 2, len(batch(2)))
    assert isinstance(outcomes[1], InvalidRecordError)
    assert outcomes[2] == AppendInfo(3, 6, len(batch(3)) + len(batch(1)))
    assert isinstance(outcomes[3], LogStoreError)
    assert [record.offset for record in read_local(log)] == list(range(7))
    position = log.reader.segments()[0].size_bytes - len(batch(1))
    header = parse_header(disk.read_file(f"{PARTITION_DIR}/{0:020d}.log"), position)
    assert (header.base_offset, header.leader_epoch) == (6, 4)


def test_a_write_that_cannot_be_taken_back_takes_the_log_offline_until_it_is_recovered() -> None:
    disk = FaultyFileSystem()
    machine = LogMachine(disk)
    log = machine.start()
    log.appender.append_as_leader(batch(), 1)
    log.flusher.flush()
    disk.fail_at(disk.operation_count + 2, number=errno.ENOSPC, part=0.5)
    disk.fail_at(disk.operation_count + 3, number=errno.EPERM)
    with pytest.raises(DataDirectoryError) as refused:
        log.appender.append_as_leader(batch(), 1)
    assert refused.value.fields.keys() == {"path", "reason"}
    assert refused.value.fields["path"] == log.local_log.segments.active.path
    assert log.availability.is_offline
    for change in (lambda: log.appender.append_as_leader(batch(), 1), log.flusher.flush, log.roll):
        with pytest.raises(DataDirectoryError):
            change()
        assert log.availability.is_offline
    assert len(read_local(log)) == 1
    found = LogMachine(disk.killed()).start()
    assert found.offsets.log_end_offset == 1
    assert found.recovery_report.truncated_bytes > 0


def test_the_high_watermark_follows_the_durability() -> None:
    for level, seen_at_once in ((Durability.OS, 3), (Durability.DISK, 0)):
        log = LogMachine(config=LogConfig(min_durability=level)).start()
        log.appender.append_as_leader(batch(3), 1)
        assert log.offsets.high_watermark == log.offsets.last_stable_offset == seen_at_once
        assert len(decode_all(log.reader.read(0, 1000).batches)) == seen_at_once
        assert len(decode_all(log.reader.read(0, 1000, Isolation.LOG_END).batches)) == 3
        assert log.flusher.flush() == 3
        assert log.offsets.high_watermark == log.offsets.recovery_point == 3


def test_append_time_is_the_clocks() -> None:
    machine = LogMachine(config=LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME))
    log = machine.start()
    log.appender.append_as_leader(batch(2), 1)
    now_ms = machine.clock.now_ms()
    assert [record.timestamp_ms for record in read_local(log)] == [now_ms, now_ms]
    assert log.reader.offset_for_timestamp(now_ms) == (now_ms, 0)
    assert log.reader.max_timestamp() == (now_ms, 0)


def test_a_closed_log_refuses_everything() -> None:
    machine = LogMachine()
    log = machine.start()
    log.appender.append_as_leader(batch(), 1)
    machine.stop()
    for call in (
        lambda: log.appender.append_as_leader(batch(), 1),
        log.flusher.flush,
        log.roll,
        lambda: log.reader.read(0, 10),
        lambda: log.reader.offset_for_timestamp(0),
    ):
        with pytest.raises(UnknownTopicOrPartitionError):
            call()
    log.close()


def test_a_batch_whose_records_are_damaged_is_known_by_its_header() -> None:
    disk = MemoryFileSystem()
    log = LogMachine(disk, SMALL).start()
    log.appender.append_as_follower(batch(2))
    log.appender.append_as_follower(batch(2, base_offset=10))
    log.roll()
    found = [log.reader.header_at(offset) for offset in (0, 1, 5, 11, 12)]
    assert [header and header.base_offset for header in found] == [0, 0, 10, 10, None]
    for position, is_readable in ((70, True), (16, False)):
        flip(disk, f"{PARTITION_DIR}/{0:020d}.log", position)
        if is_readable:
            assert log.reader.header_at(1) == found[1]
        else:
            with pytest.raises(CorruptRecordError):
                log.reader.header_at(1)
    with pytest.raises(OffsetOutOfRangeError):
        log.reader.header_at(13)


def test_a_missing_file_is_a_matter_for_a_human() -> None:
    disk = MemoryFileSystem()
    machine = LogMachine(disk, SMALL, max_open=1)
    log = machine.start()
    log.appender.append_group([batch(value_bytes=300)] * 8, 1)
    path = f"{PARTITION_DIR}/{0:020d}.log"
    disk.unlink(path)
    with pytest.raises(DataDirectoryError) as refused:
        log.reader.read(0, 1000)
    assert refused.value.fields["path"] == path


class Filled:
    """A log with eight batches of three records, about to begin anew at 500. One file may be open."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.log = LogMachine(self.disk, SMALL, max_open=1).start()
        for _ in range(8):
            self.log.appender.append_as_leader(batch(3, value_bytes=100), 1)
        self.batches = {offset: self.log.reader.read(offset, 1) for offset in range(0, 24, 3)}

    def begin_anew(self) -> None:
        self.log.truncation.truncate_fully_and_start_at(500)


def test_a_log_that_could_not_begin_anew_serves_its_records_or_says_that_it_is_offline() -> None:
    """A refusal is the log's failure and not its disk's: reads go on where the files are."""
    refused_count = 0

    def verify(failure: Failure[Filled]) -> None:
        nonlocal refused_count
        if failure.error is None:
            return
        log = failure.subject.log
        for offset, expected in failure.subject.batches.items():
            try:
                assert log.reader.read(offset, 1, Isolation.LOG_END) == expected
            except (DataDirectoryError, OffsetOutOfRangeError):
                assert log.availability.is_offline
                refused_count += 1

    CrashSweep(Filled, Filled.begin_anew).at_failures(verify, errors=[errno.EPERM])
    assert refused_count > 0


def test_a_request_is_valid_by_the_configuration_that_it_is_written_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The configuration is altered between the validation, which takes no lock, and the write."""
    config = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    machine = LogMachine(config=config)
    log = machine.start()
    altered = LogConfig(message_timestamp_before_max_ms=1000)
    asked: list[int] = []

    def now_ms() -> int:
        asked.append(DEFAULT_NOW_MS)
        if len(asked) == 1:
            log.reconfigure(altered)
        return DEFAULT_NOW_MS

    monkeypatch.setattr(machine.clock, "now_ms", now_ms)
    old = encode_batch([Record(0, DEFAULT_NOW_MS - 5000, None, b"v")])
    with pytest.raises(InvalidTimestampError):
        log.appender.append_as_leader(old, 1)
    assert log.offsets.log_end_offset == 0


def test_flushing_again_costs_nothing() -> None:
    disk = FaultyFileSystem()
    log = LogMachine(disk, SMALL).start()
    log.appender.append_group([batch(value_bytes=300)] * 8, 1)
    log.flusher.flush()
    synced = disk.operation_count
    log.flusher.flush()
    assert disk.operation_count == synced
