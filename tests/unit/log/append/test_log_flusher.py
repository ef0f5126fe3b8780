"""When a log is made durable because its configuration says so, and what a sync that fails does."""

from __future__ import annotations

import errno
import threading
from uuid import UUID

import pytest

from stratalog.base.errors import DataDirectoryError, LogStoreError
from stratalog.base.types import TopicPartition
from stratalog.log.append_info import AppendInfo
from stratalog.log.isolation import Isolation
from stratalog.log.local_log import UnsyncedWork
from stratalog.log.log_config import LogConfig
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.logs.crash_moments import EVERYTHING_KEPT, NOTHING_KEPT
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.logs.log_machine import PARTITION, LogMachine
from tests.support.logs.plain_batches import batch

OTHER = TopicPartition("payments", 0)


def syncs(disk: FaultyFileSystem) -> int:
    return sum(name.startswith("sync ") and name.endswith(".log") for name in disk.trace)


def test_so_many_records_and_no_more_wait_for_a_flush() -> None:
    disk = FaultyFileSystem()
    log = LogMachine(disk, LogConfig(flush_messages=5)).start()
    for appended_count, flushed_count in ((2, 0), (4, 0), (5, 5), (9, 5), (10, 10)):
        log.appender.append_as_leader(batch(appended_count - log.offsets.log_end_offset), 1)
        assert log.offsets.recovery_point == flushed_count
    # An explicit flush is one, too.
    log.appender.append_as_leader(batch(4), 1)
    assert log.flusher.flush() == 14
    log.appender.append_as_leader(batch(4), 1)
    assert log.offsets.recovery_point == 14
    log.appender.append_end_transaction_marker(7, 0, 0, committed=True, leader_epoch=1)
    assert log.offsets.recovery_point == 19
    # Offsets count, as in Kafka: also those without a record.
    copied = bytearray(batch(base_offset=30))
    copied[12:16] = (1).to_bytes(4, "big")
    log.appender.append_as_follower(copied)
    assert log.offsets.recovery_point == log.offsets.log_end_offset == 31


def test_a_group_is_flushed_once() -> None:
    disk = FaultyFileSystem()
    log = LogMachine(disk, LogConfig(flush_messages=1)).start()
    log.appender.append_as_leader(batch(), 1)
    before = syncs(disk)
    outcomes = log.appender.append_group([batch(2)] * 7 + [b"x" * 70], 1)
    assert [isinstance(outcome, AppendInfo) for outcome in outcomes] == [True] * 7 + [False]
    assert (syncs(disk) - before, log.offsets.recovery_point) == (1, 15)
    log.appender.append_group([b"x" * 70], 1)
    assert syncs(disk) - before == 1


def test_a_sync_that_fails_reaches_the_waiting_append_and_takes_the_log_offline() -> None:
    disk = FaultyFileSystem()
    log = LogMachine(disk, LogConfig(flush_messages=2)).start()
    log.appender.append_as_leader(batch(), 1)
    log.appender.append_as_leader(batch(), 1)
    log.appender.append_as_leader(batch(), 1)
    disk.fail_at(disk.operation_count + 3, number=errno.EIO)
    outcomes = log.appender.append_group([batch(), b"x" * 70], 1)
    assert disk.trace[-1].startswith("sync ")
    assert isinstance(outcomes[0], DataDirectoryError)
    assert not isinstance(outcomes[1], AppendInfo | DataDirectoryError)
    assert log.availability.is_offline
    # It never moves on without a sync that succeeded.
    assert log.offsets.recovery_point == 2
    with pytest.raises(DataDirectoryError):
        log.appender.append_as_leader(batch(), 1)
    assert log.availability.is_offline
    assert log.offsets.log_end_offset == 4


def test_a_flush_beside_which_another_sync_of_the_file_fails_makes_nothing_durable() -> None:
    """An append that finds no space cuts the file back. The sync of that cut gets the error of the flush's
    bytes, which Linux reports once for an open file, so the sync of the flush succeeds."""
    disk = FaultyFileSystem()
    log = LogMachine(disk).start()
    log.appender.append_as_leader(batch(), 1)
    path = log.local_log.segments.active.path
    refused = (f"append {path}", f"sync {path}")
    outcomes: list[AppendInfo | LogStoreError] = []
    synced: list[UnsyncedWork] = []
    sync = log.local_log.sync

    def append_fails_beside(work: UnsyncedWork) -> None:
        disk.fail_where(lambda name: name in refused, number=errno.ENOSPC)
        outcomes.extend(log.appender.append_group([batch()], 1))
        disk.mend()
        sync(work)
        synced.append(work)

    log.local_log.sync = append_fails_beside  # type: ignore[method-assign]  # acts beside the sync
    with pytest.raises(DataDirectoryError):
        log.flusher.flush()
    assert isinstance(outcomes[0], DataDirectoryError)
    assert len(synced) == 1, "the sync of the flush did not fail"
    assert log.availability.is_offline
    assert log.offsets.recovery_point == 0


def test_no_other_append_waits_for_a_flush() -> None:
    is_syncing, may_finish = threading.Event(), threading.Event()

    def wait(name: str, path: str) -> None:
        if name == "sync" and f"/{PARTITION}/" in path and path.endswith(".log"):
            is_syncing.set()
            assert may_finish.wait(30)

    machine = LogMachine(HookedDisk(wait), LogConfig(flush_messages=3))
    log = machine.start()
    other = machine.manager.open_log(OTHER, UUID(int=8), machine.config)
    log.appender.append_as_leader(batch(2), 1)
    waiting = threading.Thread(target=lambda: log.appender.append_as_leader(batch(), 1))
    waiting.start()
    assert is_syncing.wait(30)
    # Another partition is flushed meanwhile, and this one appended to and read.
    other.appender.append_as_leader(batch(3), 1)
    assert other.offsets.recovery_point == 3
    appended: list[AppendInfo] = []
    follower = threading.Thread(target=lambda: appended.append(log.appender.append_as_leader(batch(), 1)))
    follower.start()
    while log.offsets.log_end_offset < 4:
        assert follower.is_alive()
    assert log.offsets.recovery_point == 0
    assert log.reader.read(0, 1000, Isolation.LOG_END).next_offset == 4
    may_finish.set()
    waiting.join(30)
    follower.join(30)
    # The second one waited for the first one's flush, which left too little for another.
    assert appended[0].base_offset == 3
    assert log.offsets.recovery_point == 3


def test_records_wait_no_longer_than_flush_ms_and_the_period_of_the_task() -> None:
    disk = FaultyFileSystem()
    machine = LogMachine(disk, LogConfig(flush_ms=5000))
    log = machine.start()
    manager = machine.manager
    log.appender.append_as_leader(batch(2), 1)
    machine.clock.advance(4999)
    manager.tasks.flush_old()
    assert log.offsets.recovery_point == 0
    machine.clock.advance(1)
    manager.tasks.flush_old()
    assert log.offsets.recovery_point == 2
    # From flush to flush, of any caller; and only where there is something to flush.
    log.appender.append_as_leader(batch(), 1)
    machine.clock.advance(3000)
    log.flusher.flush()
    log.appender.append_as_leader(batch(), 1)
    machine.clock.advance(3000)
    manager.tasks.flush_old()
    assert log.offsets.recovery_point == 3
    machine.clock.advance(2000)
    manager.tasks.flush_old()
    assert log.offsets.recovery_point == 4
    before = disk.operation_count
    machine.clock.advance(50_000)
    manager.tasks.flush_old()
    assert disk.operation_count == before
    log.appender.append_as_leader(batch(), 1)
    manager.tasks.flush_old()
    assert log.offsets.recovery_point == 5
    log.reconfigure(LogConfig(flush_ms=0))
    log.appender.append_as_leader(batch(), 1)
    manager.tasks.flush_old()
    assert log.offsets.recovery_point == 6


def test_one_log_that_cannot_be_flushed_keeps_no_other_from_it() -> None:
    disk = FaultyFileSystem()
    machine = LogMachine(disk, LogConfig(flush_ms=1))
    log = machine.start()
    manager = machine.manager
    other = manager.open_log(OTHER, UUID(int=8), machine.config)
    for each in (log, other):
        each.appender.append_as_leader(batch(), 1)
    machine.clock.advance(1)
    # Its disk is full, and works for the other one.
    disk.fail_at(disk.operation_count + 1, number=errno.ENOSPC)
    with pytest.raises(DataDirectoryError) as failure:
        manager.tasks.flush_old()
    assert failure.value.fields["path"] == log.local_log.directory
    assert (log.availability.is_offline, log.offsets.recovery_point, other.offsets.recovery_point) == (
        True,
        0,
        1,
    )
    # It was said once.
    manager.tasks.flush_old()
    manager.let_go(OTHER)
    other.flusher.flush_if_old()


def test_a_rolled_segment_is_made_durable_by_itself() -> None:
    disk = FaultyFileSystem()
    machine = LogMachine(disk)
    log = machine.start()
    tasks = machine.manager.tasks
    for number in range(3):
        log.appender.append_as_leader(batch(2), 1)
        tasks.flush_rolled()
        assert log.offsets.recovery_point == 2 * number
        log.roll()
        tasks.flush_rolled()
        assert log.offsets.recovery_point == 2 * number + 2
    log.appender.append_as_leader(batch(2), 1)
    before = disk.operation_count
    tasks.flush_rolled()
    assert disk.operation_count == before, "a look at a log without rolled segments reads no disk"
    assert LogMachine(disk.reopened(NOTHING_KEPT)).start().offsets.log_end_offset == 6


def test_the_active_segment_is_not_synced_with_the_rolled_ones() -> None:
    disk = FaultyFileSystem()
    machine = LogMachine(disk, LogConfig(flush_ms=5000))
    log = machine.start()
    log.appender.append_as_leader(batch(2), 1)
    log.roll()
    log.appender.append_as_leader(batch(3), 1)
    machine.clock.advance(5000)
    assert log.flusher.flush_rolled() == 2
    active = log.local_log.segments.active
    assert not any(name == f"sync {active.path}" for name in disk.trace)
    # Records of the active segment wait no longer because of it.
    machine.manager.tasks.flush_old()
    assert log.offsets.recovery_point == 5
    assert log.flusher.flush_rolled() == 5


def test_a_flush_while_rolled_segments_are_synced_is_not_undone() -> None:
    is_syncing, may_finish = threading.Event(), threading.Event()

    def wait(name: str, path: str) -> None:
        if name == "sync" and path.endswith(".log"):
            is_syncing.set()
            assert may_finish.wait(30)

    disk = HookedDisk(wait)
    machine = LogMachine(disk)
    log = machine.start()
    log.appender.append_as_leader(batch(2), 1)
    log.roll()
    flushing = threading.Thread(target=machine.manager.tasks.flush_rolled)
    flushing.start()
    assert is_syncing.wait(30)
    log.appender.append_as_leader(batch(3), 1)
    log.roll()
    log.appender.append_as_leader(batch(4), 1)
    whole = threading.Thread(target=log.flusher.flush)
    whole.start()
    may_finish.set()
    flushing.join(30)
    whole.join(30)
    assert log.offsets.recovery_point == 9
    assert log.flusher.flush_rolled() == 9
    assert LogMachine(disk.reopened(NOTHING_KEPT)).start().offsets.log_end_offset == 9


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_rolled_segments_of_one_log_that_cannot_be_flushed_keep_no_other_from_it(number: int) -> None:
    disk = FaultyFileSystem()
    machine = LogMachine(disk)
    log = machine.start()
    tasks = machine.manager.tasks
    other = machine.manager.open_log(OTHER, UUID(int=8), machine.config)
    for each in (log, other):
        each.appender.append_as_leader(batch(), 1)
        each.roll()
    disk.fail_at(disk.operation_count + 1, number=number)
    with pytest.raises(DataDirectoryError) as failure:
        tasks.flush_rolled()
    assert failure.value.fields["path"] == log.local_log.directory
    assert (log.offsets.recovery_point, other.offsets.recovery_point) == (0, 1)
    # A failed sync is said once; one that has not begun is made up for.
    assert log.availability.is_offline == (number == errno.ENOSPC)
    tasks.flush_rolled()
    assert log.offsets.recovery_point == (0 if number == errno.ENOSPC else 1)
    machine.manager.let_go(OTHER)
    other.flusher.flush_if_rolled()


@pytest.mark.parametrize("segment_count", [3, 40])
def test_a_restart_after_a_crash_reads_the_end_of_the_log_however_long_it_is(segment_count: int) -> None:
    disk = FaultyFileSystem()
    machine = LogMachine(disk)
    log = machine.start()
    for _ in range(segment_count):
        log.appender.append_as_leader(batch(2), 1)
        log.roll()
        machine.manager.tasks.flush_rolled()
    machine.checkpoint()
    log.appender.append_as_leader(batch(2), 1)
    log.roll()
    log.appender.append_as_leader(batch(2), 1)
    found = disk.reopened(EVERYTHING_KEPT)
    log = LogMachine(found).start()
    assert log.offsets.log_end_offset == 2 * segment_count + 4
    operations = [name.split(" ") for name in found.trace]
    read = {path for name, path, *_ in operations if name.startswith("read_") and path.endswith(".log")}
    assert read == {segment.path for segment in log.local_log.segments[-2:]}


def test_altered_keys_hold_from_the_next_append_on() -> None:
    log = LogMachine().start()
    log.appender.append_as_leader(batch(3), 1)
    log.reconfigure(LogConfig(flush_messages=2))
    assert log.offsets.recovery_point == 0
    log.appender.append_as_leader(batch(), 1)
    assert log.offsets.recovery_point == 4
    log.reconfigure(LogConfig())
    log.appender.append_as_leader(batch(3), 1)
    assert log.offsets.recovery_point == 4
