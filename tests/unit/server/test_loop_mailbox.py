"""Calls that threads leave for the event loop: each comes once, in order, also where the ring is late."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import threading
from collections.abc import Callable

import pytest

from stratalog.server import bells
from stratalog.server.loop_mailbox import LoopMailbox
from stratalog.server.turn_threads import TurnThreads

PATIENCE_S = 30.0


@pytest.fixture(params=[bells.STEPS, bells.STEPS_IN_PYTHON], ids=["compiled", "python"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bells.Steps:
    """Both forms of the steps, which all bells of the test have."""
    found: bells.Steps = request.param
    monkeypatch.setattr(bells, "STEPS", found)
    return found


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop work until the condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.usefixtures("steps")
async def test_calls_of_many_threads_come_once_each_and_in_the_order_of_their_thread() -> None:
    mailbox, threads = LoopMailbox(asyncio.get_running_loop()), TurnThreads(4, "test")
    came: list[tuple[int, int, str]] = []

    def turn(lane: int, number: int) -> None:
        if number % 3 == 0:
            mailbox.call(came.append, (lane, number, "first"))
        mailbox.call_last(came.append, (lane, number, "last"))
        if number < 99:
            # Another thread may take it at once.
            threads.submit(turn, lane, number + 1)

    for lane in range(8):
        threads.submit(turn, lane, 0)
    await until(lambda: len(came) == 8 * (100 + 34))
    threads.shutdown()
    mailbox.close()
    for lane in range(8):
        expected = [
            (lane, number, name)
            for number in range(100)
            for name in (("first", "last") if number % 3 == 0 else ("last",))
        ]
        assert [one for one in came if one[0] == lane] == expected


@pytest.mark.usefixtures("steps")
async def test_a_last_call_wakes_the_loop_once_its_task_has_ended() -> None:
    mailbox, threads = LoopMailbox(asyncio.get_running_loop()), TurnThreads(1, "test")
    came, has_left, may_end = asyncio.Event(), threading.Event(), threading.Event()

    def task() -> None:
        mailbox.call_last(came.set)
        has_left.set()
        may_end.wait(PATIENCE_S)

    threads.submit(task)
    await asyncio.to_thread(has_left.wait, PATIENCE_S)
    await asyncio.sleep(0.01)
    assert not came.is_set(), "the thread rings with the begin of its wait"
    may_end.set()
    await asyncio.wait_for(came.wait(), PATIENCE_S)
    assert threads.idle_count == 1
    threads.shutdown()
    mailbox.close()


@pytest.mark.usefixtures("steps")
async def test_a_task_that_fails_or_is_the_last_one_of_all_rings_nevertheless() -> None:
    mailbox, threads = LoopMailbox(asyncio.get_running_loop()), TurnThreads(1, "test")
    failed, ended = asyncio.Event(), asyncio.Event()

    def fail() -> None:
        mailbox.call_last(failed.set)
        raise ZeroDivisionError

    threads.submit(fail)
    await asyncio.wait_for(failed.wait(), PATIENCE_S)
    may_end = threading.Event()

    def last() -> None:
        may_end.wait(PATIENCE_S)
        mailbox.call_last(ended.set)

    threads.submit(last)
    threads.shutdown(wait=False)
    may_end.set()
    await asyncio.wait_for(ended.wait(), PATIENCE_S)
    threads.shutdown()
    mailbox.close()


@pytest.mark.usefixtures("steps")
async def test_a_task_that_waits_for_the_thread_does_not_delay_the_ring_of_the_one_before() -> None:
    mailbox, threads = LoopMailbox(asyncio.get_running_loop()), TurnThreads(1, "test")
    came, may_end = asyncio.Event(), threading.Event()

    def first() -> None:
        threads.submit(may_end.wait, PATIENCE_S)
        mailbox.call_last(came.set)

    threads.submit(first)
    await asyncio.wait_for(came.wait(), PATIENCE_S)
    may_end.set()
    threads.shutdown()
    mailbox.close()


async def test_the_rings_of_two_mailboxes_both_come() -> None:
    loop = asyncio.get_running_loop()
    mailboxes, threads = (LoopMailbox(loop), LoopMailbox(loop)), TurnThreads(1, "test")
    came: list[int] = []

    def task() -> None:
        for number, mailbox in enumerate(mailboxes):
            mailbox.call_last(came.append, number)

    threads.submit(task)
    await until(lambda: len(came) == 2)
    assert sorted(came) == [0, 1]
    threads.shutdown()
    for mailbox in mailboxes:
        mailbox.close()


async def test_a_call_that_fails_keeps_none_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    mailbox = LoopMailbox(asyncio.get_running_loop())
    came: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError

    mailbox.call(came.append, "before")
    mailbox.call(fail)
    mailbox.call(came.append, "behind")
    await until(lambda: len(came) == 2)
    assert came == ["before", "behind"]
    assert [record.exc_info is not None for record in caplog.records] == [True]
    mailbox.close()


async def test_calls_without_end_leave_the_loop_time_for_others() -> None:
    loop = asyncio.get_running_loop()
    mailbox = LoopMailbox(loop)
    count = 0

    def again() -> None:
        nonlocal count
        count += 1
        if count < 1_000:
            mailbox.call(again)

    mailbox.call(again)
    await until(lambda: count > 0)
    assert count < 1_000
    await until(lambda: count == 1_000)
    mailbox.close()


async def test_what_is_left_when_the_mailbox_closes_comes_before_its_end() -> None:
    mailbox = LoopMailbox(asyncio.get_running_loop())
    came: list[int] = []
    mailbox.call(came.append, 1)
    mailbox.close()
    assert came == [1]


@pytest.mark.usefixtures("steps")
def test_a_bell_that_is_full_of_rings_is_rung() -> None:
    full, own = bells.Bell(waits=False), bells.Bell(waits=True)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full.writer, bytes(4096))
    full.ring()
    own.ring()
    own.wait_behind(full)
    full.hear()
    full.close()
    own.close()


@pytest.mark.usefixtures("steps")
def test_a_bell_that_is_rung_often_wakes_once() -> None:
    bell = bells.Bell(waits=False)
    for _ in range(3):
        bell.ring()
    bell.hear()
    assert select.select([bell.reader], [], [], 0)[0] == []
    bell.hear()
    bell.close()


def test_a_descriptor_that_is_closed_is_an_error(steps: bells.Steps) -> None:
    closed, own = bells.Bell(waits=False), bells.Bell(waits=True)
    closed.close()
    own.ring()
    steps_to_try: tuple[Callable[[], None], ...] = (
        lambda: steps.ring(closed.writer),
        lambda: steps.hear(closed.reader),
        lambda: steps.ring_and_wait(closed.writer, own.reader),
        lambda: steps.ring_and_wait(bells.NO_BELL, closed.reader),
    )
    for step in steps_to_try:
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is compared
            step()
        assert caught.value.errno == errno.EBADF
    steps.ring_and_wait(bells.NO_BELL, own.reader)
    own.close()
