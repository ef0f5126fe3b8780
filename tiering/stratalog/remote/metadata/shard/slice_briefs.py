"""Live slices of a partition as a survey of a whole shard sees them: a few columns, so that no row of
millions is parsed."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import NamedTuple

from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.slice_entry import SliceEntry

ENTRY_COLUMNS = (
    "data_bytes",
    "record_count",
    "min_timestamp",
    "max_timestamp",
    "tombstone_count",
    "marker_count",
    "stable_end_offset",
    "earliest_delete_horizon_ms",
)
"""The columns of an entry that the briefs have, in their order."""
# An entry is a tuple, and its places are found in half the time of its names.
_ENTRY_VALUES = operator.itemgetter(*map(SliceEntry._fields.index, ENTRY_COLUMNS))


class SliceMeasure(NamedTuple):
    """The numbers of one slice that its extent follows from. Immutable."""

    record_count: int
    data_bytes: int
    min_timestamp: int
    max_timestamp: int


class SliceBriefs(NamedTuple):
    """Consecutive slices of a partition. Immutable."""

    object_names: Sequence[str]
    """Empty texts for gaps."""
    end_offsets: Sequence[int]
    data_bytes: Sequence[int]
    record_counts: Sequence[int]
    min_timestamps: Sequence[int]
    max_timestamps: Sequence[int]
    tombstone_counts: Sequence[int]
    marker_counts: Sequence[int]
    stable_end_offsets: Sequence[int]
    earliest_delete_horizons_ms: Sequence[int | None]
    gaps: Sequence[object]
    """None for a slice that is no gap."""

    @staticmethod
    def of(slices: Sequence[LiveSlice]) -> SliceBriefs:
        """These slices, at least one."""
        names, _, end_offsets, entries, gaps = zip(*slices, strict=True)
        values = zip(*map(_ENTRY_VALUES, entries), strict=True)
        return SliceBriefs._make((names, end_offsets, *values, gaps))

    @staticmethod
    def joined(parts: Sequence[SliceBriefs]) -> SliceBriefs:
        """The slices of all parts, at least one, one part behind the other."""
        if len(parts) == 1:
            return parts[0]
        chained = itertools.chain.from_iterable
        return SliceBriefs._make(tuple(chained(columns)) for columns in zip(*parts, strict=True))

    @property
    def slice_count(self) -> int:
        return len(self.object_names)

    def gap_indexes(self) -> Sequence[int]:
        """The indexes of the gaps."""
        if self.gaps.count(None) == len(self.gaps):
            return ()
        return [index for index, gap in enumerate(self.gaps) if gap is not None]

    def measure(self, index: int) -> SliceMeasure:
        """The measure of one of the slices."""
        return SliceMeasure(
            self.record_counts[index],
            self.data_bytes[index],
            self.min_timestamps[index],
            self.max_timestamps[index],
        )
