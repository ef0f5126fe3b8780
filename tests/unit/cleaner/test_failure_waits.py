"""A log whose cleaning failed is left alone until its wait is over, in all that workers do to it."""

from __future__ import annotations

from dataclasses import replace
from errno import ENOSPC

import pytest

from stratalog.cleaner.cleaner_failures import FIRST_DELAY_MS, JITTER, MAX_DELAY_MS
from stratalog.cleaner.failure_kind import FailureKind
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from tests.support.cleaner.cleaner_machine import COMPACTED, CleanerMachine

LEAST_WAIT_MS = round(FIRST_DELAY_MS * (1 - JITTER))
LAG_MS = LEAST_WAIT_MS // 4
BOUNDED = replace(COMPACTED, max_compaction_lag_ms=LAG_MS)


def test_a_topic_that_is_made_anew_is_cleaned_at_once() -> None:
    """The failures of the one that had its name before, and their wait of half an hour, go with it."""
    machine = CleanerMachine()
    cleanings = machine.log_manager.cleaner
    log = machine.open(0)
    machine.fill(log, 2)
    for _ in range(12):
        found = cleanings.take_filthiest()
        assert found is not None
        cleanings.failed(log, OSError(ENOSPC, "no space"))
        machine.clock.advance(MAX_DELAY_MS)
    found = cleanings.take_filthiest()
    assert found is not None
    cleanings.failed(log, OSError(ENOSPC, "no space"))
    [failure] = cleanings.failures()
    assert failure.failure_count == 13
    assert cleanings.take_filthiest() is None
    # No worker looks at all logs in between.
    machine.log_manager.delete_log(log.topic_partition)
    assert cleanings.failures() == ()
    again = machine.open(0)
    machine.fill(again, 2)
    found = cleanings.take_filthiest()
    assert found is not None
    assert found.log is again
    # Its first failure is that, with the shortest wait there is.
    cleanings.failed(again, OSError(ENOSPC, "no space"))
    [failure] = cleanings.failures()
    assert (failure.failure_count, failure.since_ms) == (1, machine.clock.now_ms())
    assert failure.next_try_ms <= machine.clock.now_ms() + FIRST_DELAY_MS
    cleanings.check()


def test_an_idle_log_is_not_sealed_before_its_wait_is_over() -> None:
    machine = CleanerMachine()
    log = machine.open(0, BOUNDED)
    machine.fill(log, 2)
    found = machine.manager.take_filthiest()
    assert found is not None
    machine.manager.failed(log, OSError(ENOSPC, "no space"))
    log.appender.append_as_leader(encode_batch([Record(0, machine.clock.now_ms(), b"k", b"v")]), 1)
    machine.clock.advance(2 * LAG_MS)
    assert machine.manager.take_filthiest() is None
    assert (log.local_log.segments.active.base_offset, log.offsets.log_end_offset) == (2, 3)
    machine.clock.advance(FIRST_DELAY_MS)
    found = machine.manager.take_filthiest()
    assert found is not None
    assert (log.local_log.segments.active.base_offset, found.first_uncleanable_offset) == (3, 3)


def test_a_log_that_cannot_be_sealed_has_failed_once_for_each_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often workers look: the disk is full, and each try would write to it again."""
    machine = CleanerMachine()
    log = machine.open(0, BOUNDED)
    tries: list[int] = []

    def refuse(*, only_if_idle: bool = False) -> None:
        assert only_if_idle
        tries.append(machine.clock.elapsed_ms)
        raise OSError(ENOSPC, "no space")

    monkeypatch.setattr(log, "roll", refuse)
    for _ in range(LEAST_WAIT_MS // 1000):
        assert machine.manager.take_filthiest() is None
        machine.clock.advance(1000)
    [failure] = machine.manager.failures()
    assert (failure.kind, failure.failure_count) == (FailureKind.FULL_DISK, 1)
    assert tries == [0]
    machine.clock.advance(FIRST_DELAY_MS)
    assert machine.manager.take_filthiest() is None
    assert len(tries) == machine.manager.failures()[0].failure_count == 2
