"""One index file: read by pages that are proven, written at its end.

The index decides where its end is, not the file. A failed write, or the segment that had this name before,
may have left bytes after the end; the next write cuts them off. So no write has to be taken back.

The checksum of each page is known before the page is read: for a sealed segment from its seal, for a growing
one because this process wrote the page. Pages leave the memory when others need the room, and are read again,
perhaps weeks later; each read is compared with the checksum.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Self

from crc32c import crc32c

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.segment.indexes.index_page_cache import IndexPageCache

_CRC = struct.Struct(">I")


class IndexSeal(NamedTuple):
    """The size of an index file, and the CRC-32C of each of its pages."""

    size_bytes: int = 0
    page_crcs: bytes = b""
    """Packed uint32, big-endian."""

    @classmethod
    def of(cls, data: Buffer, page_bytes: int) -> Self:
        """Make the seal of a file with these contents."""
        view = memoryview(data)
        starts = range(0, len(view), page_bytes)
        crcs = (_CRC.pack(crc32c(view[start : start + page_bytes])) for start in starts)
        return cls(len(view), b"".join(crcs))

    @staticmethod
    def crcs_bytes(size_bytes: int, page_bytes: int) -> int:
        """The length of `page_crcs` for a file with that size."""
        return -(-size_bytes // page_bytes) * _CRC.size


class IndexFile:
    """The file of an index. Writes are guarded by UnifiedLog.lock; reads of earlier writes are thread-safe
    beside them."""

    __slots__ = ("_cache", "_number", "_page_bytes", "_page_crcs", "path")

    def __init__(self, cache: IndexPageCache, path: str, page_bytes: int, page_crcs: bytes = b"") -> None:
        """`page_crcs` are the checksums of the pages that the file has. The file may be missing."""
        self._cache = cache
        self._number = cache.next_number()
        self._page_bytes = page_bytes
        self._page_crcs = page_crcs
        self.path = path

    def anew(self) -> IndexFile:
        """The same file under a new cache number, because other bytes are going to be written to it."""
        return IndexFile(self._cache, self.path, self._page_bytes, self._page_crcs)

    def require_size(self, size_bytes: int) -> None:
        """Raise CorruptRecordError if the file has another size. Raises OSError (FileNotFoundError)."""
        with self._cache.files.use(self.path) as file:
            found_bytes = file.size()
        if found_bytes != size_bytes:
            raise CorruptRecordError(
                "an index file does not have the size in its segment's seal; restart the server, which"
                " rebuilds the index",
                path=self.path,
                size_bytes=found_bytes,
                expected_bytes=size_bytes,
            )

    def page(self, position: int, size_bytes: int, *, is_kept: bool = True) -> bytes:
        """Read bytes that will not change any more. `is_kept`: keep the page in memory for the next look-up.

        Raises CorruptRecordError if the page differs from the written one, OSError (FileNotFoundError).
        """
        (crc,) = _CRC.unpack_from(self._page_crcs, position // self._page_bytes * _CRC.size)
        return self._cache.read(self.path, (self._number, position), size_bytes, crc, is_kept=is_kept)

    def write(self, position: int, data: Buffer) -> None:
        """Let the file end with these bytes at `position`, where a page begins. Creates a missing file. Not
        synced. Raises OSError; the bytes below `position` are intact then."""
        assert position % self._page_bytes == 0
        with self._cache.files.use(self.path, for_writing=True) as file:
            if file.size() != position:
                file.truncate(position)
            if len(data):
                file.append([data])
        kept = self._page_crcs[: IndexSeal.crcs_bytes(position, self._page_bytes)]
        self._page_crcs = kept + IndexSeal.of(data, self._page_bytes).page_crcs

    def seal(self, size_bytes: int) -> IndexSeal:
        """The seal of the file, which has `size_bytes`."""
        assert len(self._page_crcs) == IndexSeal.crcs_bytes(size_bytes, self._page_bytes)
        return IndexSeal(size_bytes, self._page_crcs)

    def cut(self, position: int) -> None:
        """Shorten the file to `position`, if it exists and is longer. Raises OSError."""
        try:
            with self._cache.files.use(self.path) as file:
                is_longer = file.size() > position
        except FileNotFoundError:
            return
        if is_longer:
            self.write(position, b"")

    def remove(self) -> None:
        """Unlink the file, if there is one. Raises OSError."""
        files = self._cache.files
        if files.filesystem.exists(self.path):
            files.forget(self.path)
            files.filesystem.unlink(self.path)

    def forget_pages(self, end_position: int) -> None:
        """Drop the pages below `end_position` from memory."""
        self._cache.forget((self._number, position) for position in range(0, end_position, self._page_bytes))
