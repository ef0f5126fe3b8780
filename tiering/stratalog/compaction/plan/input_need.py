"""The parts of an input object that a job needs, as numbers: no slice of it is held for them."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.remote.objects.slice_entry import SliceEntry


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

    def add(self, entry: SliceEntry) -> None:
        """One more slice."""
        size_bytes = entry.data_bytes
        if size_bytes:
            begin = entry.data_position
            end = begin + size_bytes
            if not self._end or begin < self._begin:
                self._begin = begin
            self._end = max(self._end, end)

    @property
    def bytes(self) -> ByteRange:
        """The range so far."""
        return ByteRange(self._begin, self._end)
