"""Recognises readers that go on where a read ended, and tells how much such a reader wants at once.

The next read of a sequential reader begins at the offset where its last one ended. So that offset, with its
partition, is the name of the reader: however many readers a partition has, each is recognised, and one that
seeks begins anew. Readers at the same offset share one entry, and lose nothing by it: the data are cached.

The first read of a reader fetches one index interval. After that its window is four times as large as what it
has read without a seek, and at least what it asked for with one read, within bounds: so a reader that ends
somewhere has fetched at most about five times what it read, or the answer that it did not wait for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from stratalog.base.types import TopicIdPartition
from stratalog.log.fetch_data import FetchData
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.read.range_cache import CachedRange

_MAX_STREAM_COUNT = 8192
_GROWTH = 4


class Place(NamedTuple):
    """The first byte of a batch in an object."""

    object_name: str
    position: int

    def is_in(self, live: LiveSlice) -> bool:
        entry = live.entry
        is_inside = entry.data_position <= self.position < entry.data_end_position
        return is_inside and live.object_name == self.object_name


class ReaderAhead:
    """The reservations of read-ahead for one reader. Thread-safe: each use is one operation of Python."""

    def __init__(self) -> None:
        self.ranges: list[CachedRange] = []
        """May have been loaded meanwhile, or used by others."""
        self.is_over = False
        """The reader has ended, and nothing more is to be read ahead of it."""


class ReadStream(NamedTuple):
    """A reader between two reads."""

    window_bytes: int
    """Size of its next request, and of what is loaded ahead of it; 0 for a reader that begins."""
    read_bytes: int
    """Bytes that it has read since it began."""
    place: Place | None
    """The batch behind its last one, in the same slice; None if that ended."""
    ahead: ReaderAhead


class ReadEnd(NamedTuple):
    """The end of one read of a partition."""

    tip: TopicIdPartition
    data: FetchData
    place: Place | None
    """The batch behind the last one, in the same slice; None if that ended."""
    asked_bytes: int
    """The most bytes that the read was to return."""
    share_bytes: int
    """The most that may lie ahead of its reader, beside all the others."""


BEGIN = ReadStream(0, 0, None, ReaderAhead())
"""A reader that begins or has sought."""


class ReadStreams:
    """The sequential readers of a shard's partitions. Thread-safe: `_lock` guards everything."""

    def __init__(self, min_window_bytes: int, max_asked_bytes: int, max_window_bytes: int) -> None:
        """Windows grow to `max_asked_bytes` at once where a reader asks for so much."""
        self._min_window_bytes = min_window_bytes
        self._max_asked_bytes = max_asked_bytes
        self._max_window_bytes = max(min_window_bytes, max_window_bytes)
        self._lock = threading.Lock()
        # The least recently used reader is forgotten first.
        self._streams: OrderedDict[tuple[TopicIdPartition, int], ReadStream] = OrderedDict()

    def at(self, tip: TopicIdPartition, offset: int) -> ReadStream:
        """The reader that goes on at `offset`; `BEGIN` if none does."""
        with self._lock:
            stream = self._streams.get((tip, offset), BEGIN)
        return stream._replace(ahead=ReaderAhead()) if stream.ahead.is_over else stream

    def end_read(self, before: ReadStream, end: ReadEnd) -> ReadStream:
        """Remember where a read ended; returns how its reader goes on."""
        tip, data, place = end.tip, end.data, end.place
        read_bytes = before.read_bytes + data.size_bytes
        wanted_bytes = max(_GROWTH * read_bytes, min(end.asked_bytes, self._max_asked_bytes))
        most_bytes = min(end.share_bytes, self._max_window_bytes)
        window_bytes = max(min(wanted_bytes, most_bytes), self._min_window_bytes)
        ahead = ReaderAhead() if before is BEGIN else before.ahead
        stream = ReadStream(window_bytes, read_bytes, place, ahead)
        next_offset = data.next_offset
        with self._lock:
            self._streams[tip, next_offset] = stream
            self._streams.move_to_end((tip, next_offset))
            while len(self._streams) > _MAX_STREAM_COUNT:
                self._streams.popitem(last=False)
        return stream

    def __len__(self) -> int:
        return len(self._streams)
