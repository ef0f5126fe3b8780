"""How long work is told that it shall end early: a flag that the work looks at, handed in where it is made.

Whoever looks chooses places where nothing is half done, and ends there as after a crash: what was committed
stays, what was not is left for those who collect it. A request that is under way is not cut off.
"""

from __future__ import annotations

from stratalog.base.errors import StoppingError


class StopSignal:
    """Thread-safe: set once and never unset, by one assignment."""

    __slots__ = ("_is_set",)

    def __init__(self) -> None:
        self._is_set = False

    @property
    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def check(self) -> None:
        """Raises StoppingError once the signal is set."""
        if self._is_set:
            raise StoppingError("the server is stopping, send it again to the one that comes next")
