"""A flag that ends long work early. The work checks it between its steps.

The work checks the flag only between whole steps, and ends as after a crash: commits stay, and the collector
removes the rest. The flag does not cut off a running request.
"""

from __future__ import annotations

from stratalog.base.errors import StoppingError


class StopSignal:
    """The flag. Thread-safe: set once and never unset, by one assignment."""

    __slots__ = ("_is_set", "_parent")

    def __init__(self, parent: StopSignal | None = None) -> None:
        """With a `parent` it is set as soon as that one is."""
        self._is_set = False
        self._parent = parent

    @property
    def is_set(self) -> bool:
        return self._is_set or (self._parent is not None and self._parent.is_set)

    def set(self) -> None:
        self._is_set = True

    def check(self) -> None:
        """Raise StoppingError once the signal is set."""
        if self.is_set:
            raise StoppingError("the server is stopping; send the request again to the next server")
