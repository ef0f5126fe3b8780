"""Results that calls share within one turn of the event loop.

An append wakes all readers at the end of a log in the same turn. The first of them reads and encodes what was
appended, and the others take its answer, so a hundred readers cost one read and one encoding. A turn later
nothing is kept: no answer is older than a moment, and none takes memory that its readers do not hold anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class TurnMemo(Generic[_T]):
    """Results by key, until the end of the turn. Belongs to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._results: dict[Hashable, _T] = {}

    def get(self, key: Hashable, make: Callable[[], _T | None]) -> _T | None:
        """The result of the key, which `make` returns if no call of this turn has it. None is not kept."""
        found = self._results.get(key)
        if found is not None:
            return found
        result = make()
        if result is not None:
            if not self._results:
                # Behind all calls that the same event has woken.
                self._loop.call_soon(self._results.clear)
            self._results[key] = result
        return result
