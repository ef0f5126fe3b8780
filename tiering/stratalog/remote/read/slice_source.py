"""The batches and indexes of live slices, through the caches that all readers share.

A request begins at the first byte that is needed and not cached. Its end depends on the reader: one index
interval for one that begins, up to a chunk for one that goes on, and slices behind it for one that reads
slice after slice (see `NeighbourReads`). Indexes have a cache of their own: they are small, and losing one to
a scan of data would cost a request for each later look-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError, StoreCorruptError
from stratalog.record.batch import crc_matches
from stratalog.record.header import HEADER_SIZE, BatchHeader, parse_header
from stratalog.record.native.batch_kernels import sound_batches
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.object_directory import parse_slice_index
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_index import SliceIndex
from stratalog.remote.read.object_reads import ObjectReads
from stratalog.remote.read.range_cache import CachedRange
from stratalog.remote.store_layout import StoreLayout


class SliceBatch(NamedTuple):
    """A batch of a slice, with a verified checksum."""

    header: BatchHeader
    data: memoryview


class SoundBatches(NamedTuple):
    """Consecutive batches of a slice, with verified checksums, and the offset behind them."""

    data: memoryview
    next_offset: int


class _NotCachedError(Exception):
    """The bytes are not in memory, and the reader does not want to wait. Never leaves this module."""


class SliceCursor:
    """Goes through the batches of a slice, for one read. Not thread-safe: belongs to that read."""

    def __init__(
        self,
        reads: ObjectReads,
        key: str,
        ref: ObjectRef,
        live: LiveSlice,
        position: int,
        window_bytes: int,
    ) -> None:
        """`position` is the first byte of a batch, in the object. A request has `window_bytes`."""
        self._reads = reads
        self._key = key
        self._ref = ref
        self._slice_start = live.entry.data_position
        self.object_name = live.object_name
        self.base_offset = live.base_offset
        """The slice's first valid offset."""
        self._offsets = range(live.entry.base_offset, live.entry.end_offset)
        self._window_bytes = window_bytes
        self.position = position
        self.end_position = live.entry.data_end_position
        self._range: CachedRange | None = None

    @property
    def is_at_end(self) -> bool:
        return self.position >= self.end_position

    def next(self) -> SliceBatch:
        """The batch at `position`, which moves behind it. Raises ObjectNotFoundError, StoreCorruptError for a
        batch that is damaged in the store."""
        try:
            batch = self._checked_batch(may_wait=True)
        except CorruptRecordError:
            # A connection or a disk may have garbled bytes that the store holds intact: fetch them again.
            self._range = None
            self._reads.ranges.forget(self._key, self.position, self.end_position)
            batch = self._fetched_again()
        self.position += batch.header.size_in_bytes
        return batch

    def next_sound_batches(self, max_bytes: int, first_offset: int, end_offset: int) -> SoundBatches | None:
        """The batches from `position` on that lie in one range in memory, have at most `max_bytes`, are
        sound, and have ascending offsets in [first_offset, end_offset); moves behind them. None if there are
        none: the batch at `position` may then be wanted all the same.
        """
        found = self._held_at(self.position)
        if found is None or max_bytes <= 0:
            return None
        end = min(self.position + max_bytes, self.end_position, found.end)
        data = memoryview(found.data)[self.position - found.start : end - found.start]
        size_bytes, next_offset = sound_batches(data, min(end_offset, self._offsets.stop), first_offset)
        if not size_bytes:
            return None
        self.position += size_bytes
        return SoundBatches(data[:size_bytes], next_offset)

    def next_cached(self) -> SliceBatch | None:
        """The batch at `position` if all of it is in memory and sound; moves behind it then."""
        try:
            batch = self._checked_batch(may_wait=False)
        except (_NotCachedError, CorruptRecordError):
            return None
        self.position += batch.header.size_in_bytes
        return batch

    def _fetched_again(self) -> SliceBatch:
        try:
            return self._checked_batch(may_wait=True)
        except CorruptRecordError as error:
            raise StoreCorruptError(
                "a batch in the object store is damaged; restore the object from a copy",
                name=self._ref.name,
                position=self.position,
            ) from error

    def _checked_batch(self, *, may_wait: bool) -> SliceBatch:
        left_bytes = self.end_position - self.position
        header = parse_header(self._bytes(min(HEADER_SIZE, left_bytes), may_wait=may_wait))
        if header.size_in_bytes > left_bytes:
            raise CorruptRecordError("a batch reaches beyond its slice", position=self.position)
        data = self._bytes(header.size_in_bytes, may_wait=may_wait)
        if not crc_matches(data, 0, header):
            raise CorruptRecordError("a batch fails its checksum", base_offset=header.base_offset)
        # The checksum does not cover the base offset. The first batch may begin before its slice.
        if header.next_offset <= self._offsets.start or header.next_offset > self._offsets.stop:
            raise CorruptRecordError("a batch has offsets of another slice", base_offset=header.base_offset)
        return SliceBatch(header, data)

    def _bytes(self, size_bytes: int, *, may_wait: bool) -> memoryview:
        """Bytes from `position` on: a view of a cached range; a copy only where they lie in several."""
        pieces: list[memoryview] = []
        position = self.position
        while size_bytes > 0:
            found = self._range_at(position, size_bytes, may_wait=may_wait)
            start = position - found.start
            pieces.append(memoryview(found.data)[start : start + size_bytes])
            position += len(pieces[-1])
            size_bytes -= len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def _range_at(self, position: int, size_bytes: int, *, may_wait: bool) -> CachedRange:
        found = self._held_at(position)
        if found is None:
            if not may_wait:
                raise _NotCachedError
            ranges = self._reads.ranges
            end = ranges.end_of(self._key, position) or self._request_end(position, size_bytes)
            found = self._range = ranges.get(self._key, position, end)
        return found

    def _held_at(self, position: int) -> CachedRange | None:
        """The range with the byte at `position` if it is in memory."""
        held = self._range
        if held is None or not held.start <= position < held.end:
            held = self._reads.ranges.find_loaded(self._key, position)
            self._range = held or self._range
        return held

    def _request_end(self, position: int, size_bytes: int) -> int:
        wanted_bytes = max(size_bytes, self._window_bytes)
        end = self._reads.request_end(position, wanted_bytes, self.end_position)
        begins_slice = position == self._slice_start
        end = self._reads.neighbours.end_of_request(self._key, position, end, begins_slice=begins_slice)
        return min(end, self._ref.directory_position)


class SliceSource:
    """Reads slices of one shard through the caches. Thread-safe: the caches are, everything else is
    immutable."""

    def __init__(self, reads: ObjectReads, layout: StoreLayout) -> None:
        self._reads = reads
        self._layout = layout

    def key(self, object_name: str) -> str:
        """The key of an object in the store, by which the caches know it."""
        return self._layout.data_key(object_name)

    def index(self, live: LiveSlice) -> SliceIndex:
        """The slice's index: one small GET, or none. Raises ObjectNotFoundError, StoreCorruptError."""
        # By the index's own place: a slice that compaction has emptied begins where the next one does.
        key = (self.key(live.object_name), live.entry.index.position)
        return self._reads.indexes.get(key, lambda: self._fetched_index(live))

    def _fetched_index(self, live: LiveSlice) -> SliceIndex:
        key, part = self.key(live.object_name), live.entry.index
        end = part.position + part.size_bytes
        try:
            data = self._reads.gets.get(key, part.position, end)
            return parse_slice_index(data, live.object_name, live.entry)
        except StoreCorruptError:
            # A connection may have garbled bytes that the store holds intact.
            data = self._reads.gets.get(key, part.position, end)
            return parse_slice_index(data, live.object_name, live.entry)

    def cursor(self, ref: ObjectRef, live: LiveSlice, position: int, window_bytes: int) -> SliceCursor:
        """A cursor at the batch that begins at `position` of the slice's data, counted from its start."""
        start = live.entry.data_position
        return SliceCursor(self._reads, self.key(ref.name), ref, live, start + position, window_bytes)

    def batches(
        self, ref: ObjectRef, live: LiveSlice, position: int, end_position: int
    ) -> Iterator[SliceBatch]:
        """The batches in [position, end_position) of the slice's data, both counted from its start, in one
        request. Raises ObjectNotFoundError, StoreCorruptError for a batch that is damaged in the store.
        """
        cursor = self.cursor(ref, live, position, end_position - position)
        end_position += live.entry.data_position
        while cursor.position < end_position:
            yield cursor.next()
