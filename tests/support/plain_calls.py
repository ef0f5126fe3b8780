"""Calls that threads leave for a loop, by the hop that asyncio has: a test need not close it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class PlainCalls:
    """Leaves calls for one loop. Thread-safe."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call(self, function: Callable[..., object], /, *arguments: object) -> None:
        """Let the loop call a function soon."""
        self._loop.call_soon_threadsafe(function, *arguments)

    call_last = call
