"""Divides slices that are wider than the bound of their topic, so that retention may end inside of them.

Slices of today are within the bound (`slice_span`). Wider ones remain from a longer retention, from earlier
software, or from a partition with too many slices for one job. To write them anew would cost their size in
reads and writes, while retention waits. Instead the log start moves into such a slice, from part to part, at
the boundaries of its index: readers see no older record from then on, for the price of one small GET. The
bytes go with the whole slice, or with the next job that rewrites it, because that leaves out what lies below
the log start.

The parts are as long as the bound allows. So the log start moves no more often than if they were slices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.remote.loading_cache import LoadingCache
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.objects.slice_index import SliceIndex
from stratalog.remote.objects.slice_span import Extent, SliceSpan, effective_extents

ReadIndex = Callable[[str, SliceEntry], SliceIndex]
"""Reads the index of a slice in an object. Raises StoreError."""

_CACHED_BYTES = 4 << 20
_PART_BYTES = 200
"""About what a part takes in memory."""


class SlicePart(NamedTuple):
    """A part of a slice, up to `end_offset`."""

    end_offset: int
    size_bytes: int
    newest_ms: int
    """The newest time of a record up to its end; `NO_TIMESTAMP` if none has a time."""


class WideSlices:
    """Divides wide slices. Thread-safe: its cache is."""

    def __init__(self, read_index: ReadIndex) -> None:
        self._read_index = read_index
        self._parts: LoadingCache[tuple[str, int, SliceSpan], Sequence[SlicePart]] = LoadingCache(
            _CACHED_BYTES, lambda parts: _PART_BYTES * len(parts)
        )

    def parts(self, live: LiveSlice, span: SliceSpan, log_start_offset: int) -> Sequence[SlicePart]:
        """The parts of a slice from the log start on, each within `span` where its index allows. Raises
        ObjectNotFoundError, StoreError."""
        key = (live.object_name, live.entry.data_position, span)
        parts = self._parts.get(
            key, lambda: parts_of(live, self._read_index(live.object_name, live.entry), span)
        )
        return [part for part in parts if part.end_offset > max(live.base_offset, log_start_offset)]


def parts_of(live: LiveSlice, index: SliceIndex, span: SliceSpan) -> Sequence[SlicePart]:
    """The parts of a whole slice with this index. Pure."""
    intervals = [index.interval(number) for number in range(index.interval_count)]
    extents = list(
        effective_extents(
            Extent(newest_ms, newest_ms, one.end_position - one.position)
            for one, newest_ms in zip(intervals, index.max_timestamps, strict=True)
        )
    )
    ends = [*(one.base_offset for one in intervals[1:]), live.end_offset]
    parts: list[SlicePart] = []
    first = 0
    for end in itertools.accumulate(span.divide(extents)):
        size_bytes = sum(extent.size_bytes for extent in extents[first:end])
        parts.append(SlicePart(ends[end - 1], size_bytes, extents[end - 1].newest_ms))
        first = end
    return parts
