"""The clock, the scheduler and the identifiers that tests hand in."""

from __future__ import annotations

import threading

import pytest

from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.sequential_ids import SequentialIds


def test_time_passes_only_when_told() -> None:
    clock = ManualClock(now_ms=1000)
    assert (clock.now_ms(), clock.monotonic_s()) == (1000, 0.0)
    clock.advance(250)
    clock.sleep(0.25)
    assert (clock.now_ms(), clock.monotonic_s()) == (1500, 0.5)
    clock.set_wall_ms(7)
    assert (clock.now_ms(), clock.monotonic_s()) == (7, 0.5)


def test_tasks_run_in_the_order_of_their_deadlines_at_their_time() -> None:
    clock = ManualClock(now_ms=0)
    scheduler = ManualScheduler(clock)
    runs: list[tuple[str, int]] = []

    def note(name: str) -> None:
        runs.append((name, clock.now_ms()))

    scheduler.once("late", lambda: note("late"), 30)
    scheduler.once("early", lambda: note("early"), 10)
    scheduler.every("tick", lambda: note("tick"), 20, delay_ms=20)
    cancelled = scheduler.once("never", lambda: note("never"), 15)
    cancelled.cancel()
    assert scheduler.pending() == ["early", "tick", "late"]
    clock.advance(41)
    assert runs == [("early", 10), ("tick", 20), ("late", 30), ("tick", 40)]
    scheduler.close()
    clock.advance(100)
    assert len(runs) == 4
    scheduler.once("closed", lambda: note("closed"))
    assert scheduler.pending() == []


def test_a_failing_task_fails_the_test_unless_collected() -> None:
    failure = ValueError("no")

    def fail() -> None:
        raise failure

    clock = ManualClock()
    ManualScheduler(clock).once("fails", fail)
    with pytest.RaisesExc(ValueError, check=lambda error: error is failure):
        clock.advance(0)
    collecting = ManualScheduler(clock, collect_failures=True)
    collecting.every("fails", fail, 10)
    clock.advance(10)
    assert [name for name, _ in collecting.failures] == ["fails", "fails"]


def test_a_wait_ends_by_notice_or_by_time() -> None:
    clock = ManualClock()
    condition = threading.Condition()
    results: list[bool] = []
    entered = threading.Event()

    def wait_once() -> None:
        with condition:
            entered.set()
            results.append(clock.wait(condition, 1.0))

    with condition:
        assert not clock.wait(condition, 0)
    for expire in (True, False):
        entered.clear()
        waiter = threading.Thread(target=wait_once)
        waiter.start()
        entered.wait()
        with condition:
            # The waiter holds the condition until it waits, so a thread that gets it knows that it does.
            if not expire:
                condition.notify_all()
        if expire:
            clock.advance(1000)
        waiter.join()
    assert results == [False, True]


def test_identifiers_repeat_from_run_to_run_and_never_within_one() -> None:
    def take(ids: SequentialIds) -> list[bytes]:
        return [ids.uuid().bytes for _ in range(100)] + [ids.secret(16) for _ in range(100)]

    assert take(SequentialIds(1)) == take(SequentialIds(1))
    assert len(set(take(SequentialIds(1)) + take(SequentialIds(2)))) == 400
    assert SequentialIds().uuid().version == 4
    assert len(SequentialIds().secret(33)) == 33
