"""Loads the pages of checkpoints, with a bounded cache for all shards of a process.

The cache keeps most pages as they are stored, which is compressed, and the few that were used last as
columns. A page that is wanted by several threads is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar, cast

from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.loading_cache import CacheStats, LoadingCache
from stratalog.remote.metadata.head.checkpoint_page import Page, PageRef, decode_page
from stratalog.remote.store_layout import StoreLayout

T = TypeVar("T")

RunAll = Callable[[Sequence[Callable[[], object]]], Sequence[object]]
"""Runs functions, maybe at the same time, and returns their results in order. Raises the first error once
none of them runs any more."""

DEFAULT_CAPACITY_BYTES = 64 << 20


def run_in_order(functions: Sequence[Callable[[], object]]) -> Sequence[object]:
    """Run the functions one after the other."""
    return [function() for function in functions]


class PageLoader:
    """Loads pages of checkpoints and keeps them for later. Thread-safe: the caches are."""

    def __init__(self, capacity_bytes: int = DEFAULT_CAPACITY_BYTES, run_all: RunAll = run_in_order) -> None:
        columns_bytes = capacity_bytes // 4
        self._run_all = run_all
        self._stored: LoadingCache[str, bytes] = LoadingCache(capacity_bytes - columns_bytes, len)
        self._pages: LoadingCache[str, Page] = LoadingCache(columns_bytes, lambda page: page.memory_bytes)

    @property
    def stats(self) -> CacheStats:
        """The contents of both caches. A look-up counts as a hit if it sent no request, and a page as evicted
        if it left the cache of stored pages."""
        stored, columns = self._stored.stats, self._pages.stats
        return CacheStats(
            entry_count=stored.entry_count + columns.entry_count,
            size_bytes=stored.size_bytes + columns.size_bytes,
            capacity_bytes=stored.capacity_bytes + columns.capacity_bytes,
            hit_count=columns.hit_count + stored.hit_count,
            miss_count=stored.miss_count,
            eviction_count=stored.eviction_count,
        )

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
        """Read the page past the cache. Raises as `page`."""
        return decode_page(read_page(store, layout, ref), layout.page_key(ref.name), ref)

    def run_all(self, functions: Sequence[Callable[[], T]]) -> list[T]:
        """Run functions, maybe at the same time; their results in order. Raises the first error."""
        return cast("list[T]", list(self._run_all(functions)))

    def _stored_page(self, store: ObjectStore, layout: StoreLayout, ref: PageRef) -> bytes:
        """The stored bytes of a page, through the cache. Raises as `page`."""
        return self._stored.get(layout.page_key(ref.name), lambda: read_page(store, layout, ref))

    def check(self) -> None:
        self._stored.check()
        self._pages.check()


def read_page(store: ObjectStore, layout: StoreLayout, ref: PageRef) -> bytes:
    """The stored bytes of a page. Raises ObjectNotFoundError, StoreCorruptError, StoreUnavailableError."""
    key = layout.page_key(ref.name)
    data = store.get(key).data
    ref.verify(data, key)
    return data
