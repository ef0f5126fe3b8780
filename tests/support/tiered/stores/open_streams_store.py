"""Counts the streams of a store that were not closed: connections that work leaves behind."""

from __future__ import annotations

import threading

from stratalog.objectstore.protocol import ObjectStore, ReadStream
from tests.support.tiered.counting_object_store import CountingObjectStore


class OpenStreamsStore(CountingObjectStore):
    """An object store that knows how many of its streams are open. Thread-safe: `_guard` guards the count."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.open_count = 0
        self._guard = threading.Lock()

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        stream = super().open_range(key, position, size, if_match=if_match)
        self.count(1)
        return _CountedStream(stream, self)

    def count(self, opened: int) -> None:
        """So many streams more, or less, are open."""
        with self._guard:
            self.open_count += opened


class _CountedStream:
    """One user at a time, as every `ReadStream`."""

    def __init__(self, inner: ReadStream, store: OpenStreamsStore) -> None:
        self._inner = inner
        self._store = store
        self._is_open = True

    def read(self, size: int) -> bytes:
        return self._inner.read(size)

    def etag(self) -> str:
        return self._inner.etag()

    def close(self) -> None:
        self._store.count(-self._is_open)
        self._is_open = False
        self._inner.close()
