"""When a partition whose cleaning failed is tried again, and that it is left alone until then."""

from __future__ import annotations

import random
from dataclasses import replace
from errno import ENOSPC

import pytest

from stratalog.base.errors import CorruptRecordError, DataDirectoryError, PreconditionFailedError
from stratalog.base.types import TopicPartition
from stratalog.cleaner.cleaner_failures import (
    ALARM_AFTER,
    FIRST_DELAY_MS,
    JITTER,
    MAX_DELAY_MS,
    CleanerFailures,
    CleaningFailure,
)
from stratalog.cleaner.cleaner_stats import UncleanableLogs, uncleanable_by_directory
from stratalog.cleaner.failure_kind import MAX_REASON_LENGTH, FailureKind, kind_of, reason_of
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import DEFAULT_NOW_MS, ManualClock
from tests.support.cleaner.cleaner_machine import COMPACTED, CleanerMachine

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
LEAST_WAIT_MS = round(FIRST_DELAY_MS * (1 - JITTER))
LAG_MS = LEAST_WAIT_MS // 4
BOUNDED = replace(COMPACTED, max_compaction_lag_ms=LAG_MS)


def failed(
    failures: CleanerFailures,
    partition: TopicPartition = FIRST,
    kind: FailureKind = FailureKind.DISK,
    directory: str = "/data",
) -> CleaningFailure:
    return failures.record(partition, directory, kind, "because", 100)


@pytest.mark.parametrize("seed", range(5))
def test_the_wait_doubles_up_to_a_bound_less_a_random_part(seed: int) -> None:
    clock = ManualClock()
    failures = CleanerFailures(clock, random.Random(seed))
    for number in range(40):
        full_ms = min(MAX_DELAY_MS, FIRST_DELAY_MS * 2**number)
        failure = failed(failures)
        delay_ms = failure.next_try_ms - clock.now_ms()
        assert full_ms * (1 - JITTER) - 1 <= delay_ms <= full_ms
        assert (failure.failure_count, failure.since_ms) == (number + 1, DEFAULT_NOW_MS)
        clock.advance(delay_ms - 1)
        assert not failures.may_try(FIRST)
        clock.advance(1)
        assert failures.may_try(FIRST)
        assert failures.may_try(SECOND)
    failures.check()


def test_two_that_failed_together_do_not_come_back_together() -> None:
    waits = set[int]()
    for seed in range(50):
        failures = CleanerFailures(ManualClock(), random.Random(seed))
        waits.add(failed(failures).next_try_ms)
        waits.add(failed(failures, SECOND).next_try_ms)
    assert len(waits) > 90


def test_a_wall_clock_that_is_put_back_keeps_nothing_waiting() -> None:
    clock = ManualClock()
    failures = CleanerFailures(clock, random.Random(0))
    failed(failures)
    clock.set_wall_ms(0)
    clock.advance(FIRST_DELAY_MS)
    assert failures.may_try(FIRST)


def test_a_reset_begins_anew() -> None:
    clock = ManualClock()
    failures = CleanerFailures(clock, random.Random(0))
    for _ in range(10):
        failed(failures)
    assert failures.reset(FIRST)
    assert failures.may_try(FIRST)
    assert not failures.reset(FIRST)
    clock.advance(5)
    failure = failed(failures)
    assert (failure.failure_count, failure.since_ms) == (1, clock.now_ms())
    assert failure.next_try_ms - clock.now_ms() <= FIRST_DELAY_MS


def test_no_progress_twice_in_a_row_is_an_alarm() -> None:
    failures = CleanerFailures(ManualClock(), random.Random(0))
    kinds = [FailureKind.NO_PROGRESS, FailureKind.DISK, FailureKind.NO_PROGRESS, FailureKind.NO_PROGRESS]
    assert [failed(failures, kind=kind).is_alarm for kind in kinds] == [False, False, False, True]
    assert ALARM_AFTER == 2
    failures.note_dirty_bytes(FIRST, 7)
    failures.note_dirty_bytes(SECOND, 7)
    (failure,) = failures.all()
    assert failure.is_alarm
    assert failure.dirty_bytes == 7


def test_what_is_not_here_any_more_is_forgotten() -> None:
    failures = CleanerFailures(ManualClock(), random.Random(0))
    failed(failures)
    failed(failures, SECOND)
    failures.keep_only(frozenset({SECOND}))
    assert [failure.partition for failure in failures.all()] == [SECOND]
    assert failures.may_try(FIRST)
    failures.check()


def test_sums_are_by_directory() -> None:
    failures = CleanerFailures(ManualClock(), random.Random(0))
    failed(failures)
    failed(failures, SECOND)
    failed(failures, TopicPartition("other", 0), directory="/other")
    assert uncleanable_by_directory(failures.all()) == {
        "/data": UncleanableLogs(2, 200),
        "/other": UncleanableLogs(1, 100),
    }


def caused_by(failure: Exception, cause: Exception) -> Exception:
    failure.__cause__ = cause
    return failure


@pytest.mark.parametrize(
    ("failure", "kind", "reason"),
    [
        (
            CorruptRecordError("not a batch", path="/x", position=3),
            "damage",
            "not a batch path=`/x` position=`3`",
        ),
        (OSError(28, "No space left"), "full disk", "[Errno 28] No space left"),
        (OSError(122, "Quota exceeded"), "full disk", "[Errno 122] Quota exceeded"),
        (OSError(5, "I/O error"), "disk", "[Errno 5] I/O error"),
        (DataDirectoryError("offline"), "disk", "offline"),
        (caused_by(DataDirectoryError("refused"), OSError(28, "full")), "full disk", "refused"),
        (caused_by(DataDirectoryError("refused"), OSError(5, "broken")), "disk", "refused"),
        (PreconditionFailedError("not confirmed"), "refused", "not confirmed"),
        (AssertionError("two\nlines"), "unexpected", "AssertionError: two lines"),
        (MemoryError(), "unexpected", "MemoryError: "),
    ],
)
def test_an_error_says_what_there_is_to_do(failure: Exception, kind: str, reason: str) -> None:
    assert kind_of(failure) is FailureKind(kind)
    assert reason_of(failure) == reason


def test_a_reason_is_bounded() -> None:
    assert len(reason_of(CorruptRecordError("x" * 10_000))) == MAX_REASON_LENGTH


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
