"""Counts the streams of a store that were not closed: connections that work leaves behind."""

from __future__ import annotations

from stratalog.objectstore.protocol import ReadStream
from tests.support.tiered.counting_object_store import CountingObjectStore


class OpenStreamsStore(CountingObjectStore):
    """An object store that knows how many of its streams are open. Not thread-safe: one test uses it."""

    open_count = 0

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        self.open_count += 1
        return _CountedStream(super().open_range(key, position, size, if_match=if_match), self)


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
        self._store.open_count -= self._is_open
        self._is_open = False
        self._inner.close()
