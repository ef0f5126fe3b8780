"""Tells an observer about every write and deletion that has landed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

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


class _WatchedUpload:
    """One user at a time, as every `ObjectUpload`."""

    def __init__(self, inner: ObjectUpload, completed: Callable[[], None]) -> None:
        self._inner = inner
        self._completed = completed

    def put_part(self, number: int, data: Sequence[Buffer]) -> None:
        self._inner.put_part(number, data)

    def complete(self, crc: int) -> None:
        self._inner.complete(crc)
        self._completed()

    def abort(self) -> None:
        self._inner.abort()


class WatchedObjectStore:
    """A store with observers, which the writing thread calls. As thread-safe as the store inside."""

    def __init__(
        self, inner: ObjectStore, landed: Callable[[str, bytes], None], deleted: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._landed = landed
        self._deleted = deleted

    @property
    def url(self) -> str:
        return self._inner.url

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        etag = self._inner.put(key, data, if_match=if_match, if_absent=if_absent)
        self._landed(key, bytes(data))
        return etag

    def put_parts(self, key: str, parts: Iterable[Buffer], *, part_bytes: int = DEFAULT_PART_BYTES) -> None:
        copies = [bytes(part) for part in parts]
        self._inner.put_parts(key, copies, part_bytes=part_bytes)
        self._landed(key, b"".join(copies))

    def open_upload(self, key: str) -> ObjectUpload:
        return _WatchedUpload(
            self._inner.open_upload(key), lambda: self._landed(key, self._inner.get(key).data)
        )

    def place_of(self, key: str) -> ObjectPlace | None:
        return self._inner.place_of(key)

    def copy(self, source: ObjectPlace, key: str, size_bytes: int) -> bool:
        is_copied = self._inner.copy(source, key, size_bytes)
        if is_copied:
            self._landed(key, self._inner.get(key).data)
        return is_copied

    def get(self, key: str) -> StoredObject:
        return self._inner.get(key)

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        return self._inner.get_if_changed(key, etag)

    def get_range(self, key: str, position: int, size: int) -> bytes:
        return self._inner.get_range(key, position, size)

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        return self._inner.open_range(key, position, size, if_match=if_match)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._inner.list(prefix, start_after=start_after)

    def delete_many(self, keys: Sequence[str]) -> None:
        self._inner.delete_many(keys)
        self._deleted()

    def list_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        return self._inner.list_uploads(prefix)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self._inner.abort_upload(upload)

    def remarks(self) -> Sequence[str]:
        return self._inner.remarks()

    def close(self) -> None:
        self._inner.close()
