"""A machine that dies, or whose disk fails, at every single operation of a clean.

What is found afterwards is the log as it was before the clean, or after the exchange of its first group of
segments, or of its second, and so on: never anything between. That it is right, and not only one of these,
the oracle says. A lost checkpoint must not make a difference: a clean leaves no hole that could be taken for
lost data.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.cleaner.cleaning_state import CleaningAbortedError
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.checkpoint import RECOVERY_POINT_FILE
from stratalog.log.log_config import CompactionStrategy
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaning_history import CONFIG, CleaningHistory, limits
from tests.support.compaction.versions import winners
from tests.support.logs.crash_moments import EVERYTHING_KEPT, NOTHING_KEPT
from tests.support.logs.crash_sweep import CrashSweep, Death, Failure
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import DATA_DIR, NEVER_MS, SMALL_SEGMENTS, LogMachine


class CutOffClean:
    """A log that was cleaned once, written to again, and is about to be cleaned; always the same."""

    def __init__(self) -> None:
        self.disk = disk = FaultyFileSystem()
        self.history = history = CleaningHistory(random.Random(11), disk)
        for _ in range(3):
            for _ in range(4):
                history.write()
                history.write_as(1)
            history.end_transaction(1, committed=False)
            history.write_as(2)
            history.end_transaction(2, committed=True)
        history.log.roll()
        history.write()
        assert history.clean() is not None
        # The markers get their time, and in the clean that dies they go.
        for passed_ms in (1, 60_000):
            assert history.log.offsets.log_end_offset > 0
            history.machine.clock.advance(passed_ms)
            for _ in range(7):
                history.write()
                history.write_as(0)
            history.end_transaction(0, committed=passed_ms == 1)
            history.log.roll()
            history.write()
            if passed_ms == 1:
                assert history.clean() is not None
        history.write_as(1)
        history.log.flusher.flush()
        history.machine.checkpoint()
        # What was replaced before is gone, and nothing that was scheduled comes in between.
        history.machine.clock.advance(60_000)
        self.stop_offset = history.stop_offsets()[-1]
        self.now_ms = history.machine.clock.now_ms()

    def run(self, on_step: Callable[[], None] = lambda: None) -> None:
        """The clean."""
        history = self.history
        result = history.clean_log.run(history.to_clean(self.stop_offset), limits(1000, on_step))
        assert result.stats.cleaned_segment_count > 3
        assert result.end_offset == self.stop_offset

    def note_broken_off(self) -> None:
        self.history.oracle.note_clean(self.stop_offset, self.now_ms, None)

    def found_on(self, disk: FaultyFileSystem) -> UnifiedLog:
        """The log as another process finds it."""
        machine = LogMachine(disk, CONFIG, producer_id_expiration_ms=NEVER_MS)
        machine.clock.set_wall_ms(self.now_ms)
        return machine.start()


class Witness:
    """The states of the log on the way of a clean to which nothing happens."""

    def __init__(self) -> None:
        clean = CutOffClean()
        self.states: list[list[Record]] = [read_local(clean.history.log)]
        self.producers = known_producers(clean.history.log)

        def note_state() -> None:
            records = read_local(clean.history.log)
            if records != self.states[-1]:
                self.states.append(records)

        clean.run(note_state)
        note_state()
        assert len(self.states) > 3

    def verify_found(self, clean: CutOffClean, disk: FaultyFileSystem) -> int:
        """Open the disk, prove the log, open it again after a power loss, and clean it to the end. Returns
        the number of its state."""
        log = clean.found_on(disk)
        records = clean.history.oracle.verify(log, self.states[0], is_finished=False)
        assert records in self.states
        assert not [
            name
            for name in disk.list_directory(log.local_log.directory)
            if name.endswith((".cleaned", ".swap"))
        ]
        assert log.recovery_report.remains == ()
        assert known_producers(log) == self.producers
        again = clean.found_on(disk.reopened(NOTHING_KEPT))
        assert read_local(again) == records
        to_clean = clean.history.to_clean(clean.stop_offset)._replace(log=again)
        history = clean.history
        result = LogClean(history.machine.clock, history.machine_ids).run(to_clean, limits())
        assert result.end_offset == clean.stop_offset
        again.check()
        assert [one.offset for one in read_local(again)] == [one.offset for one in self.states[-1]]
        return self.states.index(records)


def known_producers(log: UnifiedLog) -> list[tuple[int, int, int]]:
    return [(entry.producer_id, entry.epoch, entry.last_sequence) for entry in log.producers()]


@pytest.fixture(scope="module")
def witness() -> Witness:
    return Witness()


def test_dying_at_every_operation_of_a_clean_leaves_one_of_its_states(witness: Witness) -> None:
    met: set[int] = set()

    def verify(death: Death[CutOffClean]) -> None:
        clean = death.subject
        clean.note_broken_off()
        for disk in death.disks():
            without_checkpoint = disk.reopened(EVERYTHING_KEPT)
            without_checkpoint.unlink(f"{DATA_DIR}/{RECOVERY_POINT_FILE}")
            met.add(witness.verify_found(clean, disk))
            witness.verify_found(clean, without_checkpoint)

    CrashSweep(CutOffClean, CutOffClean.run, count=12).at_deaths(verify)
    assert len(met) > 2, "the machine never died in the midst of a clean"


def test_a_disk_that_fails_once_leaves_one_of_the_states(witness: Witness) -> None:
    outcomes: set[tuple[type, bool]] = set()

    def verify(failure: Failure[CutOffClean]) -> None:
        clean = failure.subject
        clean.note_broken_off()
        log = clean.history.log
        if not log.availability.is_offline:
            with suppress(LogStoreError):
                assert read_local(log) in witness.states
                clean.history.oracle.verify(log, witness.states[0], is_finished=False)
        outcomes.add((type(failure.error), log.availability.is_offline))
        witness.verify_found(clean, clean.disk.reopened(NOTHING_KEPT))
        witness.verify_found(clean, clean.disk.killed())

    sweep = CrashSweep(CutOffClean, CutOffClean.run, count=12)
    sweep.at_failures(verify, expected=(OSError, LogStoreError))
    assert len(outcomes) > 1


class DeletionBesideAClean:
    """A clean by versions. Records are deleted when it looks for the time `look`; then it is repeated."""

    def __init__(self, look: int) -> None:
        self.disk = FaultyFileSystem()
        config = dataclasses.replace(
            SMALL_SEGMENTS,
            cleanup_policy=frozenset({"compact"}),
            compaction_strategy=CompactionStrategy.TIMESTAMP,
        )
        self.machine = LogMachine(self.disk, config, producer_id_expiration_ms=NEVER_MS)
        self.log = self.machine.start()
        self.written: list[Record] = []
        for key, timestamp_ms, value in (
            (b"a", 9, b"high"),
            (b"b", 9, None),
            (b"a", 3, b"low"),
            (b"b", 5, b"late"),
            (b"b", 3, b"later"),
        ):
            # Each in a segment of its own.
            one = Record(len(self.written), timestamp_ms, key, value)
            self.log.appender.append_as_leader(encode_batch([one]), 1)
            self.log.roll()
            self.written.append(one)
        self.log.flusher.flush()
        self.machine.checkpoint()
        self.deleted_until = 0
        """Below it records were deleted, and that was acknowledged."""
        self.has_deleted = False
        self._look = look

    def run(self) -> None:
        ids, clock = SequentialIds(), self.machine.clock
        with suppress(CleaningAbortedError):
            LogClean(clock, ids).run(self.to_clean(), limits(on_step=self._on_look))
        if self.has_deleted:
            LogClean(clock, ids).run(self.to_clean(), limits())

    def _on_look(self) -> None:
        self._look -= 1
        if self._look == 0:
            # All but the lower versions.
            self.log.increment_log_start_offset(2)
            self.deleted_until, self.has_deleted = 2, True

    def to_clean(self) -> LogToClean:
        return LogToClean(
            log=self.log,
            first_dirty_offset=self.log.offsets.log_start_offset,
            first_uncleanable_offset=self.log.local_log.segments.active.base_offset,
            clean_bytes=0,
            cleanable_bytes=1,
            compaction_delay_ms=0,
        )

    def table_from(self, start_offset: int) -> dict[bytes | None, Record]:
        """The winners among the records from there on, as readers must find them."""
        readable = [one for one in self.written if one.offset >= start_offset]
        return {one.key: one for one in winners(readable, "timestamp")}


@pytest.mark.parametrize("phase", range(3))
def test_a_death_beside_a_deletion_brings_no_record_back_and_loses_none(phase: int) -> None:
    """With versions a record that is deleted may have been better than one that stays."""
    look_count = 0
    rehearsal = DeletionBesideAClean(0)

    def count() -> None:
        nonlocal look_count
        look_count += 1

    LogClean(rehearsal.machine.clock, SequentialIds()).run(rehearsal.to_clean(), limits(on_step=count))
    look = 1 + (look_count - 1) * phase // 2
    starts: set[int] = set()

    def verify(death: Death[DeletionBesideAClean]) -> None:
        subject = death.subject
        for disk in death.disks():
            machine = LogMachine(disk, subject.machine.config, producer_id_expiration_ms=NEVER_MS)
            log = machine.start()
            start_offset = log.offsets.log_start_offset
            starts.add(start_offset)
            assert start_offset >= subject.deleted_until
            found = read_local(log)
            assert all(one.offset >= start_offset for one in found)
            assert {one.key: one for one in winners(found, "timestamp")} == subject.table_from(start_offset)
            log.check()

    sweep = CrashSweep(lambda: DeletionBesideAClean(look), DeletionBesideAClean.run, count=12)
    assert sweep.whole.has_deleted
    sweep.at_deaths(verify, always=lambda name: name.startswith("rename "))
    assert starts == {0, 2}
