"""The slices of a run in few bytes, so that the memory of a job does not grow with partitions and objects: as
objects they take five times as much."""

from __future__ import annotations

import itertools
import pickle
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast, overload

from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.remote.objects.slice_entry import (
    KeyStreamRef,
    LastBatch,
    LeaderEpoch,
    OpenTransaction,
    PartRef,
    SliceEntry,
)

_COLUMN = SliceEntry._fields.index
_PARTS = {
    _COLUMN("last_batch"): LastBatch._make,
    _COLUMN("key_stream"): KeyStreamRef._make,
    _COLUMN("index"): PartRef._make,
}
"""The columns with a part of the entry, or none."""
_ROWS_OF_PARTS = {
    _COLUMN("open_transactions"): OpenTransaction._make,
    _COLUMN("leader_epochs"): LeaderEpoch._make,
}


class PackedSlices(Sequence[LiveSlice]):
    """Consecutive slices, none of them a gap, as about 200 bytes each. Immutable, so thread-safe. Each look
    makes all of them anew (2 microseconds each): unpack them once for a piece of work. Length and ranges are
    known."""

    __slots__ = ("_base_offsets", "_data", "_end_offset", "_object_names")

    def __init__(self, slices: Sequence[LiveSlice]) -> None:
        ranges = SliceRanges.of(slices)
        assert ranges.tile, "a run has no holes"
        self._object_names = ranges.object_names
        self._base_offsets = array("q", ranges.base_offsets)
        self._end_offset = ranges.end_offsets[-1]
        assert not ranges.have_gaps, "no job takes a gap"
        self._data = pickle.dumps(_plain([live.entry for live in slices]), pickle.HIGHEST_PROTOCOL)

    def unpacked(self) -> tuple[LiveSlice, ...]:
        """The slices."""
        entries = _entries(pickle.loads(self._data))
        rows = zip(*self.ranges, entries, itertools.repeat(None), strict=False)
        return tuple(map(LiveSlice._make, rows))

    @property
    def ranges(self) -> SliceRanges:
        """The ranges of the slices, which costs little."""
        base_offsets = tuple(self._base_offsets)
        return SliceRanges(self._object_names, base_offsets, (*base_offsets[1:], self._end_offset))

    def __len__(self) -> int:
        return len(self._object_names)

    @overload
    def __getitem__(self, index: int) -> LiveSlice: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LiveSlice, ...]: ...
    def __getitem__(self, index: int | slice) -> LiveSlice | tuple[LiveSlice, ...]:
        return self.unpacked()[index]

    def __iter__(self) -> Iterator[LiveSlice]:
        return iter(self.unpacked())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self.unpacked() == tuple(cast(Sequence[object], other))

    __hash__ = None  # type: ignore[assignment]  # as a list


def _plain(entries: Sequence[SliceEntry]) -> list[Sequence[Any]]:
    """The columns of entries without a class of ours: pickle takes several microseconds for each instance."""
    columns: list[Sequence[Any]] = list(zip(*entries, strict=True))
    for number in _PARTS:
        columns[number] = [part and tuple(part) for part in columns[number]]
    for number in _ROWS_OF_PARTS:
        columns[number] = list(map(_plain_parts, columns[number]))
    return columns


def _plain_parts(parts: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    return tuple([tuple(part) for part in parts])


def _entries(columns: list[Sequence[Any]]) -> Iterable[SliceEntry]:
    """The entries with these columns."""
    for number, make in _PARTS.items():
        columns[number] = [part and make(part) for part in columns[number]]
    for number, make in _ROWS_OF_PARTS.items():
        columns[number] = [parts and tuple(map(make, parts)) for parts in columns[number]]
    return map(SliceEntry._make, zip(*columns, strict=True))
