"""An object store whose requests end early after a stop signal.

No request begins once the signal is set. Streams check it with each read, and objects on their way with each
part, so a request of gigabytes ends early, too. Work below that is not interrupted; an object that was not
sent whole does not appear.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from stratalog.base.stop_signal import StopSignal
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

_Item = TypeVar("_Item")


class _StoppableStream:
    """One user at a time, as every `ReadStream`."""

    def __init__(self, inner: ReadStream, stop: StopSignal) -> None:
        self._inner = inner
        self._stop = stop

    def read(self, size: int) -> bytes:
        self._stop.check()
        return self._inner.read(size)

    def etag(self) -> str:
        return self._inner.etag()

    def close(self) -> None:
        self._inner.close()


class _StoppableUpload:
    """One user at a time, as every `ObjectUpload`. An abort is sent whatever the signal says, because parts
    cost money."""

    def __init__(self, inner: ObjectUpload, stop: StopSignal) -> None:
        self._inner = inner
        self._stop = stop

    def put_part(self, number: int, data: Sequence[Buffer]) -> None:
        self._stop.check()
        self._inner.put_part(number, data)

    def complete(self, crc: int) -> None:
        self._stop.check()
        self._inner.complete(crc)

    def abort(self) -> None:
        self._inner.abort()


class StoppableObjectStore:
    """An object store that refuses requests after a signal. Thread-safe if the inner store is. Every method
    except `url` and `close` raises StoppingError once the signal is set.
    """

    def __init__(self, inner: ObjectStore, stop: StopSignal) -> None:
        self._inner = inner
        self._stop = stop

    @property
    def url(self) -> str:
        return self._inner.url

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        self._stop.check()
        return self._inner.put(key, data, if_match=if_match, if_absent=if_absent)

    def put_parts(self, key: str, parts: Iterable[Buffer], *, part_bytes: int = DEFAULT_PART_BYTES) -> None:
        self._stop.check()
        self._inner.put_parts(key, self._checked(parts), part_bytes=part_bytes)

    def open_upload(self, key: str) -> ObjectUpload:
        self._stop.check()
        return _StoppableUpload(self._inner.open_upload(key), self._stop)

    def place_of(self, key: str) -> ObjectPlace | None:
        return self._inner.place_of(key)

    def copy(self, source: ObjectPlace, key: str, size_bytes: int) -> bool:
        self._stop.check()
        return self._inner.copy(source, key, size_bytes)

    def get(self, key: str) -> StoredObject:
        self._stop.check()
        return self._inner.get(key)

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        self._stop.check()
        return self._inner.get_if_changed(key, etag)

    def get_range(self, key: str, position: int, size: int) -> bytes:
        self._stop.check()
        return self._inner.get_range(key, position, size)

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        self._stop.check()
        return _StoppableStream(self._inner.open_range(key, position, size, if_match=if_match), self._stop)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        self._stop.check()
        return self._checked(self._inner.list(prefix, start_after=start_after))

    def delete_many(self, keys: Sequence[str]) -> None:
        self._stop.check()
        self._inner.delete_many(keys)

    def list_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        self._stop.check()
        return self._checked(self._inner.list_uploads(prefix))

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self._stop.check()
        self._inner.abort_upload(upload)

    def remarks(self) -> Sequence[str]:
        self._stop.check()
        return self._inner.remarks()

    def close(self) -> None:
        self._inner.close()

    def _checked(self, items: Iterable[_Item]) -> Iterator[_Item]:
        for item in items:
            self._stop.check()
            yield item
