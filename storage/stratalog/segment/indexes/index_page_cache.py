"""Pages of index files, as many as fit a number of bytes.

An index file is never read as a whole: a search reads the few pages that it passes, through the ordinary
positional reads of the file system, and they are kept here while there is room. This plays the part of
Kafka's memory mapping. A mapping would be shorter to write, but where the disk refuses a page of it, the
process is killed; here it is an OSError of the one look-up that met it.

What is kept never changes: only bytes of an index that will not be written again are read as a page. A file
that is opened anew, because it was cut or replaced, gets another number, so that a reader which still has the
old one can neither find nor leave behind anything that the new one takes for its own.
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
"""A page is at most so large: as many whole entries as fit."""
DEFAULT_MAX_BYTES = 64 * 1024 * 1024
# What a page costs besides its bytes: objects and the key.
_OVERHEAD_BYTES = 256

PageKey = tuple[int, int]
"""Number of the open file, and the position of the page in it."""


class IndexPageCache:
    """Pages by file and position, least recently used out first. Thread-safe."""

    def __init__(self, files: OpenFiles, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.files = files
        self.rebuild_lock = threading.Lock()
        """Held by whoever replaces index files: two that met the same damage must not write the same file."""
        self._max_bytes = max_bytes
        self._numbers = itertools.count()
        self._guard = threading.Lock()
        self._pages: OrderedDict[PageKey, bytes] = OrderedDict()
        self._size_bytes = 0

    def next_number(self) -> int:
        """For a file that is opened now."""
        return next(self._numbers)

    def read(self, path: str, key: PageKey, size_bytes: int, crc: int, *, is_kept: bool = True) -> bytes:
        """The page of the file, from memory or from disk. `crc`: CRC-32C of the page. `is_kept`: keep the
        page in memory while there is room.

        Raises CorruptRecordError where the file holds something else, OSError.
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
                "a page of an index is not what was written; find out what changed the file",
                path=path,
                position=key[1],
            )
        if not is_kept:
            return page
        with self._guard:
            if key not in self._pages:
                self._pages[key] = page
                self._size_bytes += len(page) + _OVERHEAD_BYTES
            # The newest page stays even if there is no room for it: somebody is about to use it.
            while self._size_bytes > self._max_bytes and len(self._pages) > 1:
                self._discard(next(iter(self._pages)))
        return page

    def forget(self, keys: Iterable[PageKey]) -> None:
        """Of a file that is not used any more. A reader that still does may bring some of them back; they go
        when others need the room."""
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
