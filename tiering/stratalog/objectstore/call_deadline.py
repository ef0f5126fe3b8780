"""How long a call to a store may take as a whole, whatever it waits for meanwhile."""

from __future__ import annotations

from typing import Final

from stratalog.base.clock import Clock
from stratalog.objectstore.protocol import ReadStream

_READ_BYTES: Final = 1 << 20


class CallTimeoutError(Exception):
    """A call is over its time. Never leaves the store, which says whose call it was and on what."""


class CallDeadline:
    """When a call gives up. Not thread-safe: belongs to the call."""

    def __init__(self, clock: Clock, duration_s: float) -> None:
        self._clock = clock
        self._end_s = clock.monotonic_s() + duration_s

    def extend(self, duration_s: float) -> None:
        """The call has more to move than was known when it began."""
        self._end_s += duration_s

    def check(self) -> None:
        """Raises CallTimeoutError once it is too late."""
        if self._clock.monotonic_s() > self._end_s:
            raise CallTimeoutError


def read_in_time(stream: ReadStream, size: int, deadline: CallDeadline) -> bytes:
    """All `size` bytes of a stream, in pieces, with a look at the clock after each. Raises CallTimeoutError,
    and what the stream raises.
    """
    pieces: list[bytes] = []
    remaining_bytes = size
    while remaining_bytes > 0:
        pieces.append(stream.read(min(remaining_bytes, _READ_BYTES)))
        remaining_bytes -= len(pieces[-1])
        deadline.check()
    return b"".join(pieces)
