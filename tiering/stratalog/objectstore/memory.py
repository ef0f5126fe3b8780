"""An object store in the memory of this process: for tests, simulations and first steps.

It keeps every promise of the protocol except surviving the process. The lock is held for a dictionary
operation, so conditional writes are atomic for any number of threads.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreCorruptError,
    StoreUnavailableError,
)
from stratalog.objectstore.content_digest import content_crc, content_etag, require_crc
from stratalog.objectstore.object_key import check_key, check_prefix
from stratalog.objectstore.protocol import (
    DEFAULT_PART_BYTES,
    Buffer,
    ObjectInfo,
    ObjectPlace,
    ObjectUpload,
    ReadStream,
    StoredObject,
    UnfinishedUpload,
)


class _Content(NamedTuple):
    data: bytes
    etag: str
    modified_ms: int


class _BufferStream:
    """A read stream over bytes in memory. One user at a time, as every `ReadStream`."""

    def __init__(self, data: bytes, etag: str) -> None:
        self._data = data
        self._etag = etag
        self._position = 0

    def read(self, size: int) -> bytes:
        assert size >= 0, "a read has a size"
        chunk = self._data[self._position : self._position + size]
        self._position += len(chunk)
        return chunk

    def etag(self) -> str:
        return self._etag

    def close(self) -> None:
        self._data = b""
        self._position = 0


class _BufferUpload:
    """Parts in memory, known to the store as long as it is unfinished. One user at a time, as every
    `ObjectUpload`; late parts of a simulation come on the same thread."""

    def __init__(
        self, store: MemoryObjectStore, unfinished: dict[str, UnfinishedUpload], upload: UnfinishedUpload
    ) -> None:
        self._store = store
        self._unfinished = unfinished
        self._upload = upload
        self._parts: dict[int, bytes] = {}
        self._is_complete = False

    def put_part(self, number: int, data: Sequence[Buffer]) -> None:
        self._require_unfinished()
        self._parts[number] = b"".join(data)

    def complete(self, crc: int) -> None:
        if self._is_complete:
            return
        self._require_unfinished()
        parts = [part for _, part in sorted(self._parts.items())]
        assert len(parts) == max(self._parts, default=0), "all parts are there"
        require_crc(content_crc(parts), crc, self._upload.key)
        self._store.put(self._upload.key, b"".join(parts))
        self._is_complete = True
        self.abort()

    def abort(self) -> None:
        self._unfinished.pop(self._upload.upload_id, None)

    def _require_unfinished(self) -> None:
        if self._upload.upload_id not in self._unfinished:
            raise StoreUnavailableError(
                "the upload is over; begin another one, under another key", key=self._upload.key
            )


class MemoryObjectStore:
    """An object store in memory. Thread-safe: `_lock` guards the objects, contents are immutable; each
    unfinished upload has one user."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._contents: dict[str, _Content] = {}
        self._unfinished: dict[str, UnfinishedUpload] = {}
        self._upload_ids = itertools.count()

    @property
    def url(self) -> str:
        return "memory://"

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        assert if_match is None or not if_absent, "a write has one precondition"
        check_key(key)
        content = _Content(bytes(data), content_etag([data]), self._clock.now_ms())
        with self._lock:
            current = self._contents.get(key)
            if if_absent and current is not None:
                raise PreconditionFailedError("the object exists already; read it", key=key)
            if if_match is not None and (current is None or current.etag != if_match):
                raise PreconditionFailedError("the object has changed; read it again", key=key)
            self._contents[key] = content
        return content.etag

    def put_parts(self, key: str, parts: Iterable[Buffer], *, part_bytes: int = DEFAULT_PART_BYTES) -> None:
        self.put(key, b"".join(parts))

    def open_upload(self, key: str) -> ObjectUpload:
        upload = UnfinishedUpload(check_key(key), f"upload-{next(self._upload_ids)}", self._clock.now_ms())
        self._unfinished[upload.upload_id] = upload
        return _BufferUpload(self, self._unfinished, upload)

    def place_of(self, key: str) -> ObjectPlace | None:
        """None: there is no server."""
        check_key(key)
        return None

    def copy(self, source: ObjectPlace, key: str, size_bytes: int) -> bool:
        """False: no object has a place in it."""
        return False

    def get(self, key: str) -> StoredObject:
        content = self._content(key)
        return StoredObject(content.data, content.etag, self._clock.now_ms())

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        found = self.get(key)
        return None if found.etag == etag else found

    def get_range(self, key: str, position: int, size: int) -> bytes:
        assert position >= 0, "an object begins at 0"
        assert size > 0, "a range has at least one byte"
        return _part(self._content(key), key, position, size)

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        content = self._content(key)
        if if_match is not None and content.etag != if_match:
            raise PreconditionFailedError("the object has changed; read it again", key=key)
        return _BufferStream(_part(content, key, position, size), content.etag)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._lock:
            keys = sorted(self._contents)
            start = max(bisect_left(keys, prefix), bisect_right(keys, start_after))
            found: list[ObjectInfo] = []
            for key in keys[start:]:
                if not key.startswith(prefix):
                    break
                content = self._contents[key]
                found.append(ObjectInfo(key, len(content.data), content.modified_ms))
        return iter(found)

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        with self._lock:
            for key in keys:
                self._contents.pop(key, None)

    def list_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        check_prefix(prefix)
        return iter([one for one in tuple(self._unfinished.values()) if one.key.startswith(prefix)])

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self._unfinished.pop(upload.upload_id, None)

    def remarks(self) -> Sequence[str]:
        """None: a deleted object is gone."""
        return ()

    def close(self) -> None:
        """Does nothing: the objects stay readable, for a test to read them afterwards."""

    def _content(self, key: str) -> _Content:
        check_key(key)
        with self._lock:
            content = self._contents.get(key)
        if content is None:
            raise ObjectNotFoundError("no object has this key; check it", key=key)
        return content


def _part(content: _Content, key: str, position: int, size: int) -> bytes:
    data = content.data
    if position + size > len(data):
        raise StoreCorruptError(
            "the object ends before the requested range; restore it from a copy",
            key=key,
            size_bytes=len(data),
        )
    return data[position : position + size]
