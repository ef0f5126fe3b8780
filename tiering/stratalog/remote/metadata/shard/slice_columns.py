"""Slices of a partition as columns of what tells one from another: a job replaces a hundred thousand slices,
and its commit compares all of them.

An object never changes and has at most one slice of a partition, so the name of its object and its range tell
a slice from every other.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import NamedTuple

from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.slice_entry import SliceEntry

# An entry is a tuple, and its places are found in half the time of its names.
_DATA_BYTES = operator.itemgetter(SliceEntry._fields.index("data_bytes"))


class SliceRanges(NamedTuple):
    """Slices of one partition, in order. Immutable."""

    object_names: tuple[str, ...]
    """Empty texts for gaps."""
    base_offsets: tuple[int, ...]
    """The first valid offset of each."""
    end_offsets: tuple[int, ...]

    @staticmethod
    def of(slices: Sequence[LiveSlice]) -> SliceRanges:
        """The ranges of these slices."""
        if not len(slices):
            return NO_SLICES
        object_names, base_offsets, end_offsets, _, _ = zip(*slices, strict=True)
        return SliceRanges(object_names, base_offsets, end_offsets)

    @property
    def slice_count(self) -> int:
        return len(self.object_names)

    @property
    def tile(self) -> bool:
        """Whether each slice begins where the one before it ends."""
        return self.base_offsets[1:] == self.end_offsets[:-1]

    @property
    def have_gaps(self) -> bool:
        """Whether a gap is among them."""
        return "" in self.object_names

    def without_first(self, count: int) -> SliceRanges:
        """All but the first `count` slices."""
        return SliceRanges(self.object_names[count:], self.base_offsets[count:], self.end_offsets[count:])


NO_SLICES = SliceRanges((), (), ())


class SliceColumns(NamedTuple):
    """Slices of one partition, in order, and their data. Immutable."""

    ranges: SliceRanges
    data_bytes: tuple[int, ...]
    """The size of the data of each slice; clipped slices count whole."""

    @staticmethod
    def of(slices: Sequence[LiveSlice]) -> SliceColumns:
        """The columns of these slices."""
        if not len(slices):
            return SliceColumns(NO_SLICES, ())
        object_names, base_offsets, end_offsets, entries, _ = zip(*slices, strict=True)
        ranges = SliceRanges(object_names, base_offsets, end_offsets)
        return SliceColumns(ranges, tuple(map(_DATA_BYTES, entries)))

    @staticmethod
    def joined(parts: Sequence[SliceColumns]) -> SliceColumns:
        """The slices of all parts, one part behind the other."""
        if len(parts) == 1:
            return parts[0]
        chain = itertools.chain.from_iterable
        columns = zip(*(part.ranges for part in parts), strict=True)
        ranges = SliceRanges(*(tuple(chain(column)) for column in columns)) if parts else NO_SLICES
        return SliceColumns(ranges, tuple(chain(part.data_bytes for part in parts)))

    def first(self, count: int) -> SliceColumns:
        """The first `count` slices."""
        names, base_offsets, end_offsets = self.ranges
        ranges = SliceRanges(names[:count], base_offsets[:count], end_offsets[:count])
        return SliceColumns(ranges, self.data_bytes[:count])
