"""Finds the batches of aborted transactions in a response.

A response names the aborted transactions, each with its producer, its first offset and the offset of its
marker. A producer has one transaction at a time, so all of its transactional batches between the two offsets
belong to it. Each response names every transaction of its own batches; nothing is remembered between
responses.
"""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.record.header import BatchHeader
from stratalog.v1 import log_pb2


class AbortedBatches:
    """Belongs to one walk over the batches of one response, in their order."""

    def __init__(self, transactions: Iterable[log_pb2.AbortedTransaction]) -> None:
        self._upcoming = sorted(transactions, key=lambda aborted: aborted.first_offset, reverse=True)
        self._last_offset_by_producer: dict[int, int] = {}

    def has_next(self, header: BatchHeader) -> bool:
        """Whether the next batch of the walk belongs to an aborted transaction."""
        while self._upcoming and self._upcoming[-1].first_offset <= header.last_offset:
            aborted = self._upcoming.pop()
            self._last_offset_by_producer[aborted.producer_id] = aborted.last_offset
        last_offset = self._last_offset_by_producer.get(header.producer_id, -1)
        return header.is_transactional and header.base_offset <= last_offset
