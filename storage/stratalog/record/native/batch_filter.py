"""The rule by which object compaction filters the batches of a slice, and what the filter leaves of them."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.filesystem import Buffer
from stratalog.record.header import BatchHeader
from stratalog.record.keep_rules import gets_horizon, is_due


class BatchFilter(NamedTuple):
    """What stays of a slice, beside what its survivor bits say."""

    first_offset: int
    """Records below are not kept."""
    end_offset: int
    """A batch that reaches beyond is not taken."""
    has_tombstones: bool
    """False if no batch of the slice has any."""
    drop_until_ms: int | None
    """Tombstones with a delete horizon up to this time go; None: all stay."""
    stamp_ms: int | None
    """The new horizon of tombstones without one; None: they get none."""

    def drops_tombstones(self, header: BatchHeader) -> bool:
        """The tombstones of the batch go."""
        return is_due(header.delete_horizon_ms, self.drop_until_ms)

    def new_horizon_ms(self, header: BatchHeader, *, has_tombstones: bool) -> int | None:
        """The horizon that the batch gets now, if any. `has_tombstones`: among its records that stay."""
        gets_one = gets_horizon(
            header.delete_horizon_ms,
            has_tombstones=has_tombstones,
            sees_all_older=self.stamp_ms is not None,
        )
        return self.stamp_ms if gets_one else None


class FilteredBatches(NamedTuple):
    """What is left of consecutive plain batches."""

    data: Buffer
    """The batches that stay, as they were or rebuilt; a part of the input itself if none was rebuilt."""
    end_position: int
    """Behind the last batch that was taken."""
    next_ordinal: int
    """Of the first record behind it."""
    fingerprint: int
    records_count: int = 0
    first_offset: int = -1
    """Of the first record that is kept; -1 if there is none."""
    last_offset: int = -1
    dropped_tombstone_count: int = 0
