"""The tiered part of one partition: its live slices and offsets.

Slices tile: each begins where the one before it ends. The first may begin below log start (a reader skips the
records below), never above it. The last ends at the tiered end, unless log start has passed that.

A gap is a slice without an object: offsets whose records never reached the store and are lost. So slices
tile, and the loss is on record. A reader passes it as it passes a hole. No replacement takes it in; it goes
when log start passes it.

A transaction that is open where a gap begins stays undecided for ever: its marker may have been in the gap,
and records of it too. So its records before the gap count as aborted.
"""

from __future__ import annotations

import enum
import itertools
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from stratalog.base.types import TopicIdPartition
from stratalog.remote.objects.slice_entry import LastBatch, OpenTransaction, PartRef, SliceEntry
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
        """The time of the newest record, or of the loss; -1 if no record has a time."""
        return self.entry.max_timestamp if self.gap is None else self.gap.time_ms

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


class TieredPartition(NamedTuple):
    """Offsets and live slices of one partition in the object store. Immutable: a commit makes a new one."""

    log_start_offset: int = 0
    tiered_end_offset: int = 0
    """Exclusive end of the committed slices: the next slice begins here."""
    stable_end_offset: int = 0
    """Exclusive end of the offsets below every open transaction, as far as the slices tell."""
    end_mark: LastBatch | None = None
    """The last batch before the tiered end as it was uploaded, for comparison with a local log."""
    compacted_upto: int = 0
    """Below this offset at most one record of each key is left."""
    slices: tuple[LiveSlice, ...] = ()

    @property
    def tiered_bytes(self) -> int:
        """Bytes of the live slices; clipped slices count whole."""
        return sum(live.entry.data_bytes for live in self.slices)

    def log_start_beside(self, local_log_start_offset: int) -> int:
        """The first readable offset of a partition whose local log has this log start.

        The committed one counts. A local one behind the tiered end is one that no commit has yet: from before
        the first one, or from an outage.
        """
        is_ahead = local_log_start_offset > self.tiered_end_offset
        return local_log_start_offset if is_ahead else self.log_start_offset

    @property
    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        """The transactions that are open at the tiered end."""
        return self.slices[-1].entry.open_transactions if self.slices else ()

    @property
    def first_stored_index(self) -> int:
        """The index of the first slice that is no gap: no record lies below it. The count of slices without
        one.
        """
        stored = (index for index, live in enumerate(self.slices) if live.gap is None)
        return next(stored, len(self.slices))

    def slices_from(self, offset: int) -> tuple[LiveSlice, ...]:
        first = max(bisect_right(self.slices, offset, key=lambda live: live.base_offset) - 1, 0)
        return tuple(live for live in self.slices[first:] if live.end_offset > offset)

    def has_gap_in(self, start_offset: int, end_offset: int) -> bool:
        """Whether a gap has any of these offsets."""
        first = max(bisect_right(self.slices, start_offset, key=lambda live: live.base_offset) - 1, 0)
        for live in itertools.islice(self.slices, first, None):
            if live.base_offset >= end_offset:
                return False
            if live.gap is not None and live.end_offset > start_offset:
                return True
        return False

    def deciding_slices(self, start_offset: int, end_offset: int) -> Iterator[LiveSlice]:
        """The slices that tell which transactions of [start_offset, end_offset) were aborted.

        The slice with an abort marker names the transaction, and may lie behind the records; so does a gap
        that leaves it undecided. The search ends with the first slice at whose end no transaction is open
        that began below `end_offset`.
        """
        for live in self.slices_from(start_offset):
            yield live
            if live.entry.stable_end_offset >= end_offset:
                return

    def with_slice(self, live: LiveSlice) -> TieredPartition:
        """The partition with one more slice at its tiered end."""
        assert live.base_offset == self.tiered_end_offset, "slices tile"
        entry = live.entry
        return self._replace(
            tiered_end_offset=live.end_offset,
            # An open transaction that began below log start or before a gap can be below every slice.
            stable_end_offset=max(self.stable_end_offset, entry.stable_end_offset),
            end_mark=entry.last_batch or self.end_mark,
            slices=(*self.slices, live),
        )

    def with_log_start(self, offset: int) -> TieredPartition:
        """The partition without the slices that lie wholly below `offset`."""
        assert offset >= self.log_start_offset, "log start only grows"
        kept = tuple(itertools.dropwhile(lambda live: live.end_offset <= offset, self.slices))
        tiered_end_offset = max(kept[-1].end_offset if kept else offset, offset)
        return self._replace(
            log_start_offset=offset,
            tiered_end_offset=tiered_end_offset,
            stable_end_offset=max(self.stable_end_offset, offset),
            slices=kept,
        )

    def check(self) -> None:
        for earlier, later in itertools.pairwise(self.slices):
            assert earlier.end_offset == later.base_offset, "slices tile"
        for live in self.slices:
            entry = live.entry
            assert live.base_offset < live.end_offset, "a live slice has a range"
            assert (live.gap is None) == bool(live.object_name), "a slice has an object, or is a gap"
            assert entry.base_offset <= live.base_offset, "slices are clipped at the low end only"
            assert entry.end_offset == live.end_offset, "slices are never clipped at the high end"
            assert live.end_offset > self.log_start_offset, "slices wholly below log start are dropped"
        if self.slices:
            assert self.slices[0].base_offset <= self.log_start_offset, "there is no hole at log start"
            assert self.slices[-1].end_offset == self.tiered_end_offset, (
                "the last slice ends at the tiered end"
            )
        else:
            assert self.tiered_end_offset == self.log_start_offset, (
                "without slices the tiered end is log start"
            )
        assert 0 <= self.stable_end_offset <= self.tiered_end_offset, "the stable end is tiered"
        assert 0 <= self.compacted_upto <= self.tiered_end_offset, "compacted offsets are tiered"


EMPTY_PARTITION = TieredPartition()
"""A partition that the shard does not know."""
