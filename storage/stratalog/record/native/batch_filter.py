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


class CompactedSlices(NamedTuple):
    """The slice that replaces others, and all that its entry, index and key stream say of it."""

    data: bytes
    """The batches that stay; none if no record stays, and the statistics mean nothing then."""
    crc: int
    fingerprint: int
    """The fingerprint of the batches, as `filter_batches` makes it."""
    records_count: int
    first_offset: int
    """The offset of the first record; -1 if there is none, like `last_offset`."""
    last_offset: int
    dropped_tombstone_count: int
    tombstone_count: int
    """Tombstones that stay."""
    min_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    delete_horizon_ms: int | None
    """The earliest one."""
    next_offset: int
    """Exclusive end of the offsets of the last batch."""
    last_base_offset: int
    leader_epoch: int
    """That of the last batch."""
    last_crc: int
    index_columns: bytes
    """The columns of the index, as a slice has them."""
    keys: bytes
    """The key stream."""
    key_count: int
    keys_crc: int
