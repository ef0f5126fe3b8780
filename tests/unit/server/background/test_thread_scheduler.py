"""The scheduler of a running server: real threads, synchronised by events only."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from stratalog.base.errors import StoreUnavailableError
from stratalog.server.background.thread_scheduler import ThreadScheduler

PATIENCE_S = 30.0
LONG_MAX = 2**63 - 1


@pytest.fixture
def scheduler() -> Iterator[ThreadScheduler]:
    scheduler = ThreadScheduler(2)
    yield scheduler
    scheduler.close()


def test_earlier_tasks_run_first_whatever_the_order_of_scheduling() -> None:
    scheduler = ThreadScheduler(1)
    order: list[str] = []
    done = threading.Event()
    scheduler.once("last", done.set, delay_ms=60)
    scheduler.once("second", lambda: order.append("second"), delay_ms=40)
    scheduler.once("first", lambda: order.append("first"), delay_ms=20)
    assert done.wait(PATIENCE_S)
    scheduler.close()
    assert order == ["first", "second"]


def test_a_periodic_task_survives_its_failures(
    scheduler: ThreadScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []
    done = threading.Event()

    def fail_twice() -> None:
        runs.append(len(runs))
        if len(runs) == 1:
            raise StoreUnavailableError("the store is away")
        if len(runs) == 2:
            raise ValueError("a defect")
        done.set()

    with caplog.at_level(logging.WARNING):
        scheduler.every("flaky", fail_twice, 1)
        assert done.wait(PATIENCE_S)
    expected, defect = caplog.records[:2]
    assert (expected.levelno, expected.exc_info) == (logging.WARNING, None)
    assert defect.levelno == logging.ERROR
    assert defect.exc_info is not None


def test_runs_of_one_task_never_overlap(scheduler: ThreadScheduler) -> None:
    running = threading.Lock()
    overlaps: list[int] = []
    done = threading.Event()
    runs: list[int] = []

    def run() -> None:
        if not running.acquire(blocking=False):
            overlaps.append(1)
            return
        runs.append(1)
        running.release()
        if len(runs) == 20:
            done.set()

    scheduler.every("task", run, 1)
    assert done.wait(PATIENCE_S)
    assert not overlaps


def test_a_task_that_is_due_does_not_wait_for_the_timekeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_at_once(_: ThreadScheduler) -> None: ...

    monkeypatch.setattr(ThreadScheduler, "_keep_time", end_at_once)
    scheduler = ThreadScheduler(1)
    done = threading.Event()
    scheduler.once("due", done.set)
    assert done.wait(PATIENCE_S)
    scheduler.close()


def test_a_cancelled_task_does_not_begin(scheduler: ThreadScheduler) -> None:
    ran = threading.Event()
    later = threading.Event()
    scheduler.once("cancelled", ran.set, delay_ms=20).cancel()
    scheduler.once("later", later.set, delay_ms=60)
    assert later.wait(PATIENCE_S)
    assert not ran.is_set()


def test_close_waits_for_what_runs_and_forgets_what_waits() -> None:
    scheduler = ThreadScheduler(2)
    started, release, finished, never = (threading.Event() for _ in range(4))

    def slow() -> None:
        started.set()
        assert release.wait(PATIENCE_S)
        finished.set()

    scheduler.once("slow", slow)
    scheduler.once("never", never.set, delay_ms=3_600_000)
    assert started.wait(PATIENCE_S)
    closer = threading.Thread(target=scheduler.close)
    closer.start()
    release.set()
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    assert finished.is_set()
    assert not never.is_set()
    scheduler.once("after", never.set)
    assert not never.is_set()


def test_waits_that_are_longer_than_any_do_not_stop_the_others(scheduler: ThreadScheduler) -> None:
    ran, never = threading.Event(), threading.Event()
    scheduler.every("never", never.set, LONG_MAX, delay_ms=LONG_MAX)
    scheduler.once("never", never.set, delay_ms=LONG_MAX)
    waited = threading.Event()
    # The timekeeper has met the long waits when this runs, and waits for them alone then.
    scheduler.once("first", waited.set, delay_ms=10)
    assert waited.wait(PATIENCE_S)
    scheduler.once("task", ran.set, delay_ms=10)
    assert ran.wait(PATIENCE_S)
    assert (never.is_set(), scheduler.failure_count) == (False, 0)


def test_the_timekeeper_survives_a_pool_that_has_no_thread(
    scheduler: ThreadScheduler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin = threading.Thread.start
    refused: list[threading.Thread] = []

    def refuse_once(thread: threading.Thread) -> None:
        if not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    monkeypatch.setattr("stratalog.server.background.thread_scheduler.PAUSE_S", 0.01)
    runs: list[int] = []
    done = threading.Event()

    def run() -> None:
        runs.append(len(runs))
        if len(runs) == 5:
            done.set()

    scheduler.once("once", lambda: runs.append(-1))
    scheduler.every("task", run, 1)
    assert done.wait(PATIENCE_S)
    assert (len(refused), scheduler.failure_count, runs.count(-1)) == (1, 1, 1)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
