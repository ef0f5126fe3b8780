"""Changes of a topic come one after another, and those that wait have no thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from stratalog.base.errors import StoppingError
from stratalog.server.change_threads import ChangeThreads


async def run_ready_tasks() -> None:
    """Run all that needs no more than some passes of the loop."""
    for _ in range(10):
        await asyncio.sleep(0)


def begin(threads: ChangeThreads, *names: str) -> list[asyncio.Future[str]]:
    """Ask for changes with these names, each of the topic with its first letter."""
    return [asyncio.ensure_future(threads.run(name[0], partial(str, name))) for name in names]


class _Begun:
    """Threads on which changes begin, and end when the test says so."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, Future[Any]]] = []
        self.is_closed = False

    def __call__(self, change: Callable[[], Any], /) -> Future[Any]:
        if self.is_closed:
            raise StoppingError("the server is stopping")
        running = Future[Any]()
        running.set_running_or_notify_cancel()
        self.changes.append((change(), running))
        return running

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.changes]

    async def end(self, number: int) -> None:
        name, running = self.changes[number]
        running.set_result(name)
        await run_ready_tasks()


async def test_changes_of_a_topic_take_one_thread_in_their_order() -> None:
    begun = _Begun()
    threads = ChangeThreads(begun)
    changes = begin(threads, "a1", "a2", "b1", "a3")
    await run_ready_tasks()
    assert begun.names == ["a1", "b1"]
    await begun.end(0)
    assert begun.names == ["a1", "b1", "a2"]
    await begun.end(2)
    await begun.end(3)
    await begun.end(1)
    assert await asyncio.gather(*changes) == ["a1", "a2", "b1", "a3"]
    begin(threads, "a4")
    await run_ready_tasks()
    assert begun.names[-1] == "a4"


async def test_a_change_whose_caller_leaves_is_not_made_and_one_that_runs_keeps_the_topic() -> None:
    begun = _Begun()
    threads = ChangeThreads(begun)
    first, second, third = begin(threads, "a1", "a2", "a3")
    await run_ready_tasks()
    first.cancel()
    second.cancel()
    await run_ready_tasks()
    assert first.cancelled()
    assert second.cancelled()
    assert begun.names == ["a1"], "its thread is still at work"
    await begun.end(0)
    assert begun.names == ["a1", "a3"]
    await begun.end(1)
    assert await third == "a3"


async def test_a_caller_that_leaves_as_its_turn_comes_passes_it_on() -> None:
    begun = _Begun()
    threads = ChangeThreads(begun)
    first, second, third = begin(threads, "a1", "a2", "a3")
    await run_ready_tasks()
    begun.changes[0][1].set_result("a1")
    # Behind the end of the first change, and before the second begins.
    asyncio.get_running_loop().call_soon(second.cancel)
    await run_ready_tasks()
    assert begun.names == ["a1", "a3"]
    await begun.end(1)
    assert [await first, await third] == ["a1", "a3"]


async def test_closed_threads_refuse_each_change_that_waits() -> None:
    begun = _Begun()
    threads = ChangeThreads(begun)
    changes = begin(threads, "a1", "a2", "a3")
    await run_ready_tasks()
    begun.is_closed = True
    await begun.end(0)
    assert await changes[0] == "a1"
    for refused in changes[1:]:
        with pytest.raises(StoppingError):
            await refused
