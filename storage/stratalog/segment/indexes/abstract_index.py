"""The common part of a segment's indexes: ascending entries of one size, in a file that is read by pages.

::

    file    | page | page | page |            entries 0 to stored_count
    memory                       | tail |     the entries after them

The index of a sealed segment is all in its file, and no page is read before a look-up needs it. A growing
index holds its newest entries in memory. As soon as they fill a page, it is written to the end of the file.
Nothing is preallocated: the file grows by whole pages, so sealing has nothing to trim. A page that cannot be
written stays in memory; the write is tried again when another page is full and when the segment is sealed. An
index without a file is all tail.

A search begins with the tail, which answers most of them. Among the pages it first reads the one where the
key would be if keys ascended evenly, or else the last. Then it reads a neighbour, then it bisects: one page
for each halving, and two more at most.

Each page that is read is compared with its checksum (`IndexFile`). A look-up does not prove that the entries
ascend. It ends in any case, and its caller compares the entry with the batch that it points at. `check` looks
at every entry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Generic, NamedTuple, Self, TypeVar

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.native.batch_kernels import rank_entries
from stratalog.segment.indexes.index_file import IndexFile, IndexSeal
from stratalog.segment.indexes.index_page_cache import PAGE_BYTES, IndexPageCache

Entry = TypeVar("Entry", bound=tuple[int, ...])


class IndexKey(NamedTuple):
    """A field by which entries ascend: its position in the entry and its size."""

    position: int
    size_bytes: int


class _Extent(NamedTuple):
    """The place of the entries at one moment. The tail grows in place, and every other change makes a new
    _Extent. So a reader that takes the _Extent once finds every entry in the file or in the tail."""

    stored_count: int
    tail: bytearray


class AbstractIndex(ABC, Generic[Entry]):
    """An index over a file or in memory. Not thread-safe for changes: guarded by UnifiedLog.lock. Look-ups
    run beside an append.

    That is safe because entries are added only at the end, and a page is in the file before it leaves the
    tail.
    """

    __slots__ = ("_extent", "_file", "_write_at_bytes", "base_offset", "last")

    last: Entry | None
    """The newest entry, known without a read; None in an empty index."""

    KIND: ClassVar[str]
    """The name of the index in an error."""
    ENTRY_SIZE: ClassVar[int]
    page_bytes: ClassVar[int]
    """Size of a page in the file: as many whole entries as fit."""

    def __init__(self, base_offset: int, data: Buffer = b"") -> None:
        """An index in memory. Raises CorruptRecordError if `data` cannot be the file of an index with this
        base."""
        self._require_whole(len(data))
        self._begin(base_offset, None, _Extent(0, bytearray(data)))
        self.check()
        self.last = self.entry(len(self) - 1) if data else None

    @classmethod
    def open(cls, base_offset: int, cache: IndexPageCache, path: str, seal: IndexSeal) -> Self:
        """Open the file of an index that no longer changes. Reads its last page.

        Raises CorruptRecordError if the file is not the sealed one, OSError (FileNotFoundError).
        """
        file = IndexFile(cache, path, cls.page_bytes, seal.page_crcs)
        file.require_size(seal.size_bytes)
        cls._require_whole(seal.size_bytes)
        index = cls.__new__(cls)
        index._begin(base_offset, file, _Extent(seal.size_bytes // cls.ENTRY_SIZE, bytearray()))
        if len(index):
            index.last = index.entry(len(index) - 1)
        return index

    @classmethod
    def crcs_bytes(cls, size_bytes: int) -> int:
        """The size of the page checksums in the seal of a file with that size."""
        return IndexSeal.crcs_bytes(size_bytes, cls.page_bytes)

    def _begin(self, base_offset: int, file: IndexFile | None, extent: _Extent) -> None:
        self.base_offset = base_offset
        self.last = None
        self._file = file
        self._extent = extent
        self._write_at_bytes = self.page_bytes

    @classmethod
    def seal_of(cls, data: Buffer) -> IndexSeal:
        """The seal of a file with these contents."""
        return IndexSeal.of(data, cls.page_bytes)

    @classmethod
    def _require_whole(cls, size_bytes: int) -> None:
        if size_bytes % cls.ENTRY_SIZE:
            raise CorruptRecordError(f"{cls.KIND} does not consist of whole entries", size=size_bytes)

    def __init_subclass__(cls) -> None:
        cls.page_bytes = PAGE_BYTES // cls.ENTRY_SIZE * cls.ENTRY_SIZE

    @abstractmethod
    def _decode(self, data: Buffer) -> Entry:
        """Decode the single entry in these bytes."""

    @abstractmethod
    def check(self) -> None:
        """Look at every entry. Raises CorruptRecordError if they do not ascend, OSError."""

    def __len__(self) -> int:
        extent = self._extent
        return extent.stored_count + len(extent.tail) // self.ENTRY_SIZE

    @property
    def size_bytes(self) -> int:
        """Size of the file once all entries are written."""
        extent = self._extent
        return extent.stored_count * self.ENTRY_SIZE + len(extent.tail)

    @property
    def memory_bytes(self) -> int:
        """Size of the entries that are not in the file yet."""
        return len(self._extent.tail)

    def entry(self, ordinal: int) -> Entry:
        """The entry with this ordinal. Raises CorruptRecordError, OSError, like every method that may read
        the file."""
        size = self.ENTRY_SIZE
        assert 0 <= ordinal < len(self)
        extent = self._extent
        if ordinal >= extent.stored_count:
            position = (ordinal - extent.stored_count) * size
            return self._decode(extent.tail[position : position + size])
        number, position = divmod(ordinal * size, self.page_bytes)
        return self._decode(self._page(extent, number)[position : position + size])

    def _page(self, extent: _Extent, number: int, *, is_kept: bool = True) -> bytes:
        """Read one page of the file. `is_kept`: see `IndexFile.page`."""
        assert self._file is not None
        page_bytes = self.page_bytes
        position = number * page_bytes
        size_bytes = min(page_bytes, extent.stored_count * self.ENTRY_SIZE - position)
        return self._file.page(position, size_bytes, is_kept=is_kept)

    def _find(self, limit: int, key: IndexKey, last_key: int = 0) -> tuple[int, Buffer]:
        """The number of entries whose key is at most `limit`, and the last of these entries, empty if there
        is none. `last_key` is the key of the last entry, if the keys begin near 0."""
        size = self.ENTRY_SIZE
        extent = self._extent
        stored_count, tail = extent
        count = rank_entries(tail, size, *key, limit) if tail else 0
        if count:
            return stored_count + count, tail[(count - 1) * size : count * size]
        found: tuple[int, Buffer] = 0, b""
        if stored_count == 0 or limit < 0:
            return found
        assert self._file is not None
        page, page_bytes, end_position = self._file.page, self.page_bytes, stored_count * size
        low, high = 0, (end_position - 1) // page_bytes
        # First the page where the key would be if keys ascended evenly, which is often right; then its
        # neighbour, then the middle of the rest.
        middle = high
        if last_key:
            middle = min(high, limit * len(self) // (last_key + 1) * size // page_bytes)
        is_first = True
        while low <= high:
            position = middle * page_bytes
            data = page(position, min(page_bytes, end_position - position))
            count = rank_entries(data, size, *key, limit)
            if count:
                found = position // size + count, data[(count - 1) * size : count * size]
                if count * size < page_bytes:
                    break
                low = middle + 1
            else:
                high = middle - 1
            middle = (low if count else high) if is_first else (low + high) // 2
            is_first = False
        return found

    def _extend(self, data: bytes, last: Entry) -> None:
        """Add whole entries, the last of which is `last`. Writes full pages; a disk that refuses them is no
        failure."""
        assert len(data) % self.ENTRY_SIZE == 0
        tail = self._extent.tail
        tail += data
        self.last = last
        if len(tail) >= self._write_at_bytes:
            self._write_pages()

    def _write_pages(self) -> None:
        """Move the whole pages of the tail into the file."""
        if self._file is None:
            return
        extent, page_bytes = self._extent, self.page_bytes
        size_bytes = len(extent.tail) // page_bytes * page_bytes
        try:
            if size_bytes:
                self._file.write(extent.stored_count * self.ENTRY_SIZE, extent.tail[:size_bytes])
                count = extent.stored_count + size_bytes // self.ENTRY_SIZE
                self._extent = _Extent(count, extent.tail[size_bytes:])
            self._write_at_bytes = page_bytes
        except OSError:
            # The records are stored and the entries are in memory, so the append has not failed. If the disk
            # keeps refusing, sealing the segment raises the error.
            self._write_at_bytes = len(extent.tail) + page_bytes

    @property
    def has_file(self) -> bool:
        """The index grows in a file, or was opened from one."""
        return self._file is not None

    def attach(self, cache: IndexPageCache, path: str) -> None:
        """Grow in this file from now on. Its present contents mean nothing."""
        assert self._file is None
        self._file = IndexFile(cache, path, self.page_bytes)
        self._write_pages()

    def save(self, closing: bytes = b"") -> IndexSeal:
        """Write the rest of the entries, and then `closing`, to the file. Not synced. The index goes on as
        before: later entries replace those that only the file has. Raises OSError."""
        assert self._file is not None
        position = self._extent.stored_count * self.ENTRY_SIZE
        rest = bytes(self._extent.tail) + closing
        self._file.write(position, rest)
        return self._file.seal(position + len(rest))

    def first(self, count: int) -> Self:
        """The first `count` entries as a growing index. The next write of a page cuts the file, or `cut_file`
        does."""
        assert 0 <= count <= len(self)
        page_count, loose_count = divmod(count, self.page_bytes // self.ENTRY_SIZE)
        extent, index = self._extent, self.__class__.__new__(self.__class__)
        tail = bytearray()
        if count > extent.stored_count:
            stored_count = extent.stored_count
            tail += extent.tail[: (count - extent.stored_count) * self.ENTRY_SIZE]
        else:
            stored_count = count - loose_count
            if loose_count:
                tail += self._page(extent, page_count)[: loose_count * self.ENTRY_SIZE]
        index._begin(
            self.base_offset,
            None if self._file is None else self._file.anew(),
            _Extent(stored_count, tail),
        )
        index.last = index.entry(count - 1) if count else None
        return index

    def cut_file(self) -> None:
        """Remove from the file all bytes that are not whole pages of this index. Raises OSError."""
        assert self._file is not None
        self._file.cut(self._extent.stored_count * self.ENTRY_SIZE)

    def remove_file(self) -> None:
        """Unlink the file, if there is one. Raises OSError."""
        assert self._file is not None
        self._file.remove()

    def forget_pages(self) -> None:
        """Drop the pages from memory: no look-up follows."""
        if self._file is not None:
            self._file.forget_pages(self._extent.stored_count * self.ENTRY_SIZE)

    def chunks(self, first: int = 0) -> Iterator[bytes]:
        """Yield the entries from the ordinal `first` on in pieces, as bytes of the file. Pages that no
        look-up has read are not kept in memory, so they push none out."""
        extent, size = self._extent, self.ENTRY_SIZE
        begin, position = divmod(min(first, extent.stored_count) * size, self.page_bytes)
        for number in range(begin, -(-extent.stored_count * size // self.page_bytes)):
            yield self._page(extent, number, is_kept=False)[position:]
            position = 0
        yield bytes(extent.tail[max(0, first - extent.stored_count) * size :])

    def to_bytes(self) -> bytes:
        """The contents of the file."""
        return b"".join(self.chunks())

    def __iter__(self) -> Iterator[Entry]:
        size = self.ENTRY_SIZE
        for chunk in self.chunks():
            for position in range(0, len(chunk), size):
                yield self._decode(chunk[position : position + size])
