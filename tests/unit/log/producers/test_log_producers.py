"""Idempotent and transactional producers of one log: what is stored, answered, visible and kept."""

from __future__ import annotations

import errno
import re
from contextlib import suppress

import pytest

from stratalog.base.errors import (
    DataDirectoryError,
)
from stratalog.log.append_info import AppendInfo
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import LogConfig
from stratalog.log.log_offsets import LogOffsets
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.control_key import ControlKey
from stratalog.record.record import Record
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine
from tests.support.logs.plain_batches import batch

SMALL = LogConfig(segment_bytes=1024, index_interval_bytes=100)
LOG_PATH = f"{PARTITION_DIR}/{0:020d}.log"
DAY_MS = 24 * 60 * 60 * 1000
NOW_MS = LogMachine().clock.now_ms()


def sent(producer: int, sequence: int, count: int = 1, *, epoch: int = 0, txn: bool = False) -> bytes:
    return batch(count, timestamp_ms=NOW_MS, producer=BatchProducer(producer, epoch, sequence, txn))


def plain(count: int = 1) -> bytes:
    return batch(count, timestamp_ms=NOW_MS, value_bytes=2)


def end(
    log: UnifiedLog, producer: int, *, committed: bool, epoch: int = 0, coordinator: int = 0
) -> AppendInfo:
    return log.appender.append_end_transaction_marker(
        producer, epoch, coordinator, committed=committed, leader_epoch=1
    )


def test_a_request_that_comes_again_is_answered_and_not_stored() -> None:
    machine = LogMachine(config=SMALL)
    log = machine.start()
    first = log.appender.append_as_leader(sent(7, 0, 3), 1)
    assert not first.is_duplicate
    # Again, beside others of its group, and one that is still waiting for the same write.
    outcomes = log.appender.append_group([plain(), sent(7, 0, 3), sent(7, 3, 2), sent(7, 3, 2)], 1)
    assert outcomes == [
        AppendInfo(3, 3, len(plain())),
        AppendInfo(0, 2, 0, is_duplicate=True),
        AppendInfo(4, 5, len(sent(7, 3, 2))),
        AppendInfo(4, 5, 0, is_duplicate=True),
    ]
    assert log.offsets.log_end_offset == 6
    for _ in range(2):
        machine.stop()
        log = machine.start()
        # Of a producer's batches only the newest survives a stop.
        assert log.appender.append_as_leader(sent(7, 3, 2), 1) == AppendInfo(4, 5, 0, is_duplicate=True)
    machine.kill()
    log = machine.start()
    assert log.appender.append_as_leader(sent(7, 3, 2), 1) == AppendInfo(4, 5, 0, is_duplicate=True)
    assert log.appender.append_as_leader(sent(7, 0, 3), 1).is_duplicate, "the walk has seen all of them"
    assert log.offsets.log_end_offset == 6
    log.check()


def test_a_write_that_fails_leaves_the_producer_where_it_was() -> None:
    disk = FaultyFileSystem()
    log = LogMachine(disk).start()
    log.appender.append_as_leader(sent(7, 0), 1)
    disk.fail_at(disk.operation_count + 2, number=errno.ENOSPC, part=0.5)
    outcomes = log.appender.append_group([sent(7, 1), sent(7, 1), sent(7, 2, txn=True)], 1)
    assert [type(outcome) for outcome in outcomes] == [DataDirectoryError] * 3
    log.check()
    assert log.appender.append_as_leader(sent(7, 1), 1) == AppendInfo(1, 1, len(sent(7, 1)))


def test_a_leader_epoch_whose_batch_failed_is_not_kept() -> None:
    def append_in_two_epochs(disk: FaultyFileSystem) -> UnifiedLog:
        log = LogMachine(disk).start()
        log.appender.append_as_leader(plain(), 1)
        with suppress(DataDirectoryError):
            log.appender.append_as_leader(plain(), 2)
        return log

    append_in_two_epochs(whole := FaultyFileSystem())
    appends = [number for number, name in enumerate(whole.trace, 1) if name == f"append {LOG_PATH}"]
    disk = FaultyFileSystem()
    disk.fail_at(appends[-1], number=errno.ENOSPC, part=0.5)
    log = append_in_two_epochs(disk)
    log.check()
    assert (log.offsets.log_end_offset, log.end_offset_for(2)) == (1, None)
    log.appender.append_as_leader(plain(2), 1)
    log.appender.append_as_leader(plain(), 2)
    assert (log.end_offset_for(1), log.end_offset_for(2)) == ((1, 3), (2, 4))
    log.check()


def test_a_transaction_that_is_aborted_beside_a_read_is_not_read_as_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = LogMachine().start()
    log.appender.append_as_leader(sent(1, 0, txn=True), 1)
    find_end_offset, is_aborted = LogOffsets.end_offset, False

    def end_offset(self: LogOffsets, isolation: Isolation) -> int:
        """The moment at which the marker falls into a segment of its own."""
        nonlocal is_aborted
        if not is_aborted:
            is_aborted = True
            log.roll()
            end(log, 1, committed=False)
        return find_end_offset(self, isolation)

    monkeypatch.setattr(LogOffsets, "end_offset", end_offset)
    data = log.reader.read(0, 1000, Isolation.TXN_COMMITTED)
    assert is_aborted
    assert data.batches
    assert data.aborted_transactions == (AbortedTransaction(1, 0, 1, 2),)


def test_every_roll_takes_a_snapshot_that_a_flush_makes_durable_and_retention_removes() -> None:
    disk = MemoryFileSystem()
    machine = LogMachine(disk, LogConfig(segment_bytes=1024, remote_storage_enable=False))
    log = machine.start()
    for number in range(60):
        log.appender.append_as_leader(sent(1, 5 * number, 5), 1)
    bases = [info.base_offset for info in log.reader.segments()]

    def snapshots() -> list[int]:
        names = machine.disk.list_directory(PARTITION_DIR)
        return [int(name.partition(".")[0]) for name in names if name.endswith(".snapshot")]

    assert snapshots() == bases[1:]
    log.flusher.flush()
    left = disk.after_crash(Survival(Kept.NONE, Kept.NONE)).contents()
    for path in (f"{PARTITION_DIR}/{offset:020d}.snapshot" for offset in snapshots()):
        assert left[path] == disk.read_file(path) != b""
    log.increment_log_start_offset(bases[3] + 1)
    log.retention.delete_old_segments()
    assert snapshots() == bases[3:]
    machine.stop()
    assert snapshots() == [*bases[3:], 300]
    log = machine.start()
    assert log.producers()[0].last_sequence == 299
    # What lies behind the end goes with it, and so does what belongs to no segment.
    log.truncation.truncate_to(bases[5] + 2)
    assert snapshots() == bases[3:6]
    assert log.producers()[0].last_sequence == bases[5] - 1
    log.check()


def test_idle_producers_are_forgotten_unless_a_transaction_is_open() -> None:
    machine = LogMachine()
    log = machine.start()
    now_ms = machine.clock.now_ms()
    for producer, is_transactional in ((1, False), (2, True)):
        data = encode_batch(
            [Record(0, now_ms, b"k", b"v")], producer=BatchProducer(producer, 0, 0, is_transactional)
        )
        log.appender.append_as_leader(data, 1)
    machine.clock.advance(DAY_MS - 1)
    assert len(log.producers()) == 2
    machine.clock.advance(20 * 60 * 1000)
    assert [entry.producer_id for entry in log.producers()] == [2]
    machine.stop()
    assert [entry.producer_id for entry in machine.start().producers()] == [2]


def test_a_transaction_index_that_cannot_be_synced_takes_the_log_offline() -> None:
    """A second sync of the same file would succeed, and say nothing."""

    def aborted_on(disk: FaultyFileSystem) -> UnifiedLog:
        log = LogMachine(disk, SMALL).start()
        log.appender.append_as_leader(sent(1, 0, 5, txn=True), 1)
        end(log, 1, committed=False)
        return log

    whole = FaultyFileSystem()
    aborted_on(whole).roll()
    [sync] = [number for number, name in enumerate(whole.trace, 1) if re.match("sync .*txnindex", name)]
    disk = FaultyFileSystem()
    disk.fail_at(sync)
    log = aborted_on(disk)
    with pytest.raises(DataDirectoryError):
        log.roll()
    assert log.availability.is_offline
    assert log.local_log.segments.active.base_offset == 0


def test_a_seal_that_was_refused_is_written_with_the_next_roll() -> None:
    disk = FaultyFileSystem()
    log = LogMachine(disk, SMALL).start()
    log.appender.append_as_leader(sent(1, 0, 5, txn=True), 1)
    end(log, 1, committed=False)
    disk.fail_where(lambda name: re.match("truncate .*seal", name), number=errno.EPERM)
    with pytest.raises(DataDirectoryError):
        log.roll()
    disk.mend()
    assert not log.availability.is_offline
    log.roll()
    log.check()
    data = log.reader.read(0, 10_000, Isolation.TXN_COMMITTED)
    assert data.aborted_transactions == (AbortedTransaction(1, 0, 5, 6),)


def test_control_batches_of_other_types_end_no_transaction() -> None:
    """Also if producer state is made again from the batches."""
    machine = LogMachine()
    log = machine.start()
    for base_offset, number in enumerate([2, 7]):
        records = [Record(0, 1000, ControlKey(0, number).pack(), b"\0\0")]
        batch = encode_batch(records, base_offset=base_offset, leader_epoch=1, is_control=True)
        log.appender.append_as_follower(batch)
    log.check()
    machine.stop()
    for name in machine.disk.list_directory(log.local_log.directory):
        if name.endswith(".snapshot"):
            machine.disk.unlink(f"{log.local_log.directory}/{name}")
    log = machine.start()
    log.check()
    assert log.offsets.log_end_offset == log.offsets.last_stable_offset == 2
    assert log.producers() == ()
