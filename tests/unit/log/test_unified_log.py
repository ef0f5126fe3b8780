"""Appends, rolls, reads and durability of one log."""

from __future__ import annotations

import errno

import pytest
from crc32c import crc32c

from stratalog.base.errors import (
    CorruptRecordError,
    DataDirectoryError,
    LogStoreError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import Durability
from stratalog.log.append.append_info import AppendInfo
from stratalog.log.log_config import LogConfig
from stratalog.log.read.fetch_data import FetchData
from stratalog.log.read.isolation import Isolation
from stratalog.record.batch import decode_all
from stratalog.record.builder import encode_batch
from stratalog.record.header import (
    ATTRIBUTES_POSITION,
    CONTROL_BIT,
    HEADER_SIZE,
    TimestampType,
    parse_header,
)
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine

SMALL = LogConfig(segment_bytes=1024, index_interval_bytes=100)


def batch(count: int = 1, timestamp_ms: int = 1000, value_bytes: int = 20, base_offset: int = 0) -> bytes:
    record = Record(0, timestamp_ms, b"key", b"v" * value_bytes)
    return encode_batch([record] * count, base_offset=base_offset)


def flip(disk: MemoryFileSystem, path: str, position: int) -> None:
    """Damage a byte behind everybody's back."""
    data = bytearray(disk.read_file(path))
    data[position] ^= 1
    file = disk.open_append(path)
    file.truncate(0)
    file.append([data])


def test_a_group_is_one_write_and_each_request_stands_for_itself() -> None:
    disk = FaultyFileSystem()
    log = LogMachine(disk).start()
    log.appender.append_as_leader(batch(), 1)
    before = disk.operation_count
    outcomes = log.appender.append_group([batch(2), batch()[:-1], batch(3) + batch(1), b""], 4)
    assert disk.trace[before:].count(f"append {PARTITION_DIR}/{0:020d}.log") == 1
    assert outcomes[0] == AppendInfo(1, 2, len(batch(2)))
    assert isinstance(outcomes[1], CorruptRecordError)
    assert outcomes[2] == AppendInfo(3, 6, len(batch(3)) + len(batch(1)))
    assert isinstance(outcomes[3], LogStoreError)
    assert [record.offset for record in read_local(log)] == list(range(7))
    position = log.reader.segments()[0].size_bytes - len(batch(1))
    header = parse_header(disk.read_file(f"{PARTITION_DIR}/{0:020d}.log"), position)
    assert (header.base_offset, header.leader_epoch) == (6, 4)


def test_a_group_that_outgrows_segments_is_one_write_for_each() -> None:
    log = LogMachine(config=SMALL).start()
    outcomes = log.appender.append_group([batch(1, value_bytes=300)] * 10, 1)
    assert [outcome.base_offset for outcome in outcomes if isinstance(outcome, AppendInfo)] == list(range(10))
    assert [info.base_offset for info in log.reader.segments()] == [0, 2, 4, 6, 8]
    assert all(info.size_bytes <= 1024 for info in log.reader.segments())
    log.check()


def test_a_failed_write_refuses_what_was_written_together_and_nothing_else() -> None:
    disk = FaultyFileSystem()
    log = LogMachine(disk, SMALL).start()
    log.appender.append_as_leader(batch(value_bytes=300), 1)
    # The group fills the segment and one more; the first write of the two fails.
    write = disk.operation_count + 2
    disk.fail_at(write, number=errno.ENOSPC, part=0.7)
    outcomes = log.appender.append_group([batch(1, value_bytes=300)] * 4, 1)
    assert disk.trace[write - 1].startswith("append ")
    failed = [isinstance(outcome, DataDirectoryError) for outcome in outcomes]
    assert failed[0]
    assert not log.availability.is_offline
    stored = [outcome for outcome in outcomes if isinstance(outcome, AppendInfo)]
    assert [info.base_offset for info in stored] == list(range(1, 1 + len(stored)))
    assert [record.offset for record in read_local(log)] == list(range(1 + len(stored)))
    log.check()


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
    assert len(read_local(log)) == 1
    found = LogMachine(disk.killed()).start()
    assert found.offsets.log_end_offset == 1
    assert found.recovery_report.truncated_bytes > 0


def test_a_failed_sync_takes_the_log_offline() -> None:
    disk = FaultyFileSystem()
    log = LogMachine(disk, LogConfig(min_durability=Durability.DISK)).start()
    log.appender.append_as_leader(batch(), 1)
    disk.fail_at(disk.operation_count + 1)
    with pytest.raises(DataDirectoryError):
        log.flusher.flush()
    assert log.availability.is_offline
    assert disk.trace[-1].startswith("sync ")
    assert log.offsets.high_watermark == log.offsets.recovery_point == 0
    with pytest.raises(DataDirectoryError):
        log.flusher.flush()


def test_the_high_watermark_follows_the_durability() -> None:
    for level, seen_at_once in ((Durability.OS, 3), (Durability.DISK, 0)):
        log = LogMachine(config=LogConfig(min_durability=level)).start()
        log.appender.append_as_leader(batch(3), 1)
        assert log.offsets.high_watermark == log.offsets.last_stable_offset == seen_at_once
        assert len(decode_all(log.reader.read(0, 1000).batches)) == seen_at_once
        assert len(decode_all(log.reader.read(0, 1000, Isolation.LOG_END).batches)) == 3
        assert log.flusher.flush() == 3
        assert log.offsets.high_watermark == log.offsets.recovery_point == 3


def test_flushing_again_costs_nothing() -> None:
    disk = FaultyFileSystem()
    log = LogMachine(disk, SMALL).start()
    log.appender.append_group([batch(value_bytes=300)] * 8, 1)
    log.flusher.flush()
    synced = disk.operation_count
    log.flusher.flush()
    assert disk.operation_count == synced


def test_segments_roll_by_size_time_index_and_distance() -> None:
    def bases(config: LogConfig, requests: list[bytes]) -> list[int]:
        log = LogMachine(config=config).start()
        for request in requests:
            log.appender.append_as_leader(request, 1)
        log.check()
        return [info.base_offset for info in log.reader.segments()]

    assert bases(LogConfig(segment_bytes=1024), [batch(value_bytes=400)] * 4) == [0, 2]
    timed = [batch(timestamp_ms=time) for time in (1000, 1400, 1501, 1502)]
    assert bases(LogConfig(segment_ms=500), timed) == [0, 2]
    indexed = LogConfig(segment_index_bytes=24, index_interval_bytes=0)
    assert bases(indexed, [batch(timestamp_ms=1000 + time) for time in range(5)]) == [0, 2, 4]

    log = LogMachine().start()
    log.appender.append_as_follower(batch(2))
    far = 2**31
    log.appender.append_as_follower(batch(base_offset=far - 1))
    log.appender.append_as_follower(batch(base_offset=far))
    assert [info.base_offset for info in log.reader.segments()] == [0, far]
    log.appender.append_as_follower(batch(base_offset=3 * far))
    assert [info.base_offset for info in log.reader.segments()] == [0, far, 3 * far]
    assert [record.offset for record in read_local(log)] == [0, 1, far - 1, far, 3 * far]
    log.check()


def test_records_without_a_timestamp_roll_by_the_clock() -> None:
    machine = LogMachine(config=LogConfig(segment_ms=500))
    log = machine.start()
    for _ in range(3):
        log.appender.append_as_leader(batch(timestamp_ms=-1), 1)
        machine.clock.advance(400)
    assert [info.base_offset for info in log.reader.segments()] == [0, 2]
    assert log.reader.max_timestamp() is None
    assert log.reader.offset_for_timestamp(0) is None


def test_append_time_is_the_clocks() -> None:
    machine = LogMachine(config=LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME))
    log = machine.start()
    log.appender.append_as_leader(batch(2), 1)
    now_ms = machine.clock.now_ms()
    assert [record.timestamp_ms for record in read_local(log)] == [now_ms, now_ms]
    assert log.reader.offset_for_timestamp(now_ms) == (now_ms, 0)
    assert log.reader.max_timestamp() == (now_ms, 0)


def test_an_empty_log_begins_where_it_is_told() -> None:
    log = LogMachine().start(start_offset=500)
    assert (log.offsets.local_log_start_offset, log.offsets.log_end_offset, log.offsets.high_watermark) == (
        500,
        500,
        500,
    )
    assert log.reader.read(500, 100) == FetchData(b"", 500)
    assert log.appender.append_as_leader(batch(), 1).base_offset == 500
    with pytest.raises(OffsetOutOfRangeError) as failure:
        log.reader.read(499, 100)
    assert failure.value.fields["log_end_offset"] == 501


def test_a_reader_goes_over_a_hole_and_across_segments() -> None:
    log = LogMachine(config=SMALL).start()
    log.appender.append_as_follower(batch(2))
    log.appender.append_as_follower(batch(2, base_offset=10))
    log.roll()
    log.appender.append_as_follower(batch(1, base_offset=40))
    data = log.reader.read(5, 1000)
    assert [record.offset for record in decode_all(data.batches)] == [10, 11]
    data = log.reader.read(data.next_offset, 1000)
    assert [record.offset for record in decode_all(data.batches)] == [40]
    assert data.next_offset == log.offsets.log_end_offset == 41


def test_a_search_by_time_ends_at_the_high_watermark_and_begins_at_the_log_start() -> None:
    log = LogMachine(config=LogConfig(min_durability=Durability.DISK, remote_storage_enable=False)).start()
    for timestamp in (5, 9, 7):
        log.appender.append_as_leader(batch(timestamp_ms=timestamp), 1)
    log.flusher.flush()
    log.appender.append_as_leader(batch(timestamp_ms=20), 1)
    assert log.reader.offset_for_timestamp(6) == (9, 1)
    assert log.reader.offset_for_timestamp(10) is None
    assert log.reader.max_timestamp() == (9, 1)
    log.increment_log_start_offset(2)
    assert log.reader.offset_for_timestamp(6) == (7, 2)
    assert log.reader.max_timestamp() == (7, 2)


def test_markers_are_records_to_a_search_by_time_as_in_kafka() -> None:
    log = LogMachine().start()
    for offset, timestamp in enumerate((5, 30, 20)):
        log.appender.append_as_follower(batch(timestamp_ms=timestamp, base_offset=offset))
    marker = bytearray(batch(timestamp_ms=40, base_offset=3))
    header = parse_header(marker)._replace(attributes=CONTROL_BIT)
    header = header._replace(crc=crc32c(marker[HEADER_SIZE:], crc32c(header.pack()[ATTRIBUTES_POSITION:])))
    log.appender.append_as_follower(header.pack() + marker[HEADER_SIZE:])
    assert log.reader.max_timestamp() == (40, 3)
    assert log.reader.offset_for_timestamp(31) == (40, 3)
    assert log.reader.offset_for_timestamp(30) == (30, 1)


@pytest.mark.parametrize("is_sealed", [False, True])
def test_index_files_know_nothing_of_what_a_truncation_took(*, is_sealed: bool) -> None:
    """Whoever copies the directory finds no entry that leads behind the data, or to what comes later."""
    paths = [f"{PARTITION_DIR}/{0:020d}{suffix}" for suffix in (".index", ".timeindex")]

    def stopped(count: int) -> LogMachine:
        machine = LogMachine(config=SMALL)
        log = machine.start()
        for number in range(count):
            log.appender.append_as_leader(batch(timestamp_ms=1000 + number), 1)
        if is_sealed and count > 5:
            log.roll()
            log.appender.append_as_leader(batch(), 1)
        machine.stop()
        return machine

    machine, expected = stopped(7), stopped(5)
    assert all(machine.disk.file_size(path) > expected.disk.file_size(path) > 0 for path in paths)
    log = machine.start()
    log.truncation.truncate_to(5)
    # What is left of them is in memory, and is written when the segment is sealed, or the log closed.
    assert [machine.disk.file_size(path) for path in paths] == [0, 0]
    log.check()
    machine.stop()
    for path in paths:
        assert machine.disk.read_file(path) == expected.disk.read_file(path)
    log = machine.start()
    assert log.recovery_report.was_clean
    assert log.reader.max_timestamp() == (1004, 4)


def test_a_segment_takes_no_request_that_is_larger() -> None:
    log = LogMachine(config=SMALL).start()
    with pytest.raises(RecordTooLargeError):
        log.appender.append_as_leader(batch(value_bytes=300) * 4, 1)
    assert log.appender.append_as_leader(batch(value_bytes=900), 1).base_offset == 0


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


def test_a_changed_byte_on_disk_is_found_by_the_read() -> None:
    disk = MemoryFileSystem()
    log = LogMachine(disk).start()
    log.appender.append_as_leader(batch(), 1)
    flip(disk, f"{PARTITION_DIR}/{0:020d}.log", 70)
    with pytest.raises(CorruptRecordError):
        log.reader.read(0, 1000)


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
    disk.unlink(f"{PARTITION_DIR}/{0:020d}.log")
    with pytest.raises(DataDirectoryError) as failure:
        log.reader.read(0, 1000)
    assert failure.value.fields["path"] == f"{PARTITION_DIR}/{0:020d}.log"


def test_readers_of_a_log_that_could_not_begin_anew_hear_why() -> None:
    offsets = range(0, 24, 3)
    told: list[str] = []
    ordinal = 0
    while True:
        ordinal += 1
        disk = FaultyFileSystem()
        log = LogMachine(disk, SMALL, max_open=1).start()
        for _ in range(8):
            log.appender.append_as_leader(batch(3, value_bytes=100), 1)
        whole = {offset: log.reader.read(offset, 1) for offset in offsets}
        # It is the log's failure, and not its disk's: reads go on.
        disk.fail_at(disk.operation_count + ordinal, number=errno.EPERM)
        try:
            log.truncation.truncate_fully_and_start_at(500)
        except DataDirectoryError:
            pass
        else:
            break
        for offset in offsets:
            try:
                assert log.reader.read(offset, 1, Isolation.LOG_END) == whole[offset]
            except DataDirectoryError as failure:
                told.append(failure.message)
    assert ordinal > 5
    assert set(told) == {
        "the log is offline because the system refused an operation on its disk; correct what the reason says"
        " and restart the server"
    }
