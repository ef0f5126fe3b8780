"""Cancels work ahead of one of its requests for the data of objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stratalog.objectstore.counted import CountedObjectStore
from stratalog.objectstore.protocol import DEFAULT_PART_BYTES, Buffer, ObjectStore, ReadStream


class CancellingStore(CountedObjectStore):
    """An object store that calls `cancel` ahead of the request for data number `at`. Not thread-safe: one
    actor at a time uses it."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner, lambda key: "data" if "/data/" in key else "other")
        self.cancel: Callable[[], None] | None = None
        self.at = self.request_count = 0

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        self._look()
        return super().open_range(key, position, size, if_match=if_match)

    def put_parts(self, key: str, parts: Iterable[Buffer], *, part_bytes: int = DEFAULT_PART_BYTES) -> None:
        self._look()
        super().put_parts(key, parts, part_bytes=part_bytes)

    def _look(self) -> None:
        if self.cancel is not None:
            self.request_count += 1
            if self.request_count == self.at:
                self.cancel()
