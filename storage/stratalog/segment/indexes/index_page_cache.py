"""A bounded cache for pages of index files.

An index file is never read as a whole: a search reads the few pages that it passes with ordinary positional
reads, and they stay here while there is room. This cache replaces Kafka's memory mapping. A mapping would be
shorter to write, but a page that the disk cannot read would kill the process; here it is an OSError in the
one look-up that needs it.

A cached page never changes: only bytes that an index will not write again are read as a page. A file that is
opened anew, because it was cut or replaced, gets another number. So a reader with the old number neither
finds nor leaves a page that the new one would take for its own.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterable

from crc32c import crc32c

from stratalog.base.errors import CorruptRecordError
from stratalog.segment.open_files import OpenFiles

PAGE_BYTES = 4096
"""The maximum size of a page: as many whole entries as fit."""
DEFAULT_MAX_BYTES = 64 * 1024 * 1024
# The cost of a page besides its bytes: objects and the key.
_OVERHEAD_BYTES = 256

PageKey = tuple[int, int]
"""The number of the open file, and the position of the page in it."""


class IndexPageCache:
    """Pages by file and position; the least recently used leaves first. Thread-safe."""

    def __init__(self, files: OpenFiles, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.files = files
        self.rebuild_lock = threading.Lock()
        """Held while index files are replaced: two threads that meet the same damage must not write the same
        file."""
        self._max_bytes = max_bytes
        self._numbers = itertools.count()
        self._guard = threading.Lock()
        self._pages: OrderedDict[PageKey, bytes] = OrderedDict()
        self._size_bytes = 0

    def next_number(self) -> int:
        """A number for a file that is opened now."""
        return next(self._numbers)

    def read(self, path: str, key: PageKey, size_bytes: int, crc: int, *, is_kept: bool = True) -> bytes:
        """The page of the file, from memory or from disk. `crc` is the page's CRC-32C. `is_kept`: keep the
        page in memory while there is room.

        Raises CorruptRecordError if the file holds other bytes, OSError.
        """
        with self._guard:
            page = self._pages.get(key)
            if page is not None:
                self._pages.move_to_end(key)
                return page
        with self.files.use(path) as file:
            page = file.read_at(key[1], size_bytes)
        if len(page) != size_bytes or crc32c(page) != crc:
            raise CorruptRecordError(
                "a page of an index file does not match its checksum; find out what changed the file",
                path=path,
                position=key[1],
            )
        if not is_kept:
            return page
        with self._guard:
            if key not in self._pages:
                self._pages[key] = page
                self._size_bytes += len(page) + _OVERHEAD_BYTES
            # The newest page stays even if there is no room for it: a look-up is about to use it.
            while self._size_bytes > self._max_bytes and len(self._pages) > 1:
                self._discard(next(iter(self._pages)))
        return page

    def forget(self, keys: Iterable[PageKey]) -> None:
        """Drop the pages of a file that is not used any more. A late reader may bring some back; they go when
        others need the room."""
        with self._guard:
            for key in keys:
                self._discard(key)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def check(self) -> None:
        """Invariant: the size is the sum of the pages, and bounded but for a single page."""
        with self._guard:
            assert self._size_bytes == sum(len(page) + _OVERHEAD_BYTES for page in self._pages.values())
            assert self._size_bytes <= self._max_bytes or len(self._pages) == 1

    def _discard(self, key: PageKey) -> None:
        page = self._pages.pop(key, None)
        if page is not None:
            self._size_bytes -= len(page) + _OVERHEAD_BYTES
