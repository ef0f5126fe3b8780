"""The live slices of a partition as a sequence that loads the pages of the checkpoint as they are needed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.partition_row import PartitionRow, Piece, StoredSlices
from stratalog.remote.metadata.shard.slice_briefs import SliceBriefs
from stratalog.remote.metadata.shard.slice_columns import SliceColumns, SliceRanges
from stratalog.remote.metadata.shard.slice_pages import SlicePages


class SliceList(Sequence[LiveSlice]):
    """The live slices of a partition, in order. Immutable, so thread-safe.

    The length needs no page. All else may load pages, and raises as `SlicePages` does.
    """

    __slots__ = ("_pages", "_row", "_tip")

    def __init__(self, tip: TopicIdPartition, row: PartitionRow, pages: SlicePages | None) -> None:
        """`pages`: None if no slice is stored."""
        self._tip = tip
        self._row = row
        self._pages = pages

    def __len__(self) -> int:
        return self._row.slice_count

    @overload
    def __getitem__(self, index: int) -> LiveSlice: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LiveSlice, ...]: ...
    def __getitem__(self, index: int | slice) -> LiveSlice | tuple[LiveSlice, ...]:
        if isinstance(index, slice):
            return self._part(*index.indices(len(self)))
        if index == -1 and self._row.pieces:
            return next(iter(reversed(self)))
        wanted = index + len(self) if index < 0 else index
        if wanted >= 0:
            for piece in self._row.pieces:
                count = piece.slice_count if isinstance(piece, StoredSlices) else 1
                if wanted < count:
                    return self._at(piece, wanted)
                wanted -= count
        # As of a tuple: an IndexError with Python's own message.
        return ()[index]

    def __iter__(self) -> Iterator[LiveSlice]:
        for piece in self._row.pieces:
            yield from self._slices_of(piece, piece.base_offset, piece.end_offset)

    def __reversed__(self) -> Iterator[LiveSlice]:
        for piece in reversed(self._row.pieces):
            yield from self._slices_of(piece, piece.base_offset, piece.end_offset, newest_first=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SliceList):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return f"SliceList({self._row.pieces!r})"

    def in_brief(self) -> SliceBriefs:
        """All slices, at least one, in brief: a look at a whole shard costs little for each."""
        held = self._row.held
        if held is not None:
            return SliceBriefs.of(held)
        found: list[SliceBriefs] = []
        for piece in self._row.pieces:
            if isinstance(piece, StoredSlices):
                found += self._stored.briefs_between(self._tip, piece.base_offset, piece.end_offset)
            else:
                found.append(SliceBriefs.of((piece,)))
        return SliceBriefs.joined(found)

    def beginning_at(self, offset: int) -> Iterator[LiveSlice]:
        """The slices from the one that holds `offset` on; from the first one if it lies below all."""
        pieces = self._row.pieces
        first = max(bisect_right(pieces, offset, key=lambda piece: piece.base_offset) - 1, 0)
        held = self._row.held
        if held is not None:
            yield from (live for live in held[first:] if live.end_offset > offset)
            return
        for piece in pieces[first:]:
            begin_offset = max(piece.base_offset, min(offset, piece.end_offset))
            for live in self._slices_of(piece, begin_offset, piece.end_offset):
                if live.end_offset > offset:
                    yield live

    def ending_at(self, offset: int) -> Iterator[LiveSlice]:
        """The slices that begin at or below `offset`, the newest one first."""
        for piece in reversed(self._row.pieces):
            if piece.base_offset <= offset:
                end_offset = min(offset + 1, piece.end_offset)
                yield from self._slices_of(piece, piece.base_offset, end_offset, newest_first=True)

    def between(self, base_offset: int, end_offset: int) -> list[LiveSlice]:
        """The slices that begin in [base_offset, end_offset)."""
        found: list[LiveSlice] = []
        for piece, start, end in self._pieces_in(base_offset, end_offset):
            found += self._slices_of(piece, start, end, is_exact=True)
        return found

    def ranges_between(self, base_offset: int, end_offset: int) -> SliceRanges:
        """Their ranges."""
        held = self._held_between(base_offset, end_offset)
        if held is not None:
            return SliceRanges.of(held)
        return self.columns_between(base_offset, end_offset).ranges

    def columns_between(self, base_offset: int, end_offset: int) -> SliceColumns:
        """The same as columns."""
        held = self._held_between(base_offset, end_offset)
        if held is not None:
            return SliceColumns.of(held)
        found: list[SliceColumns] = []
        for piece, start, end in self._pieces_in(base_offset, end_offset):
            if isinstance(piece, StoredSlices):
                found += self._stored.columns_between(self._tip, start, end)
            elif base_offset <= piece.base_offset:
                found.append(SliceColumns.of((piece,)))
        return SliceColumns.joined(found)

    def split(
        self, base_offset: int, end_offset: int
    ) -> tuple[tuple[Piece, ...], SliceColumns, tuple[Piece, ...]] | None:
        """The slices of a range as columns, and the pieces before and behind them; None unless the range
        begins with a slice and ends with one."""
        held = self._row.held
        if held is None:
            columns = self.columns_between(base_offset, end_offset)
            if not _spans(columns, base_offset, end_offset):
                return None
            before, behind = self.without(base_offset, end_offset)
            return before, columns, behind
        first = 0 if held and held[0].base_offset >= base_offset else _rank(held, base_offset)
        end = len(held) if held and held[-1].base_offset < end_offset else _rank(held, end_offset)
        columns = SliceColumns.of(held[first:end])
        return (held[:first], columns, held[end:]) if _spans(columns, base_offset, end_offset) else None

    def without(self, base_offset: int, end_offset: int) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
        """The pieces before and behind a range that begins with a slice and ends with one."""
        before: list[Piece] = []
        behind: list[Piece] = []
        for piece in self._row.pieces:
            if piece.base_offset < base_offset:
                before.append(self._cut(piece, piece.base_offset, min(base_offset, piece.end_offset)))
            if piece.end_offset > end_offset:
                behind.append(self._cut(piece, max(end_offset, piece.base_offset), piece.end_offset))
        return tuple(before), tuple(behind)

    def _pieces_in(self, base_offset: int, end_offset: int) -> Iterator[tuple[Piece, int, int]]:
        """The pieces with offsets of a range, each with those that it has of them."""
        for piece in self._row.pieces:
            if piece.base_offset < end_offset and base_offset < piece.end_offset:
                yield piece, max(base_offset, piece.base_offset), min(end_offset, piece.end_offset)

    def _cut(self, piece: Piece, base_offset: int, end_offset: int) -> Piece:
        if (base_offset, end_offset) == (piece.base_offset, piece.end_offset):
            return piece
        assert isinstance(piece, StoredSlices), "a slice is not cut"
        count = self._stored.count_between(self._tip, base_offset, end_offset)
        return StoredSlices(base_offset, end_offset, count)

    def _part(self, start: int, stop: int, step: int) -> tuple[LiveSlice, ...]:
        held = self._row.held
        if held is not None:
            return held[start:stop:step]
        if step != 1 or stop - start < 2:
            return tuple(self[index] for index in range(start, stop, step))
        first, last = self[start], self[stop - 1]
        return tuple(self.between(first.base_offset, last.base_offset + 1))

    def _at(self, piece: Piece, index: int) -> LiveSlice:
        if isinstance(piece, StoredSlices):
            return self._stored.slice_at(self._tip, piece.base_offset, piece.end_offset, index)
        return piece

    def _slices_of(
        self,
        piece: Piece,
        base_offset: int,
        end_offset: int,
        *,
        newest_first: bool = False,
        is_exact: bool = False,
    ) -> Iterator[LiveSlice]:
        """The slices of a piece that begin in a range; the one that holds `base_offset` also if it begins
        before, unless the range `is_exact`.
        """
        if not isinstance(piece, StoredSlices):
            if not is_exact or base_offset <= piece.base_offset < end_offset:
                yield piece
            return
        if base_offset > piece.base_offset and not is_exact:
            assert not newest_first, "the newest first, down to the first slice of a piece"
            yield from self._stored.from_holding(self._tip, base_offset, end_offset)
        else:
            yield from self._stored.between(self._tip, base_offset, end_offset, newest_first=newest_first)

    def _held_between(self, base_offset: int, end_offset: int) -> Sequence[LiveSlice] | None:
        """The slices that begin in a range, if none of the partition is in a page."""
        held = self._row.held
        if not held or (base_offset <= held[0].base_offset and held[-1].base_offset < end_offset):
            return held
        return [live for live in held if base_offset <= live.base_offset < end_offset]

    @property
    def _stored(self) -> SlicePages:
        assert self._pages is not None, "a stored slice is in a checkpoint"
        return self._pages


def _rank(slices: Sequence[LiveSlice], offset: int) -> int:
    """The number of slices that begin below an offset."""
    return bisect_left(slices, offset, key=lambda live: live.base_offset)


def _spans(columns: SliceColumns, base_offset: int, end_offset: int) -> bool:
    """Whether the first slice begins and the last one ends the range."""
    _, base_offsets, end_offsets = columns.ranges
    return base_offsets[:1] == (base_offset,) and end_offsets[-1] == end_offset
