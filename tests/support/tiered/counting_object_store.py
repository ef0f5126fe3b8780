"""Counts the requests to a store, by verb and key.

A request counts when it is made, whether it succeeds or not. Bytes count when they have arrived (or, for
writes, been accepted), a stream's as they are read. A listing counts as one LIST; a bulk deletion as one
DELETE for each thousand keys, under an empty key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from stratalog.objectstore.protocol import (
    DEFAULT_PART_BYTES,
    Buffer,
    ObjectInfo,
    ObjectPlace,
    ObjectStore,
    ReadStream,
    StoredObject,
    UnfinishedUpload,
)

_KEYS_PER_DELETE = 1000


class RequestKind(NamedTuple):
    """`verb` is GET, PUT, LIST or DELETE; `key` an object's, a listing's prefix, or empty (bulk deletion)."""

    verb: str
    key: str


class RequestCount(NamedTuple):
    """Requests, and bytes of their bodies."""

    requests: int = 0
    size_bytes: int = 0


class _CountingStream:
    """One user at a time, as every `ReadStream`."""

    def __init__(self, inner: ReadStream, count_bytes: Callable[[int], None]) -> None:
        self._inner = inner
        self._count_bytes = count_bytes

    def read(self, size: int) -> bytes:
        data = self._inner.read(size)
        self._count_bytes(len(data))
        return data

    def close(self) -> None:
        self._inner.close()


class CountingObjectStore:
    """An object store that counts requests and bytes. Thread-safe: `_lock` guards the counts and is never
    held during a request."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._counts: dict[RequestKind, RequestCount] = {}

    def counts(self) -> dict[RequestKind, RequestCount]:
        """A copy of the counts since the last `reset`."""
        with self._lock:
            return dict(self._counts)

    def total(self, verb: str, key_prefix: str = "") -> RequestCount:
        """The sum over all keys that begin with `key_prefix`."""
        of_verb = [
            count
            for kind, count in self.counts().items()
            if kind.verb == verb and kind.key.startswith(key_prefix)
        ]
        return RequestCount(
            sum(count.requests for count in of_verb), sum(count.size_bytes for count in of_verb)
        )

    def reset(self) -> None:
        with self._lock:
            self._counts.clear()

    @property
    def url(self) -> str:
        return self._inner.url

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        kind = self._count_requests("PUT", key)
        etag = self._inner.put(key, data, if_match=if_match, if_absent=if_absent)
        self._count(kind, size_bytes=memoryview(data).nbytes)
        return etag

    def put_parts(self, key: str, parts: Iterable[Buffer], *, part_bytes: int = DEFAULT_PART_BYTES) -> str:
        kind = self._count_requests("PUT", key)
        sizes: list[int] = []
        etag = self._inner.put_parts(key, _noting_sizes(parts, sizes), part_bytes=part_bytes)
        self._count(kind, size_bytes=sum(sizes))
        return etag

    def place_of(self, key: str) -> ObjectPlace | None:
        return self._inner.place_of(key)

    def copy(self, source: ObjectPlace, key: str, size_bytes: int) -> bool:
        self._count_requests("COPY", key)
        return self._inner.copy(source, key, size_bytes)

    def get(self, key: str) -> StoredObject:
        kind = self._count_requests("GET", key)
        found = self._inner.get(key)
        self._count(kind, size_bytes=len(found.data))
        return found

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        kind = self._count_requests("GET", key)
        found = self._inner.get_if_changed(key, etag)
        self._count(kind, size_bytes=0 if found is None else len(found.data))
        return found

    def get_range(self, key: str, position: int, size: int) -> bytes:
        kind = self._count_requests("GET", key)
        data = self._inner.get_range(key, position, size)
        self._count(kind, size_bytes=len(data))
        return data

    def open_range(self, key: str, position: int, size: int) -> ReadStream:
        kind = self._count_requests("GET", key)
        stream = self._inner.open_range(key, position, size)
        return _CountingStream(stream, lambda size_bytes: self._count(kind, size_bytes=size_bytes))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        self._count_requests("LIST", prefix)
        return self._inner.list(prefix, start_after=start_after)

    def delete_many(self, keys: Sequence[str]) -> None:
        self._count_requests("DELETE", "", requests=-(-len(keys) // _KEYS_PER_DELETE))
        self._inner.delete_many(keys)

    def list_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        self._count_requests("LIST", prefix)
        return self._inner.list_uploads(prefix)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self._count_requests("DELETE", upload.key)
        self._inner.abort_upload(upload)

    def remarks(self) -> Sequence[str]:
        return self._inner.remarks()

    def close(self) -> None:
        self._inner.close()

    def _count_requests(self, verb: str, key: str, requests: int = 1) -> RequestKind:
        kind = RequestKind(verb, key)
        self._count(kind, requests=requests)
        return kind

    def _count(self, kind: RequestKind, *, requests: int = 0, size_bytes: int = 0) -> None:
        with self._lock:
            before = self._counts.get(kind, RequestCount())
            self._counts[kind] = RequestCount(before.requests + requests, before.size_bytes + size_bytes)


def _noting_sizes(parts: Iterable[Buffer], sizes: list[int]) -> Iterator[Buffer]:
    """Yield the parts, which may be iterated only once, and collect their sizes."""
    for part in parts:
        sizes.append(memoryview(part).nbytes)
        yield part
