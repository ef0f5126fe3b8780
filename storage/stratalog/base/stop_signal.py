"""A flag that ends long work early, which the work checks between its steps.

The work checks it where no step is half done, and ends as after a crash: commits stay, and the collector
removes the rest. It does not cut off a running request.
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
