"""Calls that threads leave for the event loop.

asyncio has such a hop, too (`call_soon_threadsafe`), which makes an object for each call, and reads its
socket until there is nothing: the loop gives the interpreter's lock away twice for each hop, and waits for
it. Here the loop looks once for all calls that have come. A thread of `TurnThreads` leaves its last call
without a ring, and rings when it begins to wait (`bells`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from stratalog.server.bells import Bell
from stratalog.server.turn_threads import TurnThread

logger = logging.getLogger(__name__)


class _Call(NamedTuple):
    function: Callable[..., object]
    arguments: tuple[Any, ...]


class LoopMailbox:
    """The calls that wait for one event loop, in the order in which they were left. `call` and `call_last`
    are thread-safe; everything else belongs to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let `loop` make the calls. Raises OSError if the process has no descriptor left."""
        self._loop = loop
        self._calls: deque[_Call] = deque()
        self._bell = Bell(waits=False)
        loop.add_reader(self._bell.reader, self._run_all)

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Let the loop call a function soon."""
        self._calls.append(_Call(function, arguments))
        self._bell.ring()

    def call_last(self, function: Callable[..., object], *arguments: Any) -> None:
        """Like `call`, as one of the last acts of a task: on a thread of `TurnThreads` the loop learns of it
        when the task has ended."""
        self._calls.append(_Call(function, arguments))
        thread = threading.current_thread()
        if isinstance(thread, TurnThread):
            thread.ring_at_end(self._bell)
        else:
            self._bell.ring()

    def close(self) -> None:
        """Run what waits, and end. No thread leaves a call from now on."""
        self._loop.remove_reader(self._bell.reader)
        self._run_left()
        self._bell.close()

    def _run_all(self) -> None:
        # First: a call that is left from here on has a ring of its own.
        self._bell.hear()
        self._run_left()

    def _run_left(self) -> None:
        # Not those that come meanwhile, so that the loop goes on.
        for _ in range(len(self._calls)):
            function, arguments = self._calls.popleft()
            try:
                function(*arguments)
            except Exception:
                logger.exception("a call that a thread has left failed unexpectedly")
