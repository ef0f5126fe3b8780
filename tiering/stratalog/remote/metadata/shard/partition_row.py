"""The part of a partition that a state keeps in memory: its offsets, sums, and where its slices are.

The slices are in pieces. A piece is one slice that a commit brought since the checkpoint, or a range whose
slices are in the checkpoint's pages. A piece of the second kind names a range of offsets and no page: slices
tile, and a range that no commit touched has the same slices in every later checkpoint. So a partition that
does not change keeps its row, whatever is folded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.slice_entry import LastBatch, OpenTransaction


class StoredSlices(NamedTuple):
    """The slices of a range that are in the pages of the checkpoint. They tile it exactly."""

    base_offset: int
    end_offset: int
    slice_count: int


Piece = StoredSlices | LiveSlice


class PartitionRow(NamedTuple):
    """The row of one partition. Immutable: a commit makes a new one."""

    log_start_offset: int = 0
    tiered_end_offset: int = 0
    """Exclusive end of the committed slices: the next slice begins here."""
    stable_end_offset: int = 0
    """Exclusive end of the offsets below every open transaction, as far as the slices tell."""
    end_mark: LastBatch | None = None
    """The last batch before the tiered end as it was uploaded, for comparison with a local log."""
    compacted_upto: int = 0
    """Below this offset at most one record of each key is left."""
    slice_count: int = 0
    """Live slices, gaps among them."""
    tiered_bytes: int = 0
    """Bytes of the live slices; clipped slices count whole."""
    oldest_newest_ms: int = -1
    """`LiveSlice.newest_ms` of the first slice; -1 without slices."""
    oldest_ms: int = -1
    """`LiveSlice.oldest_ms` of the first slice; -1 without slices."""
    newest_ms: int = -1
    """No slice has a newer record; -1 without slices. One that is gone may have had this one."""
    open_transactions: tuple[OpenTransaction, ...] = ()
    """The transactions that are open at the tiered end."""
    pieces: tuple[Piece, ...] = ()
    lowered_seq: int = 0
    """The newest commit that has moved the tiered end back; 0 if none has. Whatever was begun before it and
    goes on above the tiered end is never committed."""

    def with_slice(self, live: LiveSlice) -> PartitionRow:
        """The partition with one more slice at its tiered end."""
        assert live.base_offset == self.tiered_end_offset, "slices tile"
        entry, pieces = live.entry, self.pieces
        # By position: a commit makes thousands of rows.
        return PartitionRow._make(
            (
                self.log_start_offset,
                live.end_offset,
                # An open transaction that began below log start or before a gap can be below every slice.
                max(self.stable_end_offset, entry.stable_end_offset),
                entry.last_batch or self.end_mark,
                self.compacted_upto,
                self.slice_count + 1,
                self.tiered_bytes + entry.data_bytes,
                self.oldest_newest_ms if pieces else live.newest_ms,
                self.oldest_ms if pieces else live.oldest_ms,
                max(self.newest_ms, live.newest_ms),
                entry.open_transactions,
                (*pieces, live),
                self.lowered_seq,
            )
        )

    @property
    def held(self) -> tuple[LiveSlice, ...] | None:
        """All slices, if none is in a page."""
        pieces: Any = self.pieces
        return None if StoredSlices in map(type, pieces) else pieces

    @property
    def unfolded_count(self) -> int:
        """Slices that are in memory because no checkpoint has them yet."""
        return list(map(type, self.pieces)).count(LiveSlice)

    def folded(self) -> PartitionRow:
        """The row once a checkpoint has all of its slices."""
        if not self.pieces:
            return self
        stored = StoredSlices(self.pieces[0].base_offset, self.pieces[-1].end_offset, self.slice_count)
        return self._replace(pieces=(stored,))

    def check(self) -> None:
        """Check what the row alone shows; `TieredPartition.check` looks at the slices, too."""
        if self.pieces:
            assert self.pieces[0].base_offset <= self.log_start_offset, "there is no hole at log start"
            assert self.pieces[-1].end_offset == self.tiered_end_offset, (
                "the last slice ends at the tiered end"
            )
        else:
            assert self.tiered_end_offset == self.log_start_offset, (
                "without slices the tiered end is log start"
            )
        assert 0 <= self.stable_end_offset <= self.tiered_end_offset, "the stable end is tiered"
        assert 0 <= self.compacted_upto <= self.tiered_end_offset, "compacted offsets are tiered"
        counts = [piece.slice_count if isinstance(piece, StoredSlices) else 1 for piece in self.pieces]
        assert all(counts), "a piece has slices"
        assert sum(counts) == self.slice_count, "slices are counted"


EMPTY_ROW = PartitionRow()
"""The row of a partition that the shard does not know."""
