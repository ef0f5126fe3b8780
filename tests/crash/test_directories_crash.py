"""A machine with two disks, one of which fails at every operation in turn.

The work writes to logs of both disks, rolls, drops, truncates, deletes and checkpoints. The logs of the other
disk go on as if nothing were, lose nothing, and are closed in order; nothing is done to the failed disk any
more; and when it works again the next process finds on it what had been flushed. `test_manager_crash` has the
deaths.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.locked_directory import CLEAN_SHUTDOWN_FILE
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.manager.log_manager import LogManager
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.crash_moments import EVERYTHING_KEPT, NOTHING_KEPT, ONLY_LOOKING
from tests.support.logs.log_ledger import LogLedger
from tests.support.logs.log_machine import NEVER_MS, TOPIC_ID, LogMachine
from tests.support.logs.sampling import Sampling

A, B = "/disk-a", "/disk-b"
CONFIG = LogConfig(
    segment_bytes=1024,
    index_interval_bytes=100,
    remote_storage_enable=False,
    retention_bytes=2500,
    retention_ms=-1,
)
FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
GONE = [TopicPartition("gone", number) for number in range(2)]


class TwoDisks:
    """The work, and what each log acknowledged. `FIRST` is on the first disk, `SECOND` on the second."""

    def __init__(self, disk: FaultyFileSystem) -> None:
        self.disk = disk
        self.machine = new_machine(disk)
        self.ledgers = {FIRST: LogLedger(), SECOND: LogLedger()}
        self.is_failing = False

    def run(self) -> None:
        """Start, write, stop, start again, write; whatever fails on a disk is that disk's loss."""
        manager = self.machine.open()
        for partition in (FIRST, SECOND):
            self._attempt(partial(self._write, manager, partition))
        self._attempt(partial(self._drop, manager))
        self._attempt(manager.checkpoint)
        for partition in (FIRST, SECOND):
            self._attempt(partial(self._cut, manager, partition))
        self._attempt(manager.tasks.flush_old)

    def stop_and_go_on(self) -> None:
        """A stop in order, and a process that appends a little."""
        self._attempt(self.machine.stop)
        for ledger in self.ledgers.values():
            ledger.durable_end_offset = max(ledger.acknowledged, default=-1) + 1
        manager = self.machine.open()
        for partition in (FIRST, SECOND):
            log = manager.open_log(partition, TOPIC_ID, CONFIG)
            self.ledgers[partition].append(log, [self.ledgers[partition].batch(4)])
            self.ledgers[partition].flush(log)

    def _attempt(self, step: Callable[[], object]) -> None:
        try:
            step()
        except LogStoreError:
            assert self.is_failing

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


def new_machine(disk: FaultyFileSystem) -> LogMachine:
    # Whoever makes a directory anew must not give it the id of another one.
    ids = SequentialIds(disk.operation_count + len(disk.inner.contents()))
    return LogMachine(disk, CONFIG, producer_id_expiration_ms=NEVER_MS, data_dirs=(A, B), ids=ids)


def traced() -> tuple[list[str], int]:
    """The operations of the whole work, and how many of them come before the stop."""
    disks = TwoDisks(FaultyFileSystem())
    disks.run()
    count = disks.disk.operation_count
    disks.stop_and_go_on()
    assert not disks.machine.scheduler.failures
    manager = disks.machine.manager
    assert manager is not None
    assert [manager.directory_of(partition) for partition in (FIRST, SECOND)] == [A, B]
    for partition, ledger in disks.ledgers.items():
        ledger.verify(manager.log(partition), after_crash=False)
    return list(disks.disk.trace), count


@pytest.mark.parametrize("failing", [A, B])
def test_a_disk_that_fails_at_any_operation_costs_nothing_on_the_other(failing: str) -> None:
    trace, count = traced()
    partitions = {A: FIRST, B: SECOND}
    failed, working = partitions[failing], partitions[B if failing == A else A]
    other = B if failing == A else A
    failed_count = 0
    sampling = Sampling()
    for operation, name in enumerate(trace[:count], start=1):
        kind = name.split(" ")[0]
        if failing not in name or kind in ("close", "real_path"):
            continue
        if not sampling.one_in(4 if kind in ONLY_LOOKING else 1):
            continue
        disk = FaultyFileSystem()
        disk.fail_at(operation, part=0.5)
        disks = TwoDisks(disk)
        disks.is_failing = True
        disks.run()
        manager = disks.machine.manager
        assert manager is not None
        states = {status.path: status.state for status in manager.directories()}
        assert states == {failing: DirectoryState.OFFLINE, other: DirectoryState.LIVE}, name
        assert disks.machine.all_failed_count == 0
        touched = [one for one in disk.trace[operation:] if failing in one and not one.startswith("close ")]
        assert not [one for one in touched if not one.startswith("real_path ")], name
        # The other one has everything, and goes on.
        log = log_of(manager, working)
        disks.ledgers[working].verify(log, after_crash=False)
        disks.ledgers[working].append(log, [disks.ledgers[working].batch(5)])
        disks.machine.stop()
        assert disk.exists(f"{other}/{CLEAN_SHUTDOWN_FILE}")
        disks.ledgers[working].durable_end_offset = log.offsets.log_end_offset
        for survival in (NOTHING_KEPT, EVERYTHING_KEPT):
            verify_repaired(disk.reopened(survival), disks, failed, working)
        failed_count += 1
    assert failed_count > 60


def log_of(manager: LogManager, partition: TopicPartition) -> UnifiedLog:
    """The log; one that the failure of another disk has kept from being opened is opened now."""
    if any(log.topic_partition == partition for log in manager.logs()):
        return manager.log(partition)
    return first_log(manager, partition)


def first_log(manager: LogManager, partition: TopicPartition) -> UnifiedLog:
    """The log of a partition that nobody has had before: it may be begun whichever disk is gone."""
    return manager.open_log(partition, TOPIC_ID, CONFIG, is_first_opening=True)


def verify_repaired(
    disk: FaultyFileSystem, disks: TwoDisks, failed: TopicPartition, working: TopicPartition
) -> None:
    """The machine starts with both disks: the one that failed has what was flushed."""
    manager = new_machine(disk).open()
    for partition in (working, failed):
        log = manager.open_log(partition, TOPIC_ID, CONFIG)
        disks.ledgers[partition].copy().verify(log, after_crash=True)
        if partition == working:
            assert log.recovery_report.was_clean
