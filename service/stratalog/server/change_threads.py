"""Threads for changes of topics. Those of one topic come one after another, and take one thread at most.

A change that waited for its topic on a thread would keep it from other topics: one client that sends a slow
creation again and again would have all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol, TypeVar

_T = TypeVar("_T")


class Begin(Protocol):
    """Begins to run a change on threads. Raises StoppingError."""

    def __call__(self, change: Callable[[], _T], /) -> Future[_T]:
        """The change that has begun, or waits for a thread."""
        ...


class ChangeThreads:
    """Makes changes of topics on threads. Belongs to the event loop."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """The topics that are being changed, each with the changes that wait for it."""

    async def run(self, topic: str, change: Callable[[], _T]) -> _T:
        """Run a change of a topic behind those that were asked for before. One whose caller leaves before it
        begins is not made; one that runs has the topic to its end. Raises StoppingError."""
        loop = asyncio.get_running_loop()
        await self._have_turn(topic, loop)
        try:
            running = self._begin(change)
        except BaseException:
            self._end_turn(topic)
            raise

        def end(_: Future[_T]) -> None:
            # A stop that leaves a thread to its disk closes the loop before that.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end_turn, topic)

        running.add_done_callback(end)
        return await asyncio.wrap_future(running)

    async def _have_turn(self, topic: str, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._waiting.get(topic)
        if waiting is None:
            self._waiting[topic] = deque()
            return
        turn = loop.create_future()
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                # It got the turn in the same pass of the loop.
                self._end_turn(topic)
            elif turn in waiting:
                waiting.remove(turn)
            raise

    def _end_turn(self, topic: str) -> None:
        waiting = self._waiting[topic]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[topic]
