"""Chooses the batches of a fetch whose records a reader gets.

A reader gets no control batches, and none of aborted transactions.
A fetch of committed records names every aborted transaction of its batches, each with its producer, its first
offset and the offset of its marker. A producer has one transaction at a time, so all of its transactional
batches between the two offsets belong to it. A fetch of uncommitted records names none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from stratalog.record.header import BatchHeader


class AbortedTransactionLike(Protocol):
    """An aborted transaction, from an index or a message. Both offsets are inclusive."""

    @property
    def producer_id(self) -> int: ...

    @property
    def first_offset(self) -> int: ...

    @property
    def last_offset(self) -> int: ...


def readable_batches(aborted: Iterable[AbortedTransactionLike]) -> Callable[[BatchHeader], bool]:
    """A function that says of each batch, in the order of a fetch, whether a reader gets its records. It
    serves one walk, on one thread at a time."""
    walk = _AbortedBatches(aborted)
    if walk.is_empty:
        return lambda header: not header.is_control
    return lambda header: not (walk.has_next(header) or header.is_control)


class _AbortedBatches:
    """Finds the batches of aborted transactions. Belongs to one walk over batches, in order."""

    def __init__(self, transactions: Iterable[AbortedTransactionLike]) -> None:
        self._upcoming = sorted(transactions, key=lambda aborted: aborted.first_offset, reverse=True)
        self._last_offset_by_producer: dict[int, int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is no aborted transaction."""
        return not self._upcoming

    def has_next(self, header: BatchHeader) -> bool:
        """Whether the next batch of the walk belongs to an aborted transaction."""
        while self._upcoming and self._upcoming[-1].first_offset <= header.last_offset:
            aborted = self._upcoming.pop()
            # A transaction that a gap in the log has cut may be there twice: to the gap, and to its marker.
            known = self._last_offset_by_producer.get(aborted.producer_id, -1)
            self._last_offset_by_producer[aborted.producer_id] = max(known, aborted.last_offset)
        last_offset = self._last_offset_by_producer.get(header.producer_id, -1)
        return header.is_transactional and header.base_offset <= last_offset
