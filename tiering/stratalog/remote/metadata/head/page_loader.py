"""Loads the pages of checkpoints, with bounded caches for all shards of a process.

The cache in memory keeps most pages as they are stored, which is compressed, and the few that were used last
as columns. A page that is wanted by several threads is read once.

Below it lies an optional cache on disk, for all pages where that is large enough. A page comes there when it
is written or fetched, and `keep_on_disk` fetches the others, so that a server that has just begun reads no
page from the store. Pages never change, so nothing there is old; each is compared with the checksum in its
root, and one that is not the page counts as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar, cast

from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.loading_cache import CacheStats, LoadingCache
from stratalog.remote.metadata.head.checkpoint_page import Page, PageRef, decode_page
from stratalog.remote.metadata.head.document_ref import FileKind, newest_seq_of
from stratalog.remote.store_layout import StoreLayout

T = TypeVar("T")

RunAll = Callable[[Sequence[Callable[[], object]]], Sequence[object]]
"""Runs functions, maybe at the same time, and returns their results in order. Raises the first error once
none of them runs any more."""

DEFAULT_CAPACITY_BYTES = 64 << 20
_FETCHES_AT_ONCE = 4
"""Pages that are fetched for the disk at the same time: requests of commits and readers come first."""


class PageDisk(Protocol):
    """The part of a cache on disk that pages use, each as one range. Thread-safe; no method raises
    OSError."""

    @property
    def stats(self) -> CacheStats: ...

    def keys(self, prefix: str) -> set[str]:
        """The keys of pages that are here and begin with `prefix`."""
        ...

    def has_room(self, sizes_bytes: Iterable[int]) -> bool:
        """Whether pages of these sizes can be written and nothing has to go for them."""
        ...

    def extent(self, key: str, position: int) -> tuple[int, int] | None:
        """The range that has the byte at `position`; counts a miss if there is none."""
        ...

    def read(self, key: str, start: int) -> bytes | None:
        """The range that begins at `start`; None if it is gone or damaged."""
        ...

    def offer(self, key: str, start: int, data: bytes) -> None:
        """Write a range, or do not."""
        ...

    def forget(self, key: str, start: int, end: int) -> None:
        """Delete what has a byte of [start, end)."""
        ...


class DiskUpkeep(NamedTuple):
    """The work of one turn on the pages on disk."""

    fetched_count: int = 0
    fetched_bytes: int = 0
    deleted_count: int = 0

    def plus(self, later: DiskUpkeep) -> DiskUpkeep:
        """Both together."""
        return DiskUpkeep(*map(sum, zip(self, later, strict=True)))


def run_in_order(functions: Sequence[Callable[[], object]]) -> Sequence[object]:
    """Run the functions one after the other."""
    return [function() for function in functions]


class PageLoader:
    """Loads pages of checkpoints and keeps them for later. Thread-safe: the caches are."""

    def __init__(
        self,
        capacity_bytes: int = DEFAULT_CAPACITY_BYTES,
        run_all: RunAll = run_in_order,
        disk: PageDisk | None = None,
    ) -> None:
        columns_bytes = capacity_bytes // 4
        self._run_all = run_all
        self._disk = disk
        self._stored: LoadingCache[str, bytes] = LoadingCache(capacity_bytes - columns_bytes, len)
        self._pages: LoadingCache[str, Page] = LoadingCache(columns_bytes, lambda page: page.memory_bytes)

    @property
    def stats(self) -> CacheStats:
        """The contents of both caches in memory. A look-up counts as a hit if one of them had the page, and a
        page as evicted if it left the cache of stored pages."""
        stored, columns = self._stored.stats, self._pages.stats
        return CacheStats(
            entry_count=stored.entry_count + columns.entry_count,
            size_bytes=stored.size_bytes + columns.size_bytes,
            capacity_bytes=stored.capacity_bytes + columns.capacity_bytes,
            hit_count=columns.hit_count + stored.hit_count,
            miss_count=stored.miss_count,
            eviction_count=stored.eviction_count,
        )

    @property
    def disk_stats(self) -> CacheStats | None:
        """The cache on disk; None without one."""
        return None if self._disk is None else self._disk.stats

    def page(self, store: ObjectStore, layout: StoreLayout, ref: PageRef) -> Page:
        """The page. Raises ObjectNotFoundError, StoreCorruptError, StoreUnavailableError."""
        key = layout.page_key(ref.name)
        return self._pages.get(key, lambda: decode_page(self._stored_page(store, layout, ref), key, ref))

    def read_ahead(self, store: ObjectStore, layout: StoreLayout, refs: Iterable[PageRef]) -> None:
        """Read pages together that `page` will be asked for: the first ones, as far as half of the cache has
        room for them. Raises as `page`."""
        left_bytes = self._stored.stats.capacity_bytes // 2
        reads: list[Callable[[], bytes]] = []
        for ref in refs:
            key = layout.page_key(ref.name)
            if key not in self._pages and key not in self._stored:
                left_bytes -= ref.size_bytes
                if left_bytes < 0:
                    break
                reads.append(partial(self._stored_page, store, layout, ref))
        # A page alone is read when it is wanted.
        if len(reads) > 1:
            self.run_all(reads)

    def read(self, store: ObjectStore, layout: StoreLayout, ref: PageRef) -> Page:
        """Read the page past the cache in memory. It need not be kept. Raises as `page`."""
        data = self._on_disk(layout, ref) or read_page(store, layout, ref)
        return decode_page(data, layout.page_key(ref.name), ref)

    def keep(self, layout: StoreLayout, name: str, data: bytes) -> None:
        """Keep a page on disk that was just stored."""
        if self._disk is not None:
            self._disk.offer(layout.page_key(name), 0, data)

    def keep_on_disk(
        self, store: ObjectStore, layout: StoreLayout, root: Sequence[PageRef], seq: int, max_count: int
    ) -> DiskUpkeep:
        """Delete pages of this log from the disk that its checkpoint at commit `seq` no longer has, and fetch
        those of `root` that are missing: at most `max_count`, and as many as fit. Raises as `page`."""
        if self._disk is None:
            return DiskUpkeep()
        wanted = {layout.page_key(ref.name): ref for ref in root}
        prefix = layout.page_key("")
        kept = self._disk.keys(prefix)
        stale = [key for key in kept - wanted.keys() if _is_of_commits_upto(seq, key.removeprefix(prefix))]
        for key in stale:
            self._disk.forget(key, 0, 1)
        missing = [ref for key, ref in wanted.items() if key not in kept][:max_count]
        fetched: list[PageRef] = []
        for start in range(0, len(missing), _FETCHES_AT_ONCE):
            part = missing[start : start + _FETCHES_AT_ONCE]
            if not self._disk.has_room(ref.size_bytes for ref in part):
                break
            self.run_all([partial(self._fetch, store, layout, ref) for ref in part])
            fetched += part
        return DiskUpkeep(len(fetched), sum(ref.size_bytes for ref in fetched), len(stale))

    def run_all(self, functions: Sequence[Callable[[], T]]) -> list[T]:
        """Run functions, maybe at the same time; their results in order. Raises the first error."""
        return cast("list[T]", list(self._run_all(functions)))

    def _stored_page(self, store: ObjectStore, layout: StoreLayout, ref: PageRef) -> bytes:
        """The stored bytes of a page, through the caches. Raises as `page`."""
        return self._stored.get(
            layout.page_key(ref.name), lambda: self._on_disk(layout, ref) or self._fetch(store, layout, ref)
        )

    def _on_disk(self, layout: StoreLayout, ref: PageRef) -> bytes | None:
        """The stored bytes of a page if the disk has them."""
        if self._disk is None:
            return None
        key = layout.page_key(ref.name)
        data = None if self._disk.extent(key, 0) is None else self._disk.read(key, 0)
        if data is None or ref.is_of(data):
            return data
        self._disk.forget(key, 0, 1)
        return None

    def _fetch(self, store: ObjectStore, layout: StoreLayout, ref: PageRef) -> bytes:
        """The stored bytes of a page from the store, and keep them on disk. Raises as `page`."""
        data = read_page(store, layout, ref)
        self.keep(layout, ref.name, data)
        return data

    def check(self) -> None:
        self._stored.check()
        self._pages.check()


def read_page(store: ObjectStore, layout: StoreLayout, ref: PageRef) -> bytes:
    """The stored bytes of a page. Raises ObjectNotFoundError, StoreCorruptError, StoreUnavailableError."""
    key = layout.page_key(ref.name)
    data = store.get(key).data
    ref.verify(data, key)
    return data


def _is_of_commits_upto(seq: int, name: str) -> bool:
    """Whether the page of this name is of a checkpoint up to a commit, or of none: newer ones may be those of
    a fold that is not committed yet."""
    return not FileKind.PAGE.is_name(name) or newest_seq_of(FileKind.PAGE, name) <= seq
