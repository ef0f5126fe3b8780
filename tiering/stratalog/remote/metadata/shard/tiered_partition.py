"""The tiered part of one partition: its live slices and offsets.

Slices tile: each begins where the one before it ends. The first may begin below log start (a reader skips the
records below), never above it. The last ends at the tiered end, unless log start has passed that.

A partition is what its row says, with the slices of the checkpoint's pages, which are loaded when
they are looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from stratalog.remote.metadata.shard.slice_columns import SliceColumns
from stratalog.remote.metadata.shard.slice_list import SliceList
from stratalog.remote.metadata.shard.slice_pages import SlicePages
from stratalog.remote.objects.slice_entry import LastBatch, OpenTransaction


class ChangedPartition(NamedTuple):
    """A partition that has lost slices."""

    row: PartitionRow
    lost: SliceColumns


class TieredPartition:
    """Offsets and live slices of one partition in the object store. Immutable, so thread-safe. `slices` and
    the methods may load pages, and raise as `SlicePages` does; the offsets and sums never do."""

    __slots__ = ("_pages", "_tip", "row")

    def __init__(self, tip: TopicIdPartition, row: PartitionRow, pages: SlicePages | None = None) -> None:
        """`pages`: those of the checkpoint that the row's state is built on; None if it stores no slices."""
        self.row = row
        self._tip = tip
        self._pages = pages

    @property
    def log_start_offset(self) -> int:
        return self.row.log_start_offset

    @property
    def tiered_end_offset(self) -> int:
        """Exclusive end of the committed slices: the next slice begins here."""
        return self.row.tiered_end_offset

    @property
    def stable_end_offset(self) -> int:
        """Exclusive end of the offsets below every open transaction, as far as the slices tell."""
        return self.row.stable_end_offset

    @property
    def end_mark(self) -> LastBatch | None:
        """The last batch before the tiered end as it was uploaded, for comparison with a local log."""
        return self.row.end_mark

    @property
    def compacted_upto(self) -> int:
        """Below this offset at most one record of each key is left."""
        return self.row.compacted_upto

    @property
    def tiered_bytes(self) -> int:
        """Bytes of the live slices; clipped slices count whole."""
        return self.row.tiered_bytes

    @property
    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        """The transactions that are open at the tiered end."""
        return self.row.open_transactions

    @property
    def slices(self) -> SliceList:
        """The live slices, in order."""
        return SliceList(self._tip, self.row, self._pages)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TieredPartition):
            return NotImplemented
        mine, its = self.row._replace(pieces=()), other.row._replace(pieces=())
        return mine == its and self.slices == other.slices

    __hash__ = None  # type: ignore[assignment]  # its slices are a list

    def __repr__(self) -> str:
        return f"TieredPartition({self._tip}, {self.row})"

    def log_start_beside(self, local_log_start_offset: int) -> int:
        """The first readable offset of a partition whose local log has this log start.

        The committed one counts. A local one behind the tiered end is one that no commit has yet: from before
        the first one, or from an outage.
        """
        is_ahead = local_log_start_offset > self.tiered_end_offset
        return local_log_start_offset if is_ahead else self.log_start_offset

    def slices_from(self, offset: int) -> Iterator[LiveSlice]:
        """The slices from the one that holds `offset` on, each loaded when it is asked for."""
        return self.slices.beginning_at(offset)

    def slice_before(self, offset: int) -> LiveSlice | None:
        """The slice that holds the record before `offset`; the first one if none does any more."""
        return next(self.slices_from(max(offset - 1, 0)), None)

    def has_gap_in(self, start_offset: int, end_offset: int) -> bool:
        """Whether a gap has any of these offsets."""
        return any(True for _ in self.gaps_in(start_offset, end_offset))

    def gaps_in(self, start_offset: int, end_offset: int) -> Iterator[LiveSlice]:
        """The gaps that have any of these offsets, in order, each whole."""
        found = itertools.takewhile(
            lambda live: max(live.base_offset, start_offset) < end_offset, self.slices_from(start_offset)
        )
        return (live for live in found if live.gap is not None and live.end_offset > start_offset)

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

    def with_log_start(self, offset: int) -> ChangedPartition:
        """The partition without the slices that lie wholly below `offset`."""
        row = self.row
        assert offset >= row.log_start_offset, "log start only grows"
        lost = self.slices.columns_between(0, offset)
        # Slices tile, so no other one reaches beyond.
        if lost.data_bytes and lost.ranges.end_offsets[-1] > offset:
            lost = lost.first(-1)
        end_offset = max(row.tiered_end_offset, offset)
        row = self._without(row._replace(log_start_offset=offset), lost)
        if not row.pieces:
            row = row._replace(tiered_end_offset=end_offset, open_transactions=())
        return ChangedPartition(row._replace(stable_end_offset=max(row.stable_end_offset, offset)), lost)

    def with_tiered_end(self, offset: int) -> ChangedPartition | None:
        """The partition without the slices that end above `offset`; None unless that is its log start or the
        end of a slice, below its tiered end.
        """
        row = self.row
        newest_first = itertools.takewhile(lambda live: live.end_offset > offset, reversed(self.slices))
        dropped = list(newest_first)
        is_boundary = offset in (row.log_start_offset, dropped[-1].base_offset) if dropped else False
        if not is_boundary or offset < row.log_start_offset:
            return None
        kept, _ = self.slices.without(dropped[-1].base_offset, dropped[0].end_offset)
        lost = SliceColumns.of(dropped)
        row = row._replace(
            tiered_end_offset=offset,
            compacted_upto=min(row.compacted_upto, offset),
            slice_count=row.slice_count - len(dropped),
            tiered_bytes=row.tiered_bytes - sum(lost.data_bytes),
            pieces=kept,
        )
        if not kept:
            row = PartitionRow(
                offset, offset, offset, compacted_upto=row.compacted_upto, lowered_seq=row.lowered_seq
            )
            return ChangedPartition(row, lost)
        last = SliceList(self._tip, row, self._pages)[-1].entry
        row = row._replace(
            # What is known is that of the last slice: a transaction that it leaves open is undecided again.
            stable_end_offset=min(offset, max(row.log_start_offset, last.stable_end_offset)),
            # A compaction may have made the last slice, and local logs have other batches than that.
            end_mark=None,
            open_transactions=last.open_transactions,
        )
        return ChangedPartition(row, lost)

    def with_replaced(
        self, slices: Sequence[LiveSlice], *, are_compacted: bool = False
    ) -> ChangedPartition | None:
        """The partition with these slices, which tile, in the place of those of the same range; None if there
        is no row of slices with exactly this range. `are_compacted`: no key has two records below their end.
        """
        first, last, row = slices[0], slices[-1], self.row
        base_offset, end_offset = first.base_offset, last.end_offset
        parts = self.slices.split(base_offset, end_offset)
        if parts is None:
            return None
        before, lost, behind = parts
        size_bytes = sum([live.entry.data_bytes for live in slices]) - sum(lost.data_bytes)
        # By position: a commit makes thousands of rows.
        row = PartitionRow._make(
            (
                row.log_start_offset,
                row.tiered_end_offset,
                row.stable_end_offset,
                row.end_mark,
                max(row.compacted_upto, self._compacted_end(last) if are_compacted else 0),
                row.slice_count + len(slices) - len(lost.data_bytes),
                row.tiered_bytes + size_bytes,
                row.oldest_newest_ms if before else first.newest_ms,
                row.oldest_ms if before else first.oldest_ms,
                max([row.newest_ms, *[live.newest_ms for live in slices]]),
                row.open_transactions if behind else last.entry.open_transactions,
                (*before, *slices, *behind),
                row.lowered_seq,
            )
        )
        return ChangedPartition(row, lost)

    def _compacted_end(self, last: LiveSlice) -> int:
        """The end of what a job has compacted whose last output is that slice: undecided records count for
        none of their keys yet, and a gap behind it has no records."""
        end_offset = last.end_offset
        if last.entry.open_transactions:
            return last.entry.stable_end_offset
        if end_offset >= self.tiered_end_offset:
            return end_offset
        gaps = itertools.takewhile(lambda live: live.gap is not None, self.slices_from(end_offset))
        return max([end_offset, *(live.end_offset for live in gaps)])

    def _without(self, row: PartitionRow, lost: SliceColumns) -> PartitionRow:
        """The row without its first slices."""
        if not lost.data_bytes:
            return row
        _, left = self.slices.without(lost.ranges.base_offsets[0], lost.ranges.end_offsets[-1])
        row = row._replace(
            slice_count=row.slice_count - len(lost.data_bytes),
            tiered_bytes=row.tiered_bytes - sum(lost.data_bytes),
            pieces=left,
        )
        first = next(iter(SliceList(self._tip, row, self._pages)), None)
        if first is None:
            return row._replace(oldest_newest_ms=-1, oldest_ms=-1, newest_ms=-1)
        return row._replace(oldest_newest_ms=first.newest_ms, oldest_ms=first.oldest_ms)

    def check(self) -> None:
        slices, row = tuple(self.slices), self.row
        for earlier, later in itertools.pairwise(slices):
            assert earlier.end_offset == later.base_offset, "slices tile"
        for live in slices:
            entry = live.entry
            assert live.base_offset < live.end_offset, "a live slice has a range"
            assert (live.gap is None) == bool(live.object_name), "a slice has an object, or is a gap"
            assert entry.base_offset <= live.base_offset, "slices are clipped at the low end only"
            assert entry.end_offset == live.end_offset, "slices are never clipped at the high end"
            assert live.end_offset > row.log_start_offset, "slices wholly below log start are dropped"
        self.row.check()
        assert len(slices) == row.slice_count, "slices are counted"
        assert sum(live.entry.data_bytes for live in slices) == row.tiered_bytes, "bytes are counted"
        if slices:
            assert slices[0].newest_ms == row.oldest_newest_ms, "the first slice's age is known"
            assert slices[0].oldest_ms == row.oldest_ms, "the first slice's oldest record is known"
            assert max(live.newest_ms for live in slices) <= row.newest_ms, "no slice is newer"
            assert slices[-1].entry.open_transactions == row.open_transactions, (
                "the last slice tells which transactions are open"
            )
