"""An index file whose pages are the same whenever they are read.

Pages leave the memory when others need the room, and are read again, perhaps weeks after somebody held the
index against its checksum. So the checksum of each page that was read or written is kept, a hundred bytes of
four thousand with all that it takes, and what the disk makes of it meanwhile is not believed.
"""

from __future__ import annotations

from collections.abc import Sequence

from crc32c import crc32c

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.segment.indexes.index_file import IndexFile
from stratalog.segment.indexes.index_page_cache import IndexPageCache


class WatchedIndexFile(IndexFile):
    """As `IndexFile`; whoever opens one that means something reads all of it first, and proves it.

    Pages are read as they are written: whole, but for the last of a file that is not written any more.
    """

    __slots__ = ("_checksums", "_page_bytes")

    def __init__(
        self, cache: IndexPageCache, path: str, page_bytes: int, checksums: dict[int, int] | None = None
    ) -> None:
        """`checksums`: CRC-32C by position."""
        super().__init__(cache, path)
        self._page_bytes = page_bytes
        self._checksums = {} if checksums is None else checksums

    def anew(self) -> WatchedIndexFile:
        return WatchedIndexFile(self._cache, self.path, self._page_bytes, self._checksums.copy())

    def page(self, position: int, size_bytes: int, *, is_kept: bool = True) -> bytes:
        page = super().page(position, size_bytes, is_kept=is_kept)
        checksum = crc32c(page)
        if self._checksums.setdefault(position, checksum) != checksum:
            raise CorruptRecordError(
                "a page of an index is not what it was when it was read or written before; find out what"
                " changed the file and restart the server, which makes the index again",
                path=self.path,
                position=position,
            )
        return page

    def write(self, position: int, parts: Sequence[Buffer]) -> None:
        assert position % self._page_bytes == 0
        super().write(position, parts)
        written = b"".join(parts)
        for start in range(0, len(written), self._page_bytes):
            self._checksums[position + start] = crc32c(written[start : start + self._page_bytes])
