"""A machine with two disks, one of which fails at every operation in turn.

The work writes to logs of both disks, rolls, drops, truncates, deletes and checkpoints. The logs of the other
disk go on as if nothing were, lose nothing, and are closed in order; nothing is done to the failed disk any
more; and when it works again the next process finds on it what had been flushed. `test_manager_crash` has the
deaths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from errno import EIO
from functools import partial

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicPartition
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.locked_directory import CLEAN_SHUTDOWN_FILE
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.manager.log_manager import LogManager
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.logs.crash_moments import EVERYTHING_KEPT, NOTHING_KEPT
from tests.support.logs.crash_sweep import CrashSweep, Failure
from tests.support.logs.log_ledger import LogLedger
from tests.support.logs.log_machine import DATA_DIR, DATA_DIRS, SMALL_SEGMENTS, TOPIC_ID, machine_on

CONFIG = replace(SMALL_SEGMENTS, retention_bytes=2500)
FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
GONE = [TopicPartition("gone", number) for number in range(2)]


class TwoDisks:
    """The work, and what each log acknowledged. `FIRST` is on the first disk, `SECOND` on the second."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.machine = machine_on(self.disk, CONFIG)
        self.ledgers = {FIRST: LogLedger(), SECOND: LogLedger()}

    @property
    def manager(self) -> LogManager:
        return self.machine.manager

    def run(self) -> None:
        """Start, write, stop, start again, write; whatever fails on a disk is that disk's loss."""
        manager = self.machine.open()
        for partition in (FIRST, SECOND):
            self._attempt(partial(self._write, manager, partition))
        self._attempt(partial(self._drop, manager))
        self._attempt(self.machine.checkpoint)
        for partition in (FIRST, SECOND):
            self._attempt(partial(self._cut, manager, partition))
        self._attempt(manager.tasks.flush_old)

    def stop_and_go_on(self) -> None:
        """A stop in order, and a process that appends a little. Nothing has failed."""
        self._attempt(self.machine.stop)
        for ledger in self.ledgers.values():
            ledger.durable_end_offset = max(ledger.acknowledged, default=-1) + 1
        manager = self.machine.open()
        for partition in (FIRST, SECOND):
            log = manager.open_log(partition, TOPIC_ID, CONFIG)
            self.ledgers[partition].append(log, [self.ledgers[partition].batch(4)])
            self.ledgers[partition].flush(log)
            self.ledgers[partition].verify(log, after_crash=False)
        assert [manager.directory_of(partition) for partition in (FIRST, SECOND)] == [*DATA_DIRS]
        assert not self.machine.scheduler.failures

    def _attempt(self, step: Callable[[], object]) -> None:
        try:
            step()
        except LogStoreError:
            assert DirectoryState.OFFLINE in {status.state for status in self.manager.directories.statuses()}

    def _write(self, manager: LogManager, partition: TopicPartition) -> None:
        log, ledger = first_log(manager, partition), self.ledgers[partition]
        for number in range(6):
            ledger.append(log, [ledger.batch(8), ledger.batch(4)])
            if number == 2:
                ledger.flush(log)
        log.increment_log_start_offset(min(21, log.offsets.high_watermark))
        ledger.note_starts(log)
        manager.tasks.delete_old_segments(log)
        ledger.note_starts(log)
        ledger.append(log, [ledger.batch(3)])

    def _cut(self, manager: LogManager, partition: TopicPartition) -> None:
        log, ledger = manager.log(partition), self.ledgers[partition]
        ledger.truncate_to(log, log.offsets.log_end_offset - 5)
        ledger.append(log, [ledger.batch(6)])
        ledger.flush(log)
        ledger.append(log, [ledger.batch(2)])

    def _drop(self, manager: LogManager) -> None:
        """Partitions come and go on both disks."""
        for partition in GONE:
            self._attempt(partial(first_log, manager, partition))
        for partition in GONE:
            self._attempt(partial(manager.delete_log, partition))
        self.machine.clock.advance(60_000)


def kind_of(name: str) -> str:
    return name.split(" ", maxsplit=1)[0]


@pytest.mark.parametrize("failing", DATA_DIRS)
def test_a_disk_that_fails_at_any_operation_costs_nothing_on_the_other(failing: str) -> None:
    failed, working = (FIRST, SECOND) if failing == DATA_DIR else (SECOND, FIRST)
    [other] = {*DATA_DIRS} - {failing}

    def verify(failure: Failure[TwoDisks]) -> None:
        disks, disk, manager = failure.subject, failure.subject.disk, failure.subject.manager
        states = {status.path: status.state for status in manager.directories.statuses()}
        assert states == {failing: DirectoryState.OFFLINE, other: DirectoryState.LIVE}
        assert disks.machine.all_failed_count == 0
        touched = [one for one in disk.trace[failure.operation :] if failing in one]
        assert {kind_of(one) for one in touched} <= {"close", "real_path"}
        # The other one has everything, and goes on.
        log, ledger = log_of(manager, working), disks.ledgers[working]
        ledger.verify(log, after_crash=False)
        ledger.append(log, [ledger.batch(5)])
        disks.machine.stop()
        assert disk.exists(f"{other}/{CLEAN_SHUTDOWN_FILE}")
        ledger.durable_end_offset = log.offsets.log_end_offset
        for survival in (NOTHING_KEPT, EVERYTHING_KEPT):
            verify_repaired(disk.reopened(survival), disks, failed, working)

    sweep = CrashSweep(TwoDisks, TwoDisks.run, count=30)
    sweep.whole.stop_and_go_on()
    sweep.at_failures(
        verify,
        expected=(),
        errors=(EIO,),
        only=lambda name: failing in name and kind_of(name) not in ("close", "real_path"),
    )


def log_of(manager: LogManager, partition: TopicPartition) -> UnifiedLog:
    """The log; one that the failure of another disk has kept from being opened is opened now."""
    if any(log.topic_partition == partition for log in manager.logs()):
        return manager.log(partition)
    return first_log(manager, partition)


def first_log(manager: LogManager, partition: TopicPartition) -> UnifiedLog:
    """The log of a partition that is new: it may be begun whichever disk is gone."""
    return manager.open_log(partition, TOPIC_ID, CONFIG, is_first_opening=True)


def verify_repaired(
    disk: FaultyFileSystem, disks: TwoDisks, failed: TopicPartition, working: TopicPartition
) -> None:
    """The machine starts with both disks: the one that failed has what was flushed."""
    # A directory that is made anew must not get the id of another one.
    manager = machine_on(disk, CONFIG, disk.operation_count + len(disk.inner.contents())).open()
    for partition in (working, failed):
        log = manager.open_log(partition, TOPIC_ID, CONFIG)
        disks.ledgers[partition].copy().verify(log, after_crash=True)
        if partition == working:
            assert log.recovery_report.was_clean
