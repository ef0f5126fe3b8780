"""The slices of a run in few bytes, so that the memory of a job does not grow with partitions and objects: as
objects they take five times as much."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import cast, overload

from stratalog.remote.metadata.shard.live_slice import LiveSlice


class PackedSlices(Sequence[LiveSlice]):
    """Slices as about 230 bytes each. Immutable, so thread-safe. Each look makes all of them anew (4
    microseconds each): unpack them once for a piece of work. The length is known."""

    __slots__ = ("_count", "_data")

    def __init__(self, slices: Sequence[LiveSlice]) -> None:
        self._count = len(slices)
        self._data = pickle.dumps(tuple(slices), pickle.HIGHEST_PROTOCOL)

    def unpacked(self) -> tuple[LiveSlice, ...]:
        """The slices."""
        return cast(tuple[LiveSlice, ...], pickle.loads(self._data))

    def __len__(self) -> int:
        return self._count

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
