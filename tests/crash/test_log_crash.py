"""A machine that dies at every single operation on its disk, and the log that it finds afterwards.

Every disk that it may find is opened as a new process would, and compared with what had been acknowledged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import pytest

from stratalog.base.types import Durability
from stratalog.log.log_config import LogConfig
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.logs.crash_moments import EVERYTHING_KEPT, NOTHING_KEPT
from tests.support.logs.crash_sweep import CrashSweep, Death, Failure
from tests.support.logs.log_ledger import LogLedger, read_local
from tests.support.logs.log_machine import NEVER_MS, PARTITION, LogMachine

TIERED = LogConfig(segment_bytes=1024, index_interval_bytes=100, min_durability=Durability.DISK)
PLAIN = LogConfig(
    segment_bytes=1024,
    index_interval_bytes=100,
    remote_storage_enable=False,
    retention_bytes=2500,
    retention_ms=-1,
)
TRANSACTIONAL = LogConfig(
    segment_bytes=1400, index_interval_bytes=100, remote_storage_enable=False, retention_ms=-1
)
# Most appends are flushed before they are acknowledged, and every segment has its space reserved.
FLUSHING = dataclasses.replace(PLAIN, flush_messages=7, preallocate=True)
FLUSHING_TIERED = dataclasses.replace(TIERED, flush_messages=1, preallocate=True)

Work = Callable[[LogMachine, LogLedger], None]


def tiered_work(machine: LogMachine, ledger: LogLedger) -> None:
    """Append, flush, roll, checkpoint, tier, drop local segments, stop, start again, append."""
    log = machine.start()
    for _ in range(4):
        ledger.append(log, [ledger.batch(3)])
    ledger.append(log, [ledger.batch(2), ledger.batch(9), ledger.batch(1)])
    ledger.flush(log)
    for _ in range(3):
        ledger.append(log, [ledger.batch(6)])
    log.roll()
    ledger.append(log, [ledger.batch(5)])
    ledger.flush(log)
    machine.checkpoint()
    ledger.append(log, [ledger.batch(8), ledger.batch(8), ledger.batch(8)])
    log.update_tiered_end_offset(log.reader.segments()[1].end_offset)
    log.retention.delete_local_segments(ignore_retention=True)
    ledger.note_starts(log)
    machine.clock.advance(60_000)
    ledger.append(log, [ledger.batch(4)])
    ledger.flush(log)
    ledger.append(log, [ledger.batch(4)])
    machine.stop()
    ledger.durable_end_offset = log.offsets.log_end_offset
    log = machine.start()
    ledger.append(log, [ledger.batch(7)])
    ledger.flush(log)
    ledger.append(log, [ledger.batch(2)])


def plain_work(machine: LogMachine, ledger: LogLedger) -> None:
    """Append, delete records, let retention drop segments, all with little flushed."""
    log = machine.start()
    for _ in range(6):
        ledger.append(log, [ledger.batch(8), ledger.batch(4)])
    log.increment_log_start_offset(21)
    ledger.note_starts(log)
    log.retention.delete_old_segments()
    ledger.note_starts(log)
    ledger.append(log, [ledger.batch(3)])
    ledger.flush(log)
    for _ in range(3):
        ledger.append(log, [ledger.batch(18)])
    machine.checkpoint()
    log.retention.delete_old_segments()
    ledger.note_starts(log)
    machine.clock.advance(60_000)
    ledger.append(log, [ledger.batch(3)])
    log.increment_log_start_offset(log.offsets.log_end_offset)
    ledger.note_starts(log)
    log.retention.delete_old_segments()
    ledger.note_starts(log)


def truncating_work(machine: LogMachine, ledger: LogLedger) -> None:
    """Start anew at lower and at higher offsets, with unequal amounts flushed before and behind."""
    log = machine.start()
    for _ in range(6):
        ledger.append(log, [ledger.batch(8)])
    ledger.flush(log)
    machine.checkpoint()
    ledger.restart_at(log, 20)
    for _ in range(8):
        ledger.append(log, [ledger.batch(6)])
    ledger.restart_at(log, 500)
    ledger.append(log, [ledger.batch(6)])
    ledger.flush(log)
    ledger.append(log, [ledger.batch(8), ledger.batch(8)])


def transactional_work(machine: LogMachine, ledger: LogLedger) -> None:
    """Producers in turn, transactions over segments, truncations into them, snapshots, owners in turn."""
    now_ms = machine.clock.now_ms()
    log = machine.start()
    for number in range(8):
        ledger.append(
            log,
            [
                ledger.producer_batch(1, 4, is_transactional=True),
                ledger.producer_batch(2, 3, is_transactional=number % 2 == 0),
                ledger.batch(1),
            ],
        )
        ledger.leader_epoch += number % 3
        if number % 3 == 2:
            ledger.end_transaction(log, 2, committed=number == 2, now_ms=now_ms)
        if number == 4:
            ledger.end_transaction(log, 1, committed=False, now_ms=now_ms)
            ledger.flush(log)
            machine.checkpoint()
    ledger.truncate_to(log, log.offsets.log_end_offset - 11)
    ledger.append(log, [ledger.producer_batch(1, 2, is_transactional=True)])
    ledger.flush(log)
    ledger.truncate_to(log, 21)
    ledger.append(log, [ledger.producer_batch(2, 2, is_transactional=False), ledger.batch(9)])
    ledger.end_transaction(log, 1, committed=False, now_ms=now_ms)
    log.roll()
    ledger.append(log, [ledger.producer_batch(1, 2, is_transactional=True)])
    machine.stop()
    ledger.durable_end_offset = log.offsets.log_end_offset
    log = machine.start()
    ledger.append(log, [ledger.producer_batch(1, 2, is_transactional=True), ledger.batch(2)])
    ledger.end_transaction(log, 1, committed=True, now_ms=now_ms)
    ledger.flush(log)
    log.increment_log_start_offset(log.reader.segments()[2].base_offset)
    ledger.note_starts(log)
    log.retention.delete_old_segments()
    ledger.note_starts(log)
    ledger.append(log, [ledger.producer_batch(2, 1, is_transactional=True)])
    ledger.end_transaction(log, 2, committed=False, now_ms=now_ms)
    # The recovery point is the end of a segment that is sealed after that, and nothing is flushed any more.
    ledger.flush(log)
    machine.checkpoint()
    log.roll()
    ledger.append(log, [ledger.batch(3)])


def rolled_work(machine: LogMachine, ledger: LogLedger) -> None:
    """Roll segments of producers and transactions that the task alone makes durable."""
    log = machine.start()
    now_ms = machine.clock.now_ms()
    for number in range(4):
        ledger.append(log, [ledger.producer_batch(1, 4, is_transactional=True)])
        ledger.append(log, [ledger.producer_batch(2, 9, is_transactional=False), ledger.batch(9)])
        ledger.end_transaction(log, 1, committed=number == 2, now_ms=now_ms)
        ledger.append(log, [ledger.batch(12)])
        ledger.flush_rolled(machine, log)
        if number % 2:
            machine.checkpoint()
    ledger.truncate_to(log, log.local_log.segments.active.base_offset - 5)
    ledger.append(log, [ledger.batch(8), ledger.producer_batch(2, 2, is_transactional=False)])
    log.roll()
    ledger.flush_rolled(machine, log)
    machine.checkpoint()
    ledger.append(log, [ledger.batch(3)])


class Cut(NamedTuple):
    """A work load with all that it needs; `sample_count` of its moments are in a sample."""

    work: Work
    config: LogConfig
    sample_count: int


WORKS = {
    "tiered": Cut(tiered_work, TIERED, 30),
    "plain": Cut(plain_work, PLAIN, 30),
    "truncating": Cut(truncating_work, PLAIN, 30),
    "truncating-tiered": Cut(truncating_work, TIERED, 12),
    "transactional": Cut(transactional_work, TRANSACTIONAL, 30),
    "rolled": Cut(rolled_work, TRANSACTIONAL, 30),
    "rolled-preallocating": Cut(rolled_work, dataclasses.replace(TRANSACTIONAL, preallocate=True), 12),
    "tiered-flushing": Cut(tiered_work, FLUSHING_TIERED, 12),
    "plain-flushing": Cut(plain_work, FLUSHING, 12),
    "truncating-flushing": Cut(truncating_work, FLUSHING, 12),
}
all_works = pytest.mark.parametrize("cut", WORKS.values(), ids=WORKS)


class Worker:
    """A machine, and the ledger of the log on it."""

    def __init__(self, cut: Cut) -> None:
        self.disk = FaultyFileSystem()
        self.machine = new_machine(self.disk, cut.config)
        self.ledger = LogLedger()
        self._cut = cut

    def run(self) -> None:
        self._cut.work(self.machine, self.ledger)

    @staticmethod
    def sweep(cut: Cut) -> CrashSweep[Worker]:
        sweep = CrashSweep(lambda: Worker(cut), Worker.run, count=cut.sample_count)
        machine = sweep.whole.machine
        sweep.whole.ledger.verify(machine.manager.log(PARTITION), after_crash=False)
        assert not machine.scheduler.failures
        return sweep

    def verify_found(self, disk: FaultyFileSystem) -> None:
        """Open what is left, twice, because what was served once must be there again if the machine dies at
        once; then append to it."""
        config = self._cut.config
        found = self.ledger.copy()
        log = new_machine(disk, config).start()
        assert log.offsets.high_watermark == log.offsets.log_end_offset
        found.verify(log, after_crash=True)
        again = disk.reopened(NOTHING_KEPT)
        log = new_machine(again, config).start()
        assert read_local(log) == list(found.acknowledged.values())
        found.append(log, [found.batch(3)])
        found.flush(log)
        found.verify(new_machine(again.reopened(NOTHING_KEPT), config).start(), after_crash=True)


def new_machine(disk: FaultyFileSystem, config: LogConfig) -> LogMachine:
    return LogMachine(disk, config, producer_id_expiration_ms=NEVER_MS)


@all_works
def test_dying_at_every_operation_loses_nothing_that_was_flushed(cut: Cut) -> None:
    def verify(death: Death[Worker]) -> None:
        for disk in death.disks():
            death.subject.verify_found(disk)

    Worker.sweep(cut).at_deaths(verify)


@all_works
def test_a_disk_that_fails_once_leaves_no_half_truths(cut: Cut) -> None:
    """Steps may fail; what is acknowledged is there, what was refused is not."""

    def verify(failure: Failure[Worker]) -> None:
        worker, ledger = failure.subject, failure.subject.ledger
        for log in worker.machine.manager.logs() if worker.machine.is_running else ():
            if not log.availability.is_offline and not log.availability.is_closed:
                ledger.append(log, [ledger.batch(2)])
                ledger.verify(log, after_crash=False)
        for survival in (NOTHING_KEPT, EVERYTHING_KEPT):
            worker.verify_found(worker.disk.reopened(survival))

    Worker.sweep(cut).at_failures(verify)


def test_dying_at_each_operation_of_the_flush_of_rolled_segments_keeps_its_promise() -> None:
    """Whatever the disk keeps, the log that is found reaches the recovery point that was seen or written
    down."""

    def flush(worker: Worker) -> None:
        worker.ledger.flush_rolled(worker.machine, worker.machine.manager.log(PARTITION))
        worker.machine.checkpoint()

    def prepared() -> Worker:
        worker = Worker(Cut(rolled_work, TRANSACTIONAL, 0))
        log = worker.machine.start()
        for _ in range(4):
            worker.ledger.append(log, [worker.ledger.producer_batch(1, 9, is_transactional=True)])
            worker.ledger.append(log, [worker.ledger.batch(9)])
            worker.ledger.end_transaction(log, 1, committed=False, now_ms=worker.machine.clock.now_ms())
        assert log.offsets.recovery_point == 0 < log.local_log.segments.active.base_offset
        return worker

    def verify(death: Death[Worker]) -> None:
        worker = death.subject
        seen_offset = worker.machine.manager.log(PARTITION).offsets.recovery_point
        worker.ledger.durable_end_offset = max(worker.ledger.durable_end_offset, seen_offset)
        for disk in death.disks():
            worker.verify_found(disk)

    sweep = CrashSweep(prepared, flush)
    log = sweep.whole.machine.manager.log(PARTITION)
    assert log.offsets.recovery_point == log.local_log.segments.active.base_offset
    sweep.at_deaths(verify)
