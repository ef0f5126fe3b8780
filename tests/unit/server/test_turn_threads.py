"""Threads for turns: few, started when needed, and nothing that was taken is lost."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest

from stratalog.server.turn_threads import TurnThreads, note_step
from stratalog.testing.manual_clock import ManualClock

PATIENCE_S = 30.0


def test_threads_start_where_none_is_idle_up_to_the_limit() -> None:
    threads, may_end, ran = TurnThreads(2, "test"), threading.Event(), threading.Semaphore(0)
    names: list[str] = []

    def stand_still(begun: threading.Event) -> None:
        names.append(threading.current_thread().name)
        begun.set()
        may_end.wait(PATIENCE_S)

    try:
        assert threads.threads == ()
        for count in (1, 2):
            begun = threading.Event()
            threads.submit(stand_still, begun)
            assert begun.wait(PATIENCE_S)
            assert len(threads.threads) == count
        assert names == ["test_0", "test_1"]
        for _ in range(3):
            threads.submit(ran.release)
        assert (len(threads.threads), threads.waiting_count) == (2, 3)
    finally:
        may_end.set()
        threads.shutdown()
    assert [ran.acquire(blocking=False) for _ in range(4)] == [True, True, True, False]


def test_the_thread_that_became_idle_last_takes_the_next_task() -> None:
    threads, names = TurnThreads(4, "test"), SimpleQueue[str]()

    def run() -> str:
        threads.submit(lambda: names.put(threading.current_thread().name))
        return names.get(timeout=PATIENCE_S)

    def await_idle(count: int) -> None:
        while threads.idle_count != count:
            threading.Event().wait(0.001)

    both = threading.Barrier(2)
    for _ in range(2):
        threads.submit(both.wait, PATIENCE_S)
    await_idle(2)
    first = run()
    for _ in range(5):
        await_idle(2)
        assert run() == first
    assert len(threads.threads) == 2
    threads.shutdown()


def test_what_a_task_submits_runs_behind_it_on_the_same_thread() -> None:
    threads, ran = TurnThreads(3, "test"), SimpleQueue[tuple[int, str]]()
    both = threading.Barrier(2)
    for _ in range(2):
        threads.submit(both.wait, PATIENCE_S)
    while threads.idle_count < 2:
        threading.Event().wait(0.001)

    def turn(left_count: int) -> None:
        if left_count:
            threads.submit(turn, left_count - 1)
        ran.put((left_count, threading.current_thread().name))

    threads.submit(turn, 9)
    turns = [ran.get(timeout=PATIENCE_S) for _ in range(10)]
    assert [number for number, _ in turns] == [9 - number for number in range(10)]
    assert len({name for _, name in turns}) == 1
    threads.shutdown()


def test_the_age_of_the_oldest_task_costs_one_look_at_the_clock_for_each_task() -> None:
    clock = CountingClock()
    threads, may_end = TurnThreads(2, "test", clock), [threading.Event(), threading.Event()]
    assert threads.oldest_task_s() == 0
    for one in may_end:
        begun = threading.Event()
        threads.submit(stand_still, begun, one)
        assert begun.wait(PATIENCE_S)
        clock.advance(2_000)
    assert (clock.look_count, threads.oldest_task_s()) == (2, 4), "it began at 0 s"
    may_end[0].set()
    until_idle(threads, 1)
    assert threads.oldest_task_s() == 2
    # One that waits for a thread has no age: those that run are older.
    may_end[1].set()
    until_idle(threads, 2)
    before = clock.look_count
    assert threads.oldest_task_s() == 0
    ran = threading.Semaphore(0)
    for _ in range(100):
        threads.submit(ran.release)
    for _ in range(100):
        assert ran.acquire(timeout=PATIENCE_S)
    threads.shutdown()
    assert clock.look_count - before == 100


def test_a_step_of_a_task_has_its_age_begin_anew() -> None:
    clock = ManualClock()
    threads, begun, may_step, may_end = TurnThreads(2, "test", clock), *(threading.Event() for _ in range(3))

    def compute() -> None:
        begun.set()
        may_step.wait(PATIENCE_S)
        note_step(clock.monotonic_s())
        begun.set()
        may_end.wait(PATIENCE_S)

    try:
        threads.submit(compute)
        assert begun.wait(PATIENCE_S)
        begun.clear()
        clock.advance(40_000)
        assert threads.oldest_task_s() == 40
        # Other threads have no task, so theirs is no step of it.
        note_step(clock.monotonic_s())
        assert threads.oldest_task_s() == 40
        may_step.set()
        assert begun.wait(PATIENCE_S)
        clock.advance(1_000)
        assert threads.oldest_task_s() == 1
    finally:
        may_step.set()
        may_end.set()
        threads.shutdown()
    assert threads.oldest_task_s() == 0


class CountingClock(ManualClock):
    """Counts looks at the time. As thread-safe as the other one."""

    def __init__(self) -> None:
        super().__init__()
        self.look_count = 0

    def monotonic_s(self) -> float:
        self.look_count += 1
        return super().monotonic_s()


def stand_still(begun: threading.Event, may_end: threading.Event) -> None:
    begun.set()
    may_end.wait(PATIENCE_S)


def until_idle(threads: TurnThreads, count: int) -> None:
    while threads.idle_count < count:
        threading.Event().wait(0.001)


def test_a_task_that_fails_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    threads, ran = TurnThreads(1, "test"), threading.Event()

    def fail() -> None:
        raise KeyboardInterrupt

    threads.submit(fail)
    threads.submit(ran.set)
    assert ran.wait(PATIENCE_S)
    threads.shutdown()
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_a_shutdown_waits_for_what_was_taken_and_takes_no_more() -> None:
    threads, may_end = TurnThreads(1, "test"), threading.Event()
    ran: list[int] = []
    threads.submit(may_end.wait, PATIENCE_S)
    for number in range(3):
        threads.submit(ran.append, number)
    threads.shutdown(wait=False)
    with pytest.raises(RuntimeError):
        threads.submit(ran.append, 3)
    may_end.set()
    threads.shutdown()
    assert ran == [0, 1, 2]
    assert not any(thread.is_alive() for thread in threads.threads)


def test_without_a_thread_a_task_is_refused_and_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, ran = TurnThreads(2, "test"), threading.Event()
    start = threading.Thread.start

    def find_none(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", find_none)
    with pytest.raises(RuntimeError):
        threads.submit(ran.set)
    monkeypatch.setattr(threading.Thread, "start", start)
    may_end, begun = threading.Event(), threading.Event()

    def stand_still() -> None:
        begun.set()
        may_end.wait(PATIENCE_S)

    threads.submit(stand_still)
    assert begun.wait(PATIENCE_S)
    assert not ran.is_set()
    monkeypatch.setattr(threading.Thread, "start", find_none)
    # One thread is enough: the task waits for it.
    threads.submit(ran.set)
    may_end.set()
    assert ran.wait(PATIENCE_S)
    threads.shutdown()
