"""The slices of a run in few bytes, so that the memory of a job does not grow with partitions and objects: as
objects they take five times as much."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterator, Sequence
from typing import cast, overload

from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.slice_columns import SliceRanges


class PackedSlices(Sequence[LiveSlice]):
    """Consecutive slices as about 250 bytes each. Immutable, so thread-safe. Each look makes all of them anew
    (4 microseconds each): unpack them once for a piece of work. Length and ranges are known."""

    __slots__ = ("_base_offsets", "_data", "_end_offset", "_object_names")

    def __init__(self, slices: Sequence[LiveSlice]) -> None:
        ranges = SliceRanges.of(slices)
        assert ranges.tile, "a run has no holes"
        self._object_names = ranges.object_names
        self._base_offsets = array("q", ranges.base_offsets)
        self._end_offset = ranges.end_offsets[-1]
        self._data = pickle.dumps(tuple(slices), pickle.HIGHEST_PROTOCOL)

    def unpacked(self) -> tuple[LiveSlice, ...]:
        """The slices."""
        return cast(tuple[LiveSlice, ...], pickle.loads(self._data))

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
