"""How long a call to a store may take as a whole, whatever it waits for meanwhile."""

from __future__ import annotations

from stratalog.base.clock import Clock
from stratalog.base.errors import StoreUnavailableError


class CallDeadline:
    """When a call gives up. Not thread-safe: belongs to the call."""

    def __init__(self, clock: Clock, duration_s: float) -> None:
        self._clock = clock
        self._end_s = clock.monotonic_s() + duration_s

    def extend(self, duration_s: float) -> None:
        """The call has more to move than was known when it began."""
        self._end_s += duration_s

    def check(self) -> None:
        """Raises StoreUnavailableError once it is too late."""
        if self._clock.monotonic_s() > self._end_s:
            raise StoreUnavailableError("the store is too slow: the call was given up")
