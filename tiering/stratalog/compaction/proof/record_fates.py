"""The batches of a partition whose records count: no markers, and no data of a transaction that was
aborted or is undecided.

The slices with markers name the aborted transactions, and may lie behind their data; so does a gap that
leaves one undecided for ever. What is open at the tiered end is undecided. None of them is a record of its
key: read_committed readers never see it, and it displaces no other.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from stratalog.compaction.proof.slice_reads import SliceReads
from stratalog.record.header import BatchHeader
from stratalog.record.native.aborted_spans import AbortedSpans, ordered
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.slice_entry import OpenTransaction

_NEVER = (1 << 63) - 1


class RecordFates:
    """The batches of one partition that count. Thread-safe: two threads at most read the same twice."""

    def __init__(
        self, reads: SliceReads, slices: Iterable[LiveSlice], open_transactions: Iterable[OpenTransaction]
    ) -> None:
        """`slices`: in order, those of the partition, or adjacent ones with all markers of their
        transactions. `open_transactions`: those that are open behind the last one."""
        self._reads = reads
        self._slices = slices
        self._open_transactions = open_transactions

    def counts(self, header: BatchHeader) -> bool:
        """Whether the records of a batch count. Reads what tells of transactions at the first batch of one,
        24 bytes of memory for each aborted transaction. Raises what the store raises."""
        if header.is_control:
            return False
        return not header.is_transactional or not self._left_out.has(header)

    @functools.cached_property
    def _left_out(self) -> AbortedSpans:
        return AbortedSpans(ordered(self._spans()))

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        """Producer, first offset and marker's offset of each transaction that does not count."""
        for live in self._slices:
            found = live.abandoned_in(0, _NEVER)
            if live.gap is None and live.has_markers:
                found += self._reads.index(live).aborted
            for one in found:
                yield one.producer_id, one.first_offset, one.last_offset
        for transaction in self._open_transactions:
            yield transaction.producer_id, transaction.first_offset, _NEVER
