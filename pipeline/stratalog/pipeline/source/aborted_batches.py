"""Finds the batches of aborted transactions in a span, for a scan of committed records."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import NamedTuple

from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.source.slice_span import SliceSpan
from stratalog.record.header import BatchHeader
from stratalog.remote.objects.object_directory import read_slice_index
from stratalog.remote.store_layout import StoreLayout


class _Aborted(NamedTuple):
    first_offset: int
    last_offset: int
    """Offset of the marker."""


class AbortedBatches:
    """The batches of a span's aborted transactions. Not thread-safe: belongs to one scan.

    The slices with the markers name the aborted transactions: the span's own slice and those behind it, gaps
    included, which leave transactions undecided. Slices are read when the first batch of a transaction
    arrives, so a scan without transactions reads none.
    """

    def __init__(self, store: ObjectStore, span: SliceSpan) -> None:
        self._store = store
        self._span = span
        self._by_producer: dict[int, list[_Aborted]] | None = None
        """In the order of their markers; None before the first look-up."""

    def has(self, header: BatchHeader) -> bool:
        """Whether the batch belongs to an aborted transaction. Raises StoreError."""
        if not header.is_transactional or not self._span.deciding:
            return False
        if self._by_producer is None:
            self._by_producer = self._load()
        aborted = self._by_producer.get(header.producer_id, [])
        # Transactions of a producer follow each other: the first one that ends behind the batch decides.
        next_index = bisect_right(aborted, header.base_offset, key=lambda one: one.last_offset)
        return next_index < len(aborted) and aborted[next_index].first_offset <= header.base_offset

    def _load(self) -> dict[int, list[_Aborted]]:
        span = self._span
        found = defaultdict[int, list[_Aborted]](list)
        for live in span.deciding:
            if live.gap is not None:
                aborted = live.abandoned_in(span.first_offset, span.end_offset)
            else:
                index = read_slice_index(self._store, StoreLayout(span.shard), live.object_name, live.entry)
                aborted = index.aborted_in(span.first_offset, span.end_offset)
            for one in aborted:
                found[one.producer_id].append(_Aborted(one.first_offset, one.last_offset))
        return found
