"""An object store that counts its requests and their bytes, for what a store charges.

A request counts when it is made, whether it succeeds or not. Bytes count when they have arrived (or, for
writes, been accepted), a stream's as they are read. A write of parts counts as the requests that S3 needs, a
listing as one request, a bulk deletion as one for each thousand keys. Repetitions of a request by the library
of the store are not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from stratalog.objectstore.protocol import (
    DEFAULT_PART_BYTES,
    Buffer,
    ObjectInfo,
    ObjectPlace,
    ObjectStore,
    ObjectUpload,
    ReadStream,
    StoredObject,
    UnfinishedUpload,
)

_KEYS_PER_DELETE = 1000


class RequestKind(NamedTuple):
    """Requests that are counted together."""

    verb: str
    """GET, PUT, COPY, LIST or DELETE."""
    kind: str
    """The kind of the keys; a bulk deletion has that of its first key."""


class RequestCount(NamedTuple):
    """Requests, and bytes of their bodies."""

    requests: int = 0
    size_bytes: int = 0


class _CountedStream:
    """One user at a time, as every `ReadStream`."""

    def __init__(self, inner: ReadStream, count_bytes: Callable[[int], None]) -> None:
        self._inner = inner
        self._count_bytes = count_bytes

    def read(self, size: int) -> bytes:
        data = self._inner.read(size)
        self._count_bytes(len(data))
        return data

    def etag(self) -> str:
        return self._inner.etag()

    def close(self) -> None:
        self._inner.close()


class _CountedUpload:
    """One user at a time, as every `ObjectUpload`."""

    def __init__(self, inner: ObjectUpload, count: Callable[[int, int], None]) -> None:
        """`count` counts requests and bytes."""
        self._inner = inner
        self._count = count

    def put_part(self, number: int, data: Sequence[Buffer]) -> None:
        self._count(1, 0)
        self._inner.put_part(number, data)
        self._count(0, sum(memoryview(piece).nbytes for piece in data))

    def complete(self, crc: int) -> None:
        self._count(1, 0)
        self._inner.complete(crc)

    def abort(self) -> None:
        self._inner.abort()


class CountedObjectStore:
    """An object store that counts requests and bytes. Thread-safe: `_lock` guards the counts and is never
    held during a request."""

    def __init__(self, inner: ObjectStore, kind_of: Callable[[str], str]) -> None:
        """`kind_of` returns the kind of a key, or of the prefix of a listing."""
        self._inner = inner
        self._kind_of = kind_of
        self._lock = threading.Lock()
        self._counts: dict[RequestKind, RequestCount] = {}

    def counts(self) -> dict[RequestKind, RequestCount]:
        """A copy of the counts since the start or the last `reset`."""
        with self._lock:
            return dict(self._counts)

    def reset(self) -> None:
        """Begin to count anew."""
        with self._lock:
            self._counts.clear()

    def take_counts(self) -> dict[RequestKind, RequestCount]:
        """The counts since the start or the last call; they begin anew."""
        with self._lock:
            taken, self._counts = self._counts, {}
            return taken

    def add_counts(self, counts: Mapping[RequestKind, RequestCount]) -> None:
        """Count requests that another process has made."""
        for kind, count in counts.items():
            self._count(kind, requests=count.requests, size_bytes=count.size_bytes)

    @property
    def url(self) -> str:
        return self._inner.url

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        kind = self._count_requests("PUT", key)
        etag = self._inner.put(key, data, if_match=if_match, if_absent=if_absent)
        self._count(kind, size_bytes=memoryview(data).nbytes)
        return etag

    def put_parts(self, key: str, parts: Iterable[Buffer], *, part_bytes: int = DEFAULT_PART_BYTES) -> None:
        kind = self._count_requests("PUT", key)
        sizes: list[int] = []
        self._inner.put_parts(key, _noting_sizes(parts, sizes), part_bytes=part_bytes)
        size_bytes = sum(sizes)
        # A multipart upload has a request for each part, one before them, and one behind.
        further_count = 1 - (-size_bytes // part_bytes) if size_bytes > part_bytes else 0
        self._count(kind, requests=further_count, size_bytes=size_bytes)

    def open_upload(self, key: str) -> ObjectUpload:
        kind = self._count_requests("PUT", key)
        upload = self._inner.open_upload(key)
        return _CountedUpload(
            upload, lambda requests, size_bytes: self._count(kind, requests=requests, size_bytes=size_bytes)
        )

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

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        kind = self._count_requests("GET", key)
        stream = self._inner.open_range(key, position, size, if_match=if_match)
        return _CountedStream(stream, lambda size_bytes: self._count(kind, size_bytes=size_bytes))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        self._count_requests("LIST", prefix)
        return self._inner.list(prefix, start_after=start_after)

    def delete_many(self, keys: Sequence[str]) -> None:
        if keys:
            self._count_requests("DELETE", keys[0], requests=-(-len(keys) // _KEYS_PER_DELETE))
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
        kind = RequestKind(verb, self._kind_of(key))
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
