"""The batches that one read returns."""

from __future__ import annotations

from typing import Final, cast

from stratalog.log.fetch_data import FetchData
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.read.read_streams import Place
from stratalog.remote.read.slice_source import SliceCursor

_MOST_HELD_SHARE: Final = 4
"""A view holds at most so many times its own size of memory, which the cache may have given up."""


class BatchCollection:
    """Collects whole batches of consecutive slices for one read. Not thread-safe: belongs to the read."""

    def __init__(self, offset: int, end_offset: int, max_bytes: int, min_one_message: bool) -> None:
        """Collects batches that reach `offset` and begin below `end_offset`."""
        self._offset = offset
        self._end_offset = end_offset
        self._max_bytes = max_bytes
        self._min_one_message = min_one_message
        self._parts: list[memoryview] = []
        self._size_bytes = 0
        self.next_offset = offset
        """The next read begins here."""
        self.place: Place | None = None
        """The batch at which the read ended; None behind a slice."""

    @property
    def data(self) -> FetchData:
        """The batches so far, mostly as views of cached ranges."""
        return FetchData(tuple(map(_chunk, self._parts)), self.next_offset)

    def take(self, cursor: SliceCursor) -> bool:
        """Take the batches of a slice. Returns False if the read ends before the slice does. Only the first
        batch may wait for the store.

        Rows of whole batches are proven with one call. A batch that no row has is taken by itself: one that
        lies in two ranges, reaches beyond the end, or is damaged.
        """
        while not cursor.is_at_end:
            row = cursor.next_sound_batches(
                self._max_bytes - self._size_bytes,
                max(self.next_offset, cursor.base_offset),
                self._end_offset,
            )
            if row is not None:
                self._add(row.data, row.next_offset)
                continue
            self.place = Place(cursor.object_name, cursor.position)
            batch = cursor.next_cached() if self._parts else cursor.next()
            if batch is None:
                return False
            header = batch.header
            if header.base_offset >= self._end_offset:
                self.next_offset = max(self.next_offset, self._end_offset)
                return False
            if header.next_offset <= max(self._offset, cursor.base_offset):
                continue
            size_bytes = self._size_bytes + len(batch.data)
            if size_bytes > self._max_bytes and (self._parts or not self._min_one_message):
                return False
            self._add(batch.data, header.next_offset)
        return True

    def _add(self, data: memoryview, next_offset: int) -> None:
        self._size_bytes += len(data)
        self._parts.append(data)
        self.next_offset = max(self.next_offset, next_offset)

    def pass_slice(self, live: LiveSlice) -> None:
        """Go on behind a slice that has no more batches."""
        self.place = None
        self.next_offset = max(self.next_offset, min(live.end_offset, self._end_offset))


def _chunk(part: memoryview) -> bytes | memoryview:
    """The part, or a copy if it is a small part of what it holds in memory."""
    held_bytes = len(cast("bytes", part.obj))
    return part if len(part) * _MOST_HELD_SHARE >= held_bytes else bytes(part)
