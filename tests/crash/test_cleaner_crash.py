"""A machine that dies, or whose disk fails, at every single operation of a clean.

What is found afterwards is the log as it was before the clean, or after the exchange of its first group of
segments, or of its second, and so on: never anything between. That it is right, and not only one of these,
the oracle says. A lost checkpoint must not make a difference: a clean leaves no hole that could be taken for
lost data.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.cleaner.clean.log_cleaner import LogCleaner
from stratalog.log.checkpoint import RECOVERY_POINT_FILE
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.memory_filesystem import Kept, Survival
from tests.support.cleaner.cleaning_history import CONFIG, CleaningHistory, limits
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import DATA_DIR, NEVER_MS, LogMachine
from tests.support.logs.sampling import Sampling

SURVIVALS = (
    *(Survival(contents, names) for contents in (Kept.NONE, Kept.ALL) for names in (Kept.NONE, Kept.ALL)),
    Survival(Kept.ALL, Kept.HALF),
    Survival(Kept.HALF, Kept.ALL),
    Survival(Kept.NOISE, Kept.ALL),
)
NOTHING_KEPT = Survival(Kept.NONE, Kept.NONE)
ONLY_LOOKING = frozenset(
    {"read_at", "size", "read_file", "list_directory", "exists", "is_directory", "file_size", "modified_ms"}
    | {"read_into", "open_read", "close", "free_bytes", "link_count", "real_path"}
)
ENTRY_COUNT = 5


class CutOffClean:
    """A log that was cleaned once, written to again, and is about to be cleaned; always the same."""

    def __init__(self, disk: FaultyFileSystem) -> None:
        history = CleaningHistory(random.Random(11), disk)
        self.disk = disk
        self.history = history
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
            assert history.log.log_end_offset > 0
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
        history.log.flush()
        history.machine.checkpoint()
        # What was replaced before is gone, and nothing that was scheduled comes in between.
        history.machine.clock.advance(60_000)
        self.stop_offset = history.stop_offsets()[-1]
        self.now_ms = history.machine.clock.now_ms()
        self.first_operation = disk.operation_count + 1

    def run(self, on_step: Callable[[], None] = lambda: None) -> None:
        """The clean."""
        history = self.history
        result = history.cleaner.clean(history.to_clean(self.stop_offset), limits(1000, on_step))
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
    """What a clean does when nothing happens: its operations, and the states of the log on the way."""

    def __init__(self) -> None:
        clean = CutOffClean(FaultyFileSystem())
        clean.run()
        self.first_operation = clean.first_operation
        self.trace = list(clean.disk.trace)
        # Again, because looking at the log is an operation, too.
        clean = CutOffClean(FaultyFileSystem())
        self.states: list[list[Record]] = [read_local(clean.history.log)]
        self.entries = clean.history.log.producers()

        def note_state() -> None:
            records = read_local(clean.history.log)
            if records != self.states[-1]:
                self.states.append(records)

        clean.run(note_state)
        note_state()
        assert len(self.states) > 3

    def deaths(self) -> Iterator[tuple[int, float]]:
        for operation, name in enumerate(self.trace, start=1):
            kind = name.split(" ")[0]
            if operation >= self.first_operation and kind not in ONLY_LOOKING:
                yield operation, 0.0
                if kind == "append":
                    yield operation, 0.5


@pytest.fixture(scope="module")
def witness() -> Witness:
    return Witness()


def test_dying_at_every_operation_of_a_clean_leaves_one_of_its_states(witness: Witness) -> None:
    sampling = Sampling()
    met: set[int] = set()
    for operation, part in sampling.some(witness.deaths(), 4):
        disk = FaultyFileSystem()
        clean = CutOffClean(disk)
        disk.crash_at(operation, part=part)
        with pytest.raises(SimulatedCrash):
            clean.run()
        clean.note_broken_off()
        verified: list[dict[str, bytes | None]] = []
        of_each = (Survival(Kept.EACH, names, seed=operation) for names in (Kept.ALL, Kept.EACH))
        for survival in (*SURVIVALS, *of_each):
            found = disk.reopened(survival)
            if (contents := found.inner.contents()) not in verified:
                verified.append(contents)
                met.add(verify_found(witness, clean, found))
                verify_found(witness, clean, without_checkpoint(disk.reopened(survival)))
        met.add(verify_found(witness, clean, disk.killed()))
    assert len(met) > 2, "the machine never died in the midst of a clean"


def without_checkpoint(disk: FaultyFileSystem) -> FaultyFileSystem:
    """The same disk, on which nobody finds what was known to be durable."""
    disk.unlink(f"{DATA_DIR}/{RECOVERY_POINT_FILE}")
    return disk


def verify_found(witness: Witness, clean: CutOffClean, disk: FaultyFileSystem) -> int:
    """Open what is left, prove it, open it again after a power loss, and clean it to the end. Returns which
    state it is."""
    log = clean.found_on(disk)
    records = clean.history.oracle.verify(log, witness.states[0], is_finished=False)
    assert records in witness.states
    assert not [name for name in disk.list_directory(log.directory) if name.endswith((".cleaned", ".swap"))]
    assert log.recovery_report.remains == ()
    known = [(entry.producer_id, entry.epoch, entry.last_sequence) for entry in log.producers()]
    assert known == [(entry.producer_id, entry.epoch, entry.last_sequence) for entry in witness.entries]
    again = clean.found_on(disk.reopened(NOTHING_KEPT))
    assert read_local(again) == records
    to_clean = clean.history.to_clean(clean.stop_offset)._replace(log=again)
    history = clean.history
    result = LogCleaner(history.machine.clock, history.machine_ids).clean(to_clean, limits())
    assert result.end_offset == clean.stop_offset
    again.check()
    assert [one.offset for one in read_local(again)] == [one.offset for one in witness.states[-1]]
    return witness.states.index(records)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_once_leaves_one_of_the_states(witness: Witness, number: int) -> None:
    sampling = Sampling()
    outcomes: set[str] = set()
    for operation in range(witness.first_operation, len(witness.trace) + 1):
        kind = witness.trace[operation - 1].split(" ")[0]
        if not sampling.one_in(12 if kind in ONLY_LOOKING else 4):
            continue
        disk = FaultyFileSystem()
        clean = CutOffClean(disk)
        disk.fail_at(operation, number=number, part=0.5)
        outcome = "done"
        try:
            clean.run()
        except (OSError, LogStoreError) as failure:
            outcome = type(failure).__name__
        clean.note_broken_off()
        log = clean.history.log
        if not log.is_offline:
            with suppress(LogStoreError):
                assert read_local(log) in witness.states
                clean.history.oracle.verify(log, witness.states[0], is_finished=False)
        outcomes.add(f"{outcome} {log.is_offline}")
        verify_found(witness, clean, disk.reopened(NOTHING_KEPT))
        verify_found(witness, clean, disk.killed())
    assert len(outcomes) > 1
