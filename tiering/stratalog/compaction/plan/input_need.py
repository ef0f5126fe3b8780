"""The parts of an input object that a job needs, as numbers: no slice of it is held for them."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable

from stratalog.remote.objects.slice_entry import SliceEntry


class InputNeed:
    """The slices of one input that a job takes. Not thread-safe: guarded by its user. All positions count
    from the first byte of the object."""

    def __init__(self, entries: Iterable[SliceEntry] = ()) -> None:
        """`entries`: in the order of their data, which `add` goes on with."""
        self.slice_count = 0
        self.index_end = 0
        """The end of the last index."""
        self._begins = array("Q")
        self._ends = array("Q")
        self._is_passed = bytearray()
        for entry in entries:
            self.add(entry)

    def add(self, entry: SliceEntry) -> None:
        """One more slice, behind those before it."""
        self.slice_count += 1
        self.index_end = max(self.index_end, entry.index.position + entry.index.size_bytes)
        if entry.data_bytes > 0:
            self._begins.append(entry.data_position)
            self._ends.append(entry.data_end_position)
            self._is_passed.append(0)

    def pass_by(self, entry: SliceEntry) -> None:
        """The data of that slice are not needed after all."""
        # A slice without bytes has the position of the next one.
        if entry.data_bytes > 0:
            self._is_passed[bisect_left(self._begins, entry.data_position)] = 1

    @property
    def data_range(self) -> tuple[int, int]:
        """From the first to the end of the last data that are needed; empty if none are."""
        first, behind = self._is_passed.find(0), self._is_passed.rfind(0)
        return (self._begins[first], self._ends[behind]) if first >= 0 else (0, 0)

    def lies_in(self, begin: int, end: int) -> bool:
        """Whether the data of all slices, also of those that were passed by, lie in that range."""
        if not self._begins:
            return True
        return begin <= min(self._begins) and max(self._ends) <= end
