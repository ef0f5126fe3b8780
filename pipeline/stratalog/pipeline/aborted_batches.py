"""Tells the batches of aborted transactions among those of a span.

Which transactions were aborted is said by the slices that hold their markers, the span's own and those behind
it. They are asked when the first batch of a transaction comes, so a scan of a topic without any asks nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import NamedTuple

from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.topic_snapshot import SliceSpan
from stratalog.record.header import BatchHeader
from stratalog.remote.objects.object_directory import read_slice_index
from stratalog.remote.store_layout import StoreLayout
from stratalog.remote.tier.deciding_slices import aborted_in


class _Aborted(NamedTuple):
    first_offset: int
    last_offset: int
    """Its marker's."""


class AbortedBatches:
    """Not thread-safe: one scan's own."""

    def __init__(self, store: ObjectStore, span: SliceSpan) -> None:
        self._store = store
        self._span = span
        self._by_producer: dict[int, list[_Aborted]] | None = None
        """In the order of their markers; None before anybody asked."""

    def __contains__(self, header: BatchHeader) -> bool:
        """Raises StoreError; UnsupportedOperationError where an early version uploaded the slice, which did
        not tell.
        """
        if not header.is_transactional or not self._span.deciding:
            return False
        if self._by_producer is None:
            self._by_producer = self._load()
        aborted = self._by_producer.get(header.producer_id, [])
        # Transactions of one producer follow each other: the first that ends behind the batch is the one.
        next_index = bisect_right(aborted, header.base_offset, key=lambda one: one.last_offset)
        return next_index < len(aborted) and aborted[next_index].first_offset <= header.base_offset

    def _load(self) -> dict[int, list[_Aborted]]:
        span = self._span
        found = defaultdict[int, list[_Aborted]](list)
        for live in span.deciding:
            index = read_slice_index(self._store, StoreLayout(span.shard), live.object_name, live.entry)
            for one in aborted_in(live, index, span.first_offset, span.end_offset):
                found[one.producer_id].append(_Aborted(one.first_offset, one.last_offset))
        return found
