"""A live slice: a slice of an object, or a gap, in the row of slices of a partition.

A gap is a slice without an object: offsets whose records never reached the store and are lost. So slices
tile, and the loss is on record. A reader passes it as it passes a hole. No replacement takes it in; it goes
when log start passes it.

A transaction that is open where a gap begins stays undecided for ever: its marker may have been in the gap,
and records of it too. So its records before the gap count as aborted.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from stratalog.base.types import TopicIdPartition
from stratalog.record.header import NO_TIMESTAMP
from stratalog.remote.objects.slice_entry import OpenTransaction, PartRef, SliceEntry
from stratalog.segment.indexes.transaction_index import AbortedTransaction


class GapReason(enum.Enum):
    """Why the records of a gap are not in the store."""

    DROPPED_BY_POLICY = "dropped_by_policy"
    """`remote.copy.backlog.policy` is `drop`, and the disk had too little space."""
    MISSING_ON_LOCAL_DISK = "missing_on_local_disk"
    """The segments are gone from the disk, and no rule has deleted them."""
    EXPIRED = "expired"
    """The retention of all tiers has deleted them on the disk, mostly while the store was away."""
    OBJECT_LOST = "object_lost"
    """Their object is gone from the store; a rebuilt or restored head goes on without it."""


class Gap(NamedTuple):
    """The loss that a gap records."""

    reason: str
    """The value of a `GapReason`, or of one that newer software knows."""
    time_ms: int
    """The store's time when the gap was recorded: a gap is as old as that."""
    abandoned: tuple[OpenTransaction, ...] = ()
    """The transactions that are open where the gap begins."""


class LiveSlice(NamedTuple):
    """A slice that readers may read. Immutable."""

    object_name: str
    """Empty for a gap."""
    base_offset: int
    """Its first valid offset: `entry.base_offset`, or a higher one where a replacement was clipped."""
    end_offset: int
    entry: SliceEntry
    gap: Gap | None = None

    @staticmethod
    def of_gap(tip: TopicIdPartition, base_offset: int, end_offset: int, gap: Gap) -> LiveSlice:
        """A slice without an object and without records."""
        entry = SliceEntry(
            topic_id=tip.topic_id,
            topic="",
            partition=tip.partition,
            base_offset=base_offset,
            end_offset=end_offset,
            data_position=0,
            data_bytes=0,
            data_crc=0,
            record_count=0,
            min_timestamp=-1,
            max_timestamp=-1,
            max_timestamp_offset=-1,
            codec_mask=0,
            stable_end_offset=end_offset,
            index=PartRef(0, 0, 0),
        )
        return LiveSlice("", base_offset, end_offset, entry, gap)

    @property
    def newest_ms(self) -> int:
        """The time of the newest record, or of the loss; -1 if no record has a time, or if retention itself
        has left the gap."""
        if self.gap is None:
            return self.entry.max_timestamp
        return NO_TIMESTAMP if self.gap.reason == GapReason.EXPIRED.value else self.gap.time_ms

    @property
    def oldest_ms(self) -> int:
        """The time of the oldest record; `newest_ms` for a gap, and where none is older."""
        if self.gap is not None or self.entry.min_timestamp <= NO_TIMESTAMP:
            return self.newest_ms
        return self.entry.min_timestamp

    @property
    def has_markers(self) -> bool:
        """Whether the slice may abort records of slices before it."""
        if self.gap is not None:
            return bool(self.gap.abandoned)
        return self.entry.has_aborted or self.entry.marker_count > 0

    def abandoned_in(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The transactions with records in [start_offset, end_offset) that a gap leaves undecided: aborted,
        as if their markers were at its base. None for a slice that is no gap.
        """
        if self.gap is None or start_offset >= self.base_offset:
            return []
        return [
            AbortedTransaction(one.producer_id, one.first_offset, self.base_offset, self.end_offset)
            for one in self.gap.abandoned
            if one.first_offset < end_offset
        ]
