"""Loads what lies ahead of sequential readers, across the ends of slices and objects.

After each read of such a reader, as much lies ahead of it in memory, or is on its way, as its window has
bytes. A request begins where the last one ended. It is a chunk, like those of the reader itself, or several
where the window has room for three, because a request costs the server and the store much the same at any
size; each chunk is there as soon as it has come. A reader that has few beside it has a large window, and asks
for two chunks at a time: a store gives each connection only a part of its rate, so it needs several. One of
more readers asks for four, where the window has no room for them once half of it is missing.

A failure ends the reading ahead, and not the read: its reader comes to the place, and tells.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.errors import LogStoreError
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.read.object_reads import ObjectReads
from stratalog.remote.read.read_streams import ReaderAhead, ReadStream
from stratalog.remote.read.slice_source import SliceSource

_LEAST_SHARE = 4
"""A range counts as at least this part of a chunk, which bounds the requests for many small slices."""
_LARGE_REQUESTS = ((6, 2), (3, 4))
"""The chunks of a window from which on a request has so many chunks."""


class _Plan(NamedTuple):
    """A way to load what lies ahead of one reader."""

    window_bytes: int
    request_bytes: int
    """The size of a request."""
    least_missing_bytes: int
    """A request begins where so much of the window is missing."""
    least_range_bytes: int
    """A range counts as so much at least."""
    ahead: ReaderAhead


class ReadAhead:
    """Reads ahead in the partitions of a shard. Thread-safe: it holds only thread-safe parts."""

    def __init__(self, reads: ObjectReads, source: SliceSource) -> None:
        self._reads = reads
        self._source = source
        self._chunk_bytes = reads.settings.chunk_bytes
        self._max_bytes = reads.settings.read_ahead_bytes

    def follow(
        self,
        state: ShardState,
        partition: TieredPartition,
        next_offset: int,
        stream: ReadStream,
    ) -> None:
        """Load what the reader will want that goes on at `next_offset`; less where a slice that lies ahead
        cannot be looked up."""
        try:
            self._follow(state, partition, next_offset, stream)
        except LogStoreError:
            # The page of a later slice: its reader asks for it again, and tells.
            pass
        if stream.ahead.is_over:
            # The reader has ended meanwhile.
            self.end(stream.ahead)

    def end(self, ahead: ReaderAhead) -> None:
        """Load nothing more for a reader that has ended. What is on its way goes on."""
        ahead.is_over = True
        self._reads.ranges.drop_ahead(ahead.ranges)
        ahead.ranges = []

    def _follow(
        self, state: ShardState, partition: TieredPartition, next_offset: int, stream: ReadStream
    ) -> None:
        stream.ahead.ranges = self._reads.ranges.still_reserved(stream.ahead.ranges)
        plan = self._plan(stream)
        left_bytes = plan.window_bytes
        for live in partition.slices_from(next_offset):
            if left_bytes <= 0:
                return
            found = state.objects.get(live.object_name)
            if found is None or not live.entry.data_bytes:
                continue
            position = live.entry.data_position
            if stream.place is not None and stream.place.is_in(live):
                position = stream.place.position
            left_bytes = self._load(found.ref, live, position, left_bytes, plan)

    def _plan(self, stream: ReadStream) -> _Plan:
        window_bytes = 0 if stream.ahead.is_over else min(stream.window_bytes, self._max_bytes)
        chunk_bytes = min(window_bytes, self._chunk_bytes)
        counts = (count for least, count in _LARGE_REQUESTS if window_bytes >= least * self._chunk_bytes)
        request_bytes = next(counts, 1) * chunk_bytes
        return _Plan(
            window_bytes=window_bytes,
            request_bytes=request_bytes,
            # One that is larger than the window would reach far beyond it.
            least_missing_bytes=window_bytes // 2 if request_bytes > window_bytes else 1,
            least_range_bytes=chunk_bytes // _LEAST_SHARE,
            ahead=stream.ahead,
        )

    def _load(self, ref: ObjectRef, live: LiveSlice, position: int, left_bytes: int, plan: _Plan) -> int:
        """Load the slice from `position` on; returns what is left of the window, 0 if there is no room."""
        key = self._source.key(ref.name)
        slice_end = live.entry.data_end_position
        while position < slice_end and left_bytes > 0:
            end = self._reads.ranges.end_of(key, position)
            if end is None:
                if left_bytes < plan.least_missing_bytes:
                    return 0
                wanted_end = self._reads.request_end(position, plan.request_bytes, slice_end)
                ranges = self._reads.read_ahead(key, position, wanted_end)
                if not ranges:
                    return 0
                plan.ahead.ranges += ranges
                end = ranges[-1].end
            left_bytes -= max(min(end, slice_end) - position, plan.least_range_bytes)
            position = end
        return left_bytes
