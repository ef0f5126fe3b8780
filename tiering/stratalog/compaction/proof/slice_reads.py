"""Reads live slices for a proof: data forward over one connection, key streams a window at a time.

A merge of many key streams reads a little of each in turn. A connection for each would idle, and might be
reset; so each window is a GET of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager

from stratalog.base.clock import Clock
from stratalog.base.filesystem import Buffer
from stratalog.compaction.slice_reader import SliceReader
from stratalog.objectstore.protocol import ObjectStore
from stratalog.objectstore.resuming_reads import ResumingReads
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.key_stream import KeyBlock, read_key_stream
from stratalog.remote.objects.object_directory import read_slice_index
from stratalog.remote.objects.slice_index import SliceIndex
from stratalog.remote.store_layout import StoreLayout


class SliceReads:
    """Reads live slices of one shard. Thread-safe: it keeps nothing between calls."""

    def __init__(self, store: ObjectStore, clock: Clock, layout: StoreLayout, chunk_bytes: int) -> None:
        """`clock`: for the pauses before broken streams are resumed."""
        self._store = store
        self._clock = clock
        self._layout = layout
        self._chunk_bytes = chunk_bytes

    def key_blocks(self, live: LiveSlice, window_bytes: int) -> Iterator[KeyBlock]:
        """The blocks of the slice's key stream, which it must have, as `read_key_stream` proves them. One or
        two windows are in memory. Raises what that and the store raise."""
        stream = live.entry.key_stream
        assert stream is not None
        key = self._layout.data_key(live.object_name)

        def read_at(position: int, size: int) -> bytes:
            return self._store.get_range(key, stream.position + position, size)

        windows = _Windows(read_at, stream.size_bytes, window_bytes)
        return read_key_stream(windows.read, stream, live.entry.record_count)

    @contextmanager
    def data(self, live: LiveSlice) -> Generator[SliceReader]:
        """A reader of the slice's data, which has at least one byte. Raises what the store raises."""
        entry = live.entry
        reads = ResumingReads(self._store, self._clock, self._layout.data_key(live.object_name))
        with closing(reads.open_range(entry.data_position, entry.data_bytes)) as stream:
            yield SliceReader(entry, stream.read, self._chunk_bytes)

    def index(self, live: LiveSlice) -> SliceIndex:
        """The slice's index. Raises as `read_slice_index`."""
        return read_slice_index(self._store, self._layout, live.object_name, live.entry)


class _Windows:
    """Moves forward over bytes that are read a window at a time. Not thread-safe: guarded by its user."""

    def __init__(self, read_at: Callable[[int, int], bytes], size_bytes: int, window_bytes: int) -> None:
        self._read_at = read_at
        self._size_bytes = size_bytes
        self._window_bytes = window_bytes
        self._position = 0
        self._rest = memoryview(b"")

    def read(self, size: int) -> Buffer:
        """Exactly `size` bytes; fewer only at the end."""
        while len(self._rest) < size and self._position < self._size_bytes:
            wanted_bytes = min(self._window_bytes, self._size_bytes - self._position)
            window = self._read_at(self._position, wanted_bytes)
            self._position += len(window)
            self._rest = memoryview(b"".join((self._rest, window)) if len(self._rest) else window)
        found, self._rest = self._rest[:size], self._rest[size:]
        return found
