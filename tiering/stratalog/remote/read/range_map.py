"""Ranges of objects that do not overlap, found by a position in them.

The ranges of an object are in ascending order, so a look-up is a binary search among them. An object has few:
its size divided by the smallest request.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class ObjectRange(Protocol):
    """Bytes [start, end) of the object with this key."""

    @property
    def key(self) -> str: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


R = TypeVar("R", bound=ObjectRange)


class RangeMap(Generic[R]):
    """Ranges by object and position. Not thread-safe: guarded by the cache that it belongs to."""

    def __init__(self) -> None:
        self._starts: dict[str, list[int]] = {}
        self._ranges: dict[tuple[str, int], R] = {}

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[R]:
        return iter(self._ranges.values())

    def find(self, key: str, position: int) -> R | None:
        """The range that has the byte at `position`."""
        before = self._last_upto(key, position)
        return before if before is not None and position < before.end else None

    def end_before(self, key: str, position: int) -> int:
        """The end of the last range that begins at or below `position`; 0 if there is none."""
        before = self._last_upto(key, position)
        return 0 if before is None else before.end

    def start_behind(self, key: str, position: int) -> int | None:
        """The start of the first range behind `position`; None if there is none."""
        starts = self._starts.get(key, [])
        index = bisect_right(starts, position)
        return starts[index] if index < len(starts) else None

    def within(self, key: str, start: int, end: int) -> list[R]:
        """The ranges that have a byte of [start, end)."""
        starts = self._starts.get(key, [])
        first = max(bisect_right(starts, start) - 1, 0)
        found = [self._ranges[key, one] for one in starts[first : bisect_left(starts, end)]]
        return [one for one in found if one.end > start]

    def add(self, one: R) -> None:
        """Add a range that overlaps none."""
        starts = self._starts.setdefault(one.key, [])
        index = bisect_left(starts, one.start)
        assert one.start < one.end, "a range is not empty"
        assert self.find(one.key, one.start) is None, "ranges do not overlap"
        assert index == len(starts) or one.end <= starts[index], "ranges do not overlap"
        starts.insert(index, one.start)
        self._ranges[one.key, one.start] = one

    def remove(self, one: R) -> None:
        """Remove a range that is there."""
        del self._ranges[one.key, one.start]
        starts = self._starts[one.key]
        del starts[bisect_left(starts, one.start)]
        if not starts:
            del self._starts[one.key]

    def check(self) -> None:
        assert sum(map(len, self._starts.values())) == len(self._ranges)
        for key, starts in self._starts.items():
            ranges = [self._ranges[key, start] for start in starts]
            assert starts == sorted(starts), "the ranges of an object ascend"
            assert all(one.key == key and one.start < one.end for one in ranges)
            assert all(a.end <= b.start for a, b in itertools.pairwise(ranges))

    def _last_upto(self, key: str, position: int) -> R | None:
        starts = self._starts.get(key)
        if starts is None:
            return None
        index = bisect_right(starts, position)
        return self._ranges[key, starts[index - 1]] if index else None
