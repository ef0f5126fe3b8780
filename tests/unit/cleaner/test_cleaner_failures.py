"""When a partition whose cleaning failed is tried again."""

from __future__ import annotations

import random

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
from stratalog.testing.manual_clock import DEFAULT_NOW_MS, ManualClock

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


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
