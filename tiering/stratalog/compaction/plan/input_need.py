"""The parts of an input object that a job needs, as numbers: no slice of it is held for them."""

from __future__ import annotations

from typing import NamedTuple


class ByteRange(NamedTuple):
    """Bytes [begin, end) of an object; empty if both are 0. Immutable."""

    begin: int
    end: int


NOTHING = ByteRange(0, 0)


class InputNeed(NamedTuple):
    """The slices of one input that a job takes. Immutable. All positions count from the first byte of the
    object."""

    slice_count: int = 0
    index_end: int = 0
    """The end of the last index."""
    data: ByteRange = NOTHING
    """From the first to the end of the last data of all of them."""
    carried: ByteRange = NOTHING
    """The same of those whose run is carried: they are read, whatever their keys are."""


class GrowingRange:
    """From the first to the end of the last data of some slices of an object. Not thread-safe: guarded by its
    user."""

    __slots__ = ("_begin", "_end")

    def __init__(self, begun: ByteRange = NOTHING) -> None:
        self._begin, self._end = begun

    def add(self, position: int, size_bytes: int) -> None:
        """The data of one more slice."""
        if not size_bytes:
            return
        if position >= self._end:
            # As they lie in objects.
            self._begin = self._begin if self._end else position
            self._end = position + size_bytes
        else:
            self._begin = min(self._begin, position)
            self._end = max(self._end, position + size_bytes)

    @property
    def bytes(self) -> ByteRange:
        """The range so far."""
        return ByteRange(self._begin, self._end)
