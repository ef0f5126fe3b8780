"""The deadline of one whole call to a store, over all its waits."""

from __future__ import annotations

from typing import Final

from stratalog.base.clock import Clock
from stratalog.objectstore.protocol import ReadStream

PIECE_BYTES: Final = 16 << 20
"""A body is awaited in pieces of this size. One piece is a whole request of a reader, which needs no copy."""


class CallTimeoutError(Exception):
    """A call exceeded its deadline. Never leaves the store, which raises its own error with key and URL."""


class CallDeadline:
    """The time at which a call gives up. Not thread-safe: belongs to the call."""

    def __init__(self, clock: Clock, duration_s: float) -> None:
        self._clock = clock
        self._end_s = clock.monotonic_s() + duration_s

    def extend(self, duration_s: float) -> None:
        """Add time for bytes that were not known when the call began."""
        self._end_s += duration_s

    def check(self) -> None:
        """Check the deadline. Raises CallTimeoutError after it."""
        if self._clock.monotonic_s() > self._end_s:
            raise CallTimeoutError


def read_in_time(stream: ReadStream, size: int, deadline: CallDeadline) -> bytes:
    """All `size` bytes of a stream, in pieces, with a check of the deadline after each. Raises
    CallTimeoutError and the errors of the stream.
    """
    pieces: list[bytes] = []
    remaining_bytes = size
    while remaining_bytes > 0:
        pieces.append(stream.read(min(remaining_bytes, PIECE_BYTES)))
        remaining_bytes -= len(pieces[-1])
        deadline.check()
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
