"""The batches and indexes of live slices, through bounded caches.

Data is fetched in chunks of one size, at multiples of that size. So neighbours in an object (other partitions
of the same upload, the next fetch of the same one) find it in the cache, and no request is small. Requests
for the same chunk at the same time become one. Indexes have a cache of their own: they are small, and losing
one to a scan of data would cost a request for each later look-up.

Objects are immutable and names are never reused, so the caches never hold old data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError, StoreCorruptError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.batch import crc_matches
from stratalog.record.header import HEADER_SIZE, BatchHeader, parse_header
from stratalog.remote.loading_cache import CacheStats, LoadingCache
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.object_directory import read_slice_index
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_index import SliceIndex
from stratalog.remote.store_layout import StoreLayout


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RemoteReaderSettings:
    """Sizes of requests and caches. Immutable."""

    read_ahead_bytes: int = 4 << 20
    """Size of a data request. Larger means fewer requests for a long read and more waste for a short one."""
    data_cache_bytes: int = 256 << 20
    """Data of objects in memory. At least a few `read_ahead_bytes` for each reader that lags behind."""
    index_cache_bytes: int = 32 << 20
    """Indexes of slices in memory; about 100 KB for a slice of 256 MiB."""

    def __post_init__(self) -> None:
        assert self.read_ahead_bytes > 0
        assert self.data_cache_bytes >= 0
        assert self.index_cache_bytes >= 0


class SliceBatch(NamedTuple):
    """A batch of a slice, with a verified checksum."""

    header: BatchHeader
    data: memoryview


class ReaderCaches(NamedTuple):
    """The two caches of a reader."""

    data: CacheStats
    indexes: CacheStats


class SliceSource:
    """Reads slices through the caches. Thread-safe: the caches are, everything else is immutable."""

    def __init__(self, store: ObjectStore, layout: StoreLayout, settings: RemoteReaderSettings) -> None:
        self._store = store
        self._layout = layout
        self._chunk_bytes = settings.read_ahead_bytes
        self._chunks: LoadingCache[tuple[str, int], bytes] = LoadingCache(settings.data_cache_bytes, len)
        self._indexes: LoadingCache[tuple[str, int], SliceIndex] = LoadingCache(
            settings.index_cache_bytes, _index_size_bytes
        )

    @property
    def cache_stats(self) -> ReaderCaches:
        return ReaderCaches(self._chunks.stats, self._indexes.stats)

    def empty_caches(self) -> int:
        """Empty both caches; returns the size of their values."""
        return self._chunks.clear() + self._indexes.clear()

    def index(self, live: LiveSlice) -> SliceIndex:
        """The slice's index: one small GET, or none. Raises ObjectNotFoundError, StoreCorruptError."""
        key = (live.object_name, live.entry.data_position)
        return self._indexes.get(
            key, lambda: read_slice_index(self._store, self._layout, live.object_name, live.entry)
        )

    def batches(
        self, ref: ObjectRef, live: LiveSlice, position: int, end_position: int
    ) -> Iterator[SliceBatch]:
        """The batches in [position, end_position) of the slice's data, both counted from its start.

        Raises ObjectNotFoundError, StoreCorruptError for a batch that is damaged in the store.
        """
        start = live.entry.data_position
        position, end_position = start + position, start + end_position
        while position < end_position:
            batch = self._batch(ref, position, end_position)
            yield batch
            position += batch.header.size_in_bytes

    def _batch(self, ref: ObjectRef, position: int, end_position: int) -> SliceBatch:
        try:
            return self._checked_batch(ref, position, end_position)
        except CorruptRecordError:
            # A connection may have garbled bytes that the store holds intact: fetch them once more.
            self._forget(ref, position, end_position)
        try:
            return self._checked_batch(ref, position, end_position)
        except CorruptRecordError as error:
            raise StoreCorruptError(
                "a batch in the object store is damaged; restore the object from a copy",
                name=ref.name,
                position=position,
            ) from error

    def _checked_batch(self, ref: ObjectRef, position: int, end_position: int) -> SliceBatch:
        left_bytes = end_position - position
        header = parse_header(self._bytes(ref, position, min(HEADER_SIZE, left_bytes)))
        if header.size_in_bytes > left_bytes:
            raise CorruptRecordError("a batch reaches beyond its interval", position=position)
        data = self._bytes(ref, position, header.size_in_bytes)
        if not crc_matches(data, 0, header):
            raise CorruptRecordError("a batch fails its checksum", base_offset=header.base_offset)
        return SliceBatch(header, data)

    def _bytes(self, ref: ObjectRef, position: int, size_bytes: int) -> memoryview:
        """Bytes of an object's data: a view of a cached chunk; a copy only where they lie in several
        chunks.
        """
        pieces: list[memoryview] = []
        while size_bytes > 0:
            number, start = divmod(position, self._chunk_bytes)
            piece = memoryview(self._chunk(ref, number))[start : start + size_bytes]
            assert piece, "a slice lies inside the data of its object"
            pieces.append(piece)
            position += len(piece)
            size_bytes -= len(piece)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def _chunk(self, ref: ObjectRef, number: int) -> bytes:
        start = number * self._chunk_bytes
        size_bytes = min(self._chunk_bytes, ref.directory_position - start)
        key = self._layout.data_key(ref.name)
        return self._chunks.get((ref.name, number), lambda: self._store.get_range(key, start, size_bytes))

    def _forget(self, ref: ObjectRef, position: int, end_position: int) -> None:
        for number in range(position // self._chunk_bytes, -(-end_position // self._chunk_bytes)):
            self._chunks.forget((ref.name, number))


def _index_size_bytes(index: SliceIndex) -> int:
    return 512 + 24 * index.interval_count + 32 * len(index.aborted) + len(index.producer_snapshot)
