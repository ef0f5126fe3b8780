"""The rule by which object compaction filters the batches of a slice, and the results: for a row of batches,
and for the slices of small partitions with one call.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from stratalog.base.filesystem import Buffer
from stratalog.record.header import BatchHeader
from stratalog.record.keep_rules import gets_horizon, is_due


class BatchFilter(NamedTuple):
    """The part of the rule that is not in the survivor bits of a slice."""

    first_offset: int
    """Records below this offset are dropped."""
    end_offset: int
    """The filter stops before a batch that reaches beyond this offset."""
    has_tombstones: bool
    """False if no batch of the slice has any."""
    drop_until_ms: int | None
    """Tombstones with a delete horizon up to this time are dropped; None keeps all."""
    stamp_ms: int | None
    """The new horizon of tombstones without one; None: they get none."""
    settled_end_offset: int
    """Batches that reach beyond this offset keep their tombstones, and get no horizon."""
    aborted: Sequence[int] = ()
    """`AbortedSpans.values` of aborted transactions, none of whose records may survive. An `array('q')` is
    read in place."""

    def drops_tombstones(self, header: BatchHeader) -> bool:
        return self._settles(header) and is_due(header.delete_horizon_ms, self.drop_until_ms)

    def new_horizon_ms(self, header: BatchHeader, *, has_tombstones: bool) -> int | None:
        """The horizon that the batch gets now, if any. `has_tombstones`: tombstones are among its kept
        records."""
        gets_one = gets_horizon(
            header.delete_horizon_ms,
            has_tombstones=has_tombstones,
            sees_all_older=self.stamp_ms is not None and self._settles(header),
        )
        return self.stamp_ms if gets_one else None

    def _settles(self, header: BatchHeader) -> bool:
        return header.next_offset <= self.settled_end_offset


class FilteredBatches(NamedTuple):
    """The kept part of consecutive batches."""

    data: Buffer
    """The kept batches, unchanged or rebuilt; a part of the input itself if none was rebuilt."""
    end_position: int
    """The position after the last batch that was taken."""
    next_ordinal: int
    """The ordinal of the first record after it."""
    fingerprint: int
    records_count: int = 0
    first_offset: int = -1
    """The offset of the first kept record; -1 if there is none."""
    last_offset: int = -1
    dropped_tombstone_count: int = 0


RunColumns: TypeAlias = "tuple[tuple[str, ...], array[int], array[int], int, int]"
"""Consecutive slices of a partition: the rows [first, end) of a table. It has the name of the object of each
slice, its first readable offset, and all columns of numbers, one behind the other; first and end follow."""

RunRule: TypeAlias = "tuple[int, int | None, int | None, int]"
"""The part of the rule that is not in the columns and survivor bits: the log start offset, and
`drop_until_ms`, `stamp_ms` and `settled_end_offset` as in `BatchFilter`."""


COMPACTED_COLUMNS = (
    "data_bytes",
    "data_crc",
    "fingerprint",
    "record_count",
    "first_offset",
    "last_offset",
    "dropped_tombstone_count",
    "tombstone_count",
    "min_timestamp",
    "max_timestamp",
    "max_timestamp_offset",
    "has_delete_horizon",
    "delete_horizon_ms",
    "last_base_offset",
    "leader_epoch",
    "last_crc",
    "interval_count",
    "key_bytes",
    "key_count",
    "keys_crc",
)
"""The numbers that are known of a compacted slice. Offsets and timestamps are -1 where no record stays. The
fingerprint is that of the batches, as `filter_batches` makes it; tombstones are those that stay;
`last_base_offset`, `leader_epoch` and `last_crc` are those of the last batch."""


class CompactedSlices(NamedTuple):
    """Slices that replace others, and all that their entries, indexes and key streams say of them.
    Immutable."""

    data: Buffer
    """The batches that stay, one slice behind the other; a slice where no record stays has none."""
    index_columns: Buffer
    """The columns of each index, as a slice has them, one index behind the other."""
    keys: Buffer
    """The key streams, one behind the other."""
    numbers: array[int]
    """`COMPACTED_COLUMNS` of each slice, one slice behind the other."""

    @property
    def slice_count(self) -> int:
        return len(self.numbers) // len(COMPACTED_COLUMNS)

    def column(self, name: str) -> array[int]:
        """One of `COMPACTED_COLUMNS`: a number for each slice."""
        return self.numbers[COMPACTED_COLUMNS.index(name) :: len(COMPACTED_COLUMNS)]

    def part(self, first: int, end: int) -> CompactedSlices:
        """The slices [first, end)."""
        if end - first == self.slice_count:
            return self
        data, keys = self.column("data_bytes"), self.column("key_bytes")
        intervals = array("q", [INDEX_ROW_BYTES * count for count in self.column("interval_count")])
        width = len(COMPACTED_COLUMNS)
        return CompactedSlices(
            _piece(self.data, data, first, end),
            _piece(self.index_columns, intervals, first, end),
            _piece(self.keys, keys, first, end),
            self.numbers[first * width : end * width],
        )


INDEX_ROW_BYTES = 24
"""The three numbers that an index has of an interval."""


def _piece(data: Buffer, sizes: array[int], first: int, end: int) -> Buffer:
    begin = sum(sizes[:first])
    return memoryview(data)[begin : begin + sum(sizes[first:end])]
