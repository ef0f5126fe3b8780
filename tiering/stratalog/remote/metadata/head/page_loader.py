"""Loads the pages of checkpoints, with a bounded cache for all shards of a process.

The cache keeps most pages as they are stored, which is compressed, and the few that were used last as lines.
A page that is wanted by several threads is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        lines_bytes = capacity_bytes // 4
        self._run_all = run_all
        self._stored: LoadingCache[str, bytes] = LoadingCache(capacity_bytes - lines_bytes, len)
        self._pages: LoadingCache[str, Page] = LoadingCache(lines_bytes, lambda page: page.memory_bytes)

    @property
    def stats(self) -> CacheStats:
        """The contents of both caches; a look-up counts as a hit if it sent no request."""
        stored, lines = self._stored.stats, self._pages.stats
        return CacheStats(
            stored.entry_count + lines.entry_count,
            stored.size_bytes + lines.size_bytes,
            stored.capacity_bytes + lines.capacity_bytes,
            lines.hit_count + stored.hit_count,
            stored.miss_count,
        )

    def page(self, store: ObjectStore, layout: StoreLayout, ref: PageRef) -> Page:
        """The page. Raises ObjectNotFoundError, StoreCorruptError, StoreUnavailableError."""
        key = layout.page_key(ref.name)

        def decoded() -> Page:
            return decode_page(self._stored.get(key, lambda: read_page(store, layout, ref)), key, ref)

        return self._pages.get(key, decoded)

    def read(self, store: ObjectStore, layout: StoreLayout, ref: PageRef) -> Page:
        """Read the page past the cache. Raises as `page`."""
        return decode_page(read_page(store, layout, ref), layout.page_key(ref.name), ref)

    def run_all(self, functions: Sequence[Callable[[], T]]) -> list[T]:
        """Run functions, maybe at the same time; their results in order. Raises the first error."""
        return cast("list[T]", list(self._run_all(functions)))

    def check(self) -> None:
        self._stored.check()
        self._pages.check()


def read_page(store: ObjectStore, layout: StoreLayout, ref: PageRef) -> bytes:
    """The stored bytes of a page. Raises ObjectNotFoundError, StoreCorruptError, StoreUnavailableError."""
    key = layout.page_key(ref.name)
    data = store.get(key).data
    ref.verify(data, key)
    return data
