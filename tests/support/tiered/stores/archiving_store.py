"""A store in memory whose objects can be moved into an archive, as a lifecycle rule of S3 does."""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.base.clock import Clock
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectInfo, ReadStream, StoredObject
from stratalog.objectstore.s3_errors import error_of_answer


class ArchivingStore(MemoryObjectStore):
    """Refuses reads of archived objects as S3 does. Not thread-safe while a test changes `archived`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.archived: set[str] = set()
        """Keys of the archived objects."""

    def get(self, key: str) -> StoredObject:
        self._require_readable(key)
        return super().get(key)

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        self._require_readable(key)
        return super().get_if_changed(key, etag)

    def get_range(self, key: str, position: int, size: int) -> bytes:
        self._require_readable(key)
        return super().get_range(key, position, size)

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        self._require_readable(key)
        return super().open_range(key, position, size, if_match=if_match)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix, start_after=start_after):
            yield info._replace(is_archived=info.key in self.archived)

    def _require_readable(self, key: str) -> None:
        if key in self.archived:
            raise error_of_answer(403, "InvalidObjectState", key=key, store=self.url)
