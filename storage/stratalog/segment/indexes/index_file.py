"""One index file: read by pages, written at its end.

The index decides where its end is, not the file: what lies behind it, left by a write that failed or by the
segment that had this name before, is cut off by the next write. So no write has to be taken back, and a file
that was cut short by somebody else grows zeros, which no reader believes.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.filesystem import Buffer
from stratalog.segment.indexes.index_page_cache import IndexPageCache


class IndexFile:
    """Writes are guarded by UnifiedLog.lock; reads of what was written before are thread-safe beside them."""

    __slots__ = ("_cache", "_number", "path")

    def __init__(self, cache: IndexPageCache, path: str) -> None:
        """The file need not be there."""
        self._cache = cache
        self._number = cache.next_number()
        self.path = path

    def anew(self) -> IndexFile:
        """The same file, of which other bytes are going to be written."""
        return IndexFile(self._cache, self.path)

    def beside(self, suffix: str) -> IndexFile:
        """Another one of the same segment."""
        return IndexFile(self._cache, self.path.rpartition(".")[0] + suffix)

    def size(self) -> int:
        """Raises FileNotFoundError, OSError."""
        with self._cache.files.use(self.path) as file:
            return file.size()

    def read(self) -> bytes:
        """All of a small one. Raises FileNotFoundError, OSError."""
        return self._cache.files.filesystem.read_file(self.path)

    def page(self, position: int, size_bytes: int, *, is_kept: bool = True) -> bytes:
        """Bytes that will not change any more. `is_kept`: somebody may want them again. Raises
        CorruptRecordError where the file is shorter, OSError (FileNotFoundError where it is gone)."""
        return self._cache.read(self.path, (self._number, position), size_bytes, is_kept=is_kept)

    def write(self, position: int, parts: Sequence[Buffer]) -> None:
        """Let the file end with these bytes at `position`; created where it is missing. Not synced. Raises
        OSError: what is below `position` is there all the same."""
        with self._cache.files.use(self.path, for_writing=True) as file:
            if file.size() != position:
                file.truncate(position)
            if any(map(len, parts)):
                file.append(parts)

    def cut(self, position: int) -> None:
        """Shorten the file to `position`, if there is one that is longer. Raises OSError."""
        try:
            is_longer = self.size() > position
        except FileNotFoundError:
            return
        if is_longer:
            self.write(position, ())

    def remove(self) -> None:
        """Unlink the file, if there is one. Raises OSError."""
        files = self._cache.files
        if files.filesystem.exists(self.path):
            files.forget(self.path)
            files.filesystem.unlink(self.path)

    def forget_pages(self, page_bytes: int, end_position: int) -> None:
        self._cache.forget((self._number, position) for position in range(0, end_position, page_bytes))
