"""Idempotent and transactional producers of one log: what is stored, answered, visible and kept."""

from __future__ import annotations

import errno
import re

import pytest

from stratalog.base.errors import (
    CoordinatorFencedError,
    CorruptRecordError,
    DataDirectoryError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from stratalog.base.types import Durability
from stratalog.log.append.append_info import AppendInfo
from stratalog.log.log_config import LogConfig
from stratalog.log.log_offsets import LogOffsets
from stratalog.log.read.isolation import Isolation
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch import decode_all
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.control_key import ControlKey
from stratalog.record.record import Record
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine

SMALL = LogConfig(segment_bytes=1024, index_interval_bytes=100)
DAY_MS = 24 * 60 * 60 * 1000
NOW_MS = LogMachine().clock.now_ms()


def batch(producer: int, sequence: int, count: int = 1, *, epoch: int = 0, txn: bool = False) -> bytes:
    records = [Record(0, NOW_MS, b"k", b"%d:%d" % (producer, sequence + number)) for number in range(count)]
    return encode_batch(records, producer=BatchProducer(producer, epoch, sequence, txn))


def plain(count: int = 1) -> bytes:
    return encode_batch([Record(0, NOW_MS, b"k", b"plain")] * count)


def end(
    log: UnifiedLog, producer: int, *, committed: bool, epoch: int = 0, coordinator: int = 0
) -> AppendInfo:
    return log.appender.append_end_transaction_marker(
        producer, epoch, coordinator, committed=committed, leader_epoch=1
    )


def committed_values(log: UnifiedLog, max_bytes: int = 300) -> list[bytes | None]:
    """What a consumer of committed records gets, which leaves out what it is told to."""
    offset, values = log.offsets.local_log_start_offset, list[bytes | None]()
    while offset < log.offsets.last_stable_offset:
        data = log.reader.read(offset, max_bytes, Isolation.TXN_COMMITTED)
        for record in decode_all(data.batches):
            producer = int((record.value or b"").partition(b":")[0]) if b":" in (record.value or b"") else -1
            hidden = any(
                aborted.producer_id == producer
                and aborted.first_offset <= record.offset <= aborted.last_offset
                for aborted in data.aborted_transactions
            )
            if record.offset >= offset and not hidden:
                values.append(record.value)
        offset = data.next_offset
    return values


def test_a_request_that_comes_again_is_answered_and_not_stored() -> None:
    machine = LogMachine(config=SMALL)
    log = machine.start()
    first = log.appender.append_as_leader(batch(7, 0, 3), 1)
    assert not first.is_duplicate
    # Again, beside others of its group, and one that is still waiting for the same write.
    outcomes = log.appender.append_group([plain(), batch(7, 0, 3), batch(7, 3, 2), batch(7, 3, 2)], 1)
    assert outcomes == [
        AppendInfo(3, 3, len(plain())),
        AppendInfo(0, 2, 0, is_duplicate=True),
        AppendInfo(4, 5, len(batch(7, 3, 2))),
        AppendInfo(4, 5, 0, is_duplicate=True),
    ]
    assert log.offsets.log_end_offset == 6
    for _ in range(2):
        machine.stop()
        log = machine.start()
        # Of a producer's batches only the newest survives a stop.
        assert log.appender.append_as_leader(batch(7, 3, 2), 1) == AppendInfo(4, 5, 0, is_duplicate=True)
    machine.kill()
    log = machine.start()
    assert log.appender.append_as_leader(batch(7, 3, 2), 1) == AppendInfo(4, 5, 0, is_duplicate=True)
    assert log.appender.append_as_leader(batch(7, 0, 3), 1).is_duplicate, "the walk has seen all of them"
    assert log.offsets.log_end_offset == 6
    log.check()


def test_a_producer_out_of_order_is_refused_alone() -> None:
    log = LogMachine().start()
    outcomes = log.appender.append_group(
        [batch(7, 0), batch(7, 2), batch(8, 0, epoch=3), batch(8, 0, epoch=2), batch(7, 1), plain()], 1
    )
    assert [type(outcome) for outcome in outcomes] == [
        AppendInfo, OutOfOrderSequenceError, AppendInfo, ProducerFencedError, AppendInfo, AppendInfo,
    ]  # fmt: skip
    assert log.offsets.log_end_offset == 4
    log.check()


def test_a_write_that_fails_leaves_the_producer_where_it_was() -> None:
    disk = FaultyFileSystem()
    log = LogMachine(disk).start()
    log.appender.append_as_leader(batch(7, 0), 1)
    disk.fail_at(disk.operation_count + 2, number=errno.ENOSPC, part=0.5)
    outcomes = log.appender.append_group([batch(7, 1), batch(7, 1), batch(7, 2, txn=True)], 1)
    assert [type(outcome) for outcome in outcomes] == [DataDirectoryError] * 3
    log.check()
    assert log.appender.append_as_leader(batch(7, 1), 1) == AppendInfo(1, 1, len(batch(7, 1)))


def test_a_leader_epoch_whose_batch_failed_is_not_kept() -> None:
    disk = FaultyFileSystem()
    log = LogMachine(disk).start()
    log.appender.append_as_leader(plain(), 1)
    write = next(
        number
        for number in range(disk.operation_count + 1, disk.operation_count + 20)
        if _fails_at_the_append_of_epoch_two(number)
    )
    assert write
    disk.fail_at(write, number=errno.ENOSPC, part=0.5)
    with pytest.raises(DataDirectoryError):
        log.appender.append_as_leader(plain(), 2)
    log.check()
    assert log.end_offset_for(2) is None
    log.appender.append_as_leader(plain(2), 1)
    log.appender.append_as_leader(plain(), 2)
    assert log.end_offset_for(1) == (1, 3)
    assert log.end_offset_for(2) == (2, 4)
    log.check()


def _fails_at_the_append_of_epoch_two(number: int) -> bool:
    """Whether that operation of the same work is the write of the batch."""
    disk = FaultyFileSystem()
    log = LogMachine(disk).start()
    log.appender.append_as_leader(plain(), 1)
    log.appender.append_as_leader(plain(), 2)
    return number <= len(disk.trace) and disk.trace[number - 1] == f"append {PARTITION_DIR}/{0:020d}.log"


def test_readers_of_committed_records_stop_at_the_first_open_transaction() -> None:
    log = LogMachine(config=SMALL).start()
    log.appender.append_as_leader(batch(1, 0, 2, txn=True), 1)
    log.appender.append_as_leader(plain(), 1)
    assert (
        log.offsets.last_stable_offset,
        log.state.producers.first_unstable_offset,
        log.offsets.high_watermark,
    ) == (0, 0, 3)
    assert log.reader.read(0, 1000, Isolation.TXN_COMMITTED).batches == b""
    assert len(decode_all(log.reader.read(0, 1000).batches)) == 3
    log.appender.append_as_leader(batch(2, 0, 2, txn=True), 1)
    with pytest.raises(InvalidTxnStateError):
        log.appender.append_as_leader(batch(2, 2), 1)
    assert end(log, 1, committed=True).base_offset == 5
    assert (log.offsets.last_stable_offset, log.state.producers.first_unstable_offset) == (3, 3)
    assert committed_values(log) == [b"1:0", b"1:1", b"plain"]
    end(log, 2, committed=False)
    assert (log.offsets.last_stable_offset, log.state.producers.first_unstable_offset) == (7, None)
    assert committed_values(log) == [b"1:0", b"1:1", b"plain"]
    data = log.reader.read(3, 1000, Isolation.TXN_COMMITTED)
    assert data.aborted_transactions == (AbortedTransaction(2, 3, 6, 7),)
    assert log.reader.read(3, 1000).aborted_transactions == ()
    assert log.reader.read(0, 150, Isolation.TXN_COMMITTED).aborted_transactions == ()
    log.check()


def test_the_end_of_a_transaction_counts_when_it_cannot_be_lost() -> None:
    log = LogMachine(config=LogConfig(min_durability=Durability.DISK)).start()
    log.appender.append_as_leader(plain(), 1)
    log.appender.append_as_leader(batch(1, 0, txn=True), 1)
    log.flusher.flush()
    assert (log.offsets.last_stable_offset, log.offsets.high_watermark) == (1, 2)
    end(log, 1, committed=True)
    assert (log.offsets.last_stable_offset, log.state.producers.first_unstable_offset) == (1, 1)
    log.flusher.flush()
    assert (log.offsets.last_stable_offset, log.state.producers.first_unstable_offset) == (3, None)


def test_markers_are_judged_by_epochs() -> None:
    log = LogMachine().start()
    log.appender.append_as_leader(batch(1, 0, epoch=4, txn=True), 1)
    with pytest.raises(ProducerFencedError):
        end(log, 1, committed=True, epoch=3)
    end(log, 1, committed=True, epoch=4, coordinator=9)
    with pytest.raises(CoordinatorFencedError):
        end(log, 1, committed=True, epoch=4, coordinator=8)
    assert log.offsets.log_end_offset == 2


def test_an_aborted_transaction_is_found_from_every_segment_that_it_touches() -> None:
    machine = LogMachine(config=SMALL)
    log = machine.start()
    for round_ in range(12):
        log.appender.append_as_leader(batch(1, 10 * round_, 10, txn=True), 1)
        log.appender.append_as_leader(batch(2, 10 * round_, 10, txn=round_ % 2 == 0), 1)
        if round_ % 2 == 0:
            end(log, 2, committed=round_ % 4 == 0)
    end(log, 1, committed=False)
    log.appender.append_as_leader(plain(), 1)
    assert len(log.reader.segments()) > 5
    expected = [b"2:%d" % number for number in range(120) if number // 10 % 4 != 2] + [b"plain"]
    for restart in ("none", "stop", "kill", "stop"):
        if restart == "stop":
            machine.stop()
            log = machine.start()
        elif restart == "kill":
            machine.kill()
            log = machine.start()
        log.check()
        for max_bytes in (1, 300, 5000):
            assert committed_values(log, max_bytes) == expected
        tenth = log.reader.read(10, 1, Isolation.TXN_COMMITTED)
        assert AbortedTransaction(1, 0, log.offsets.log_end_offset - 2, log.offsets.log_end_offset - 1) in (
            tenth.aborted_transactions
        )


def test_a_transaction_that_is_aborted_beside_a_read_is_not_read_as_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = LogMachine().start()
    log.appender.append_as_leader(batch(1, 0, txn=True), 1)
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


def test_the_search_for_aborted_transactions_ends_where_all_is_decided() -> None:
    disk = FaultyFileSystem()
    log = LogMachine(disk, SMALL).start()
    for number in range(6):
        log.appender.append_as_leader(batch(1, number, txn=True), 1)
        end(log, 1, committed=False)
        log.roll()
    log.reader.read(0, 1, Isolation.TXN_COMMITTED)
    log.reader.read(1, 1, Isolation.TXN_COMMITTED)
    log.reader.read(0, 1, Isolation.TXN_COMMITTED)
    touched = {line for line in disk.trace if "txnindex" in line and line.startswith("read_file")}
    assert not any(f"{base:020d}" in line for line in touched for base in range(4, 12))
    assert [
        txn.first_offset for txn in log.reader.read(0, 1, Isolation.TXN_COMMITTED).aborted_transactions
    ] == [0]


def test_a_follower_takes_offsets_epochs_and_producers_as_they_are() -> None:
    source_machine, target_machine = LogMachine(config=SMALL), LogMachine(config=SMALL)
    source, target = source_machine.start(), target_machine.start()
    for number in range(8):
        source.appender.append_as_leader(batch(1, number, txn=True), 1 + number // 3)
        source.appender.append_as_leader(plain(3), 1 + number // 3)
        if number % 2:
            source.appender.append_end_transaction_marker(
                1, 0, 0, committed=number % 4 == 1, leader_epoch=1 + number // 3
            )
    offset = 0
    while offset < source.offsets.log_end_offset:
        data = source.reader.read(offset, 400, Isolation.LOG_END)
        target.appender.append_as_follower(data.batches)
        offset = data.next_offset
    target.check()
    assert target.producers() == source.producers()
    assert target.offsets.last_stable_offset == source.offsets.last_stable_offset
    assert committed_values(target) == committed_values(source)
    for epoch in range(5):
        assert target.end_offset_for(epoch) == source.end_offset_for(epoch)
    source_machine.stop()
    target_machine.stop()
    for name in source_machine.disk.list_directory(PARTITION_DIR):
        if not name.endswith(".snapshot") or int(name.partition(".")[0]) == source.offsets.log_end_offset:
            path = f"{PARTITION_DIR}/{name}"
            assert target_machine.disk.read_file(path) == source_machine.disk.read_file(path), name


def test_a_follower_refuses_an_epoch_that_goes_back_and_keeps_what_it_had() -> None:
    log = LogMachine().start()
    log.appender.append_as_follower(encode_batch([Record(0, 1, None, b"v")], leader_epoch=5))
    later = encode_batch([Record(0, 1, None, b"v")], leader_epoch=7, base_offset=1)
    earlier = encode_batch([Record(0, 1, None, b"v")], leader_epoch=4, base_offset=2)
    with pytest.raises(CorruptRecordError) as failure:
        log.appender.append_as_follower(later + earlier)
    assert failure.value.fields == {"offset": 2, "epoch": 4, "latest_epoch": 7}
    assert (log.end_offset_for(5), log.end_offset_for(7)) == ((5, 1), None)
    log.check()


def test_every_roll_takes_a_snapshot_that_a_flush_makes_durable_and_retention_removes() -> None:
    disk = MemoryFileSystem()
    machine = LogMachine(disk, LogConfig(segment_bytes=1024, remote_storage_enable=False))
    log = machine.start()
    for number in range(60):
        log.appender.append_as_leader(batch(1, 5 * number, 5), 1)
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


@pytest.mark.parametrize("sealed", [False, True])
def test_a_truncation_takes_everything_back_to_where_it_was(sealed: bool) -> None:
    def run(log: UnifiedLog, step: int) -> None:
        epoch, round_ = 1 + step // 6, step // 4
        if step % 4 == 3:
            log.appender.append_end_transaction_marker(1, 0, 0, committed=round_ % 2 == 0, leader_epoch=epoch)
        elif step % 4 == 2:
            log.appender.append_as_leader(batch(2, 3 * round_, 3), epoch)
        else:
            log.appender.append_as_leader(batch(1, 4 * round_ + 2 * (step % 4), 2, txn=True), epoch)
        if sealed and step % 5 == 4:
            log.roll()

    config = LogConfig(segment_bytes=100_000, index_interval_bytes=100)
    log = LogMachine(config=config).start()
    ends = [0]
    for step in range(24):
        run(log, step)
        ends.append(log.offsets.log_end_offset)
    for count, end_offset in reversed(list(enumerate(ends))):
        expected = LogMachine(config=config).start()
        for step in range(count):
            run(expected, step)
        assert log.truncation.truncate_to(end_offset) == end_offset
        log.check()
        assert log.offsets.last_stable_offset == expected.offsets.last_stable_offset
        assert [entry[:5] for entry in log.producers()] == [entry[:5] for entry in expected.producers()]
        assert log.reader.read(0, 10**6, Isolation.LOG_END) == expected.reader.read(
            0, 10**6, Isolation.LOG_END
        )
        assert committed_values(log) == committed_values(expected)
        assert [log.end_offset_for(epoch) for epoch in range(6)] == [
            expected.end_offset_for(epoch) for epoch in range(6)
        ]


def test_a_truncation_inside_a_batch_drops_the_batch() -> None:
    machine = LogMachine(config=LogConfig(min_durability=Durability.DISK))
    log = machine.start()
    for number in range(4):
        log.appender.append_as_leader(batch(1, 5 * number, 5), 1)
    log.flusher.flush()
    machine.checkpoint()
    assert log.truncation.truncate_to(13) == 10
    assert (log.offsets.log_end_offset, log.offsets.recovery_point, log.offsets.high_watermark) == (
        10,
        10,
        10,
    )
    assert log.truncation.truncate_to(10) == log.truncation.truncate_to(99) == 10
    machine.kill()
    log = machine.start()
    assert log.appender.append_as_leader(batch(1, 10, 5), 1).base_offset == 10
    assert log.truncation.truncate_to(0) == 0
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


def test_a_log_without_its_state_files_finds_the_state_again() -> None:
    machine = LogMachine(config=SMALL)
    log = machine.start()
    for number in range(20):
        log.appender.append_as_leader(batch(1, 5 * number, 5, txn=True), 1 + number // 7)
        if number % 3 == 2:
            log.appender.append_end_transaction_marker(1, 0, 0, committed=False, leader_epoch=1 + number // 7)
    expected = log.producers(), [log.end_offset_for(epoch) for epoch in range(5)], committed_values(log)
    for clean in (True, False):
        if clean:
            machine.stop()
        else:
            log.flusher.flush()
            machine.checkpoint()
            machine.kill()
        for name in machine.disk.list_directory(PARTITION_DIR):
            if name.endswith(".snapshot") or name == "leader-epoch-checkpoint":
                machine.disk.unlink(f"{PARTITION_DIR}/{name}")
            elif name.endswith(".txnindex") and not name.startswith(f"{0:020d}"):
                file = machine.disk.open_append(f"{PARTITION_DIR}/{name}")
                file.truncate(33)
                file.close()
        log = machine.start()
        log.check()
        found = log.producers(), [log.end_offset_for(epoch) for epoch in range(5)], committed_values(log)
        assert found == expected


@pytest.mark.parametrize("rolls_by_append", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_what_was_aborted_survives_a_roll_that_nobody_flushed(restarts: bool, rolls_by_append: bool) -> None:
    """The recovery point is the end of the segment before that is sealed, so nobody walks it again."""
    disk = MemoryFileSystem()
    machine = LogMachine(disk, SMALL)
    log = machine.start()
    log.appender.append_as_leader(batch(1, 0, 5, txn=True), 1)
    end(log, 1, committed=False)
    log.appender.append_as_leader(plain(5), 1)
    expected = committed_values(log)
    assert len(expected) == 5
    log.flusher.flush()
    machine.checkpoint()
    if restarts:
        machine.kill()
        log = machine.start()
    if rolls_by_append:
        log.appender.append_as_leader(plain(70), 1)
    else:
        log.roll()
    assert log.local_log.segments.active.base_offset == 11
    for contents in Kept:
        found = LogMachine(disk.after_crash(Survival(contents, Kept.ALL)), SMALL).start()
        found.check()
        assert committed_values(found)[:5] == expected
        assert found.reader.aborted_transactions(0, 11) == (AbortedTransaction(1, 0, 5, 6),)


def test_a_transaction_index_that_cannot_be_synced_takes_the_log_offline() -> None:
    """A second sync of the same file would succeed, and say nothing."""

    def aborted_on(disk: FaultyFileSystem) -> UnifiedLog:
        log = LogMachine(disk, SMALL).start()
        log.appender.append_as_leader(batch(1, 0, 5, txn=True), 1)
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
