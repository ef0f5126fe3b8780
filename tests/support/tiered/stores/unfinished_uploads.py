"""A store in memory in which multipart uploads are left unfinished."""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.base.clock import Clock
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import UnfinishedUpload


class UnfinishedUploads(MemoryObjectStore):
    """A store with unfinished uploads, which a test begins by hand. Not thread-safe: one test uses it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._clock_of_uploads = clock
        self.uploads: list[UnfinishedUpload] = []
        self.refusal: Exception | None = None
        """Raised instead of a listing of uploads."""

    def begin_upload(self, key: str) -> UnfinishedUpload:
        """Begin an upload now, and never finish it."""
        upload = UnfinishedUpload(key, f"upload-{len(self.uploads)}", self._clock_of_uploads.now_ms())
        self.uploads.append(upload)
        return upload

    def list_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        if self.refusal is not None:
            raise self.refusal
        return iter([one for one in self.uploads if one.key.startswith(prefix)])

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self.uploads.remove(upload)
