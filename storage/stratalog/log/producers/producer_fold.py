"""The state of the producers after the batches behind a snapshot.

`ProducerStateManager` uses this rule for an open log; an upload uses it to find the snapshot at the end of a
slice. It refuses no batch: the batches of a log are facts. It knows no time, no files and no high watermark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.log.producers.producer_state_entry import RETAINED_BATCH_COUNT, ProducerStateEntry
from stratalog.record.end_transaction_marker import ControlType
from stratalog.segment.indexes.transaction_index import AbortedTransaction


class CompletedTransaction(NamedTuple):
    """A transaction whose marker is in the log: from its first record to the marker, both inclusive."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    last_stable_offset: int
    """First offset of the oldest transaction that was open then; without one, the offset behind the
    marker."""

    @property
    def index_entry(self) -> AbortedTransaction:
        """The entry of an aborted transaction in the index of its marker's segment."""
        assert self.is_aborted
        return AbortedTransaction(
            self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset
        )


class ProducerFold:
    """The state of producers after the batches that it has followed. Not thread-safe: guarded by its user."""

    def __init__(self, snapshot: ProducerSnapshot) -> None:
        """The first batch to follow is the one behind the snapshot."""
        self._producers = {entry.producer_id: entry for entry in snapshot.entries}
        opened = ((entry.current_txn_first_offset, entry.producer_id) for entry in snapshot.entries)
        # First offset to producer, oldest first: transactions begin in the order of offsets.
        self._ongoing = dict(sorted((first, producer) for first, producer in opened if first is not None))

    @property
    def producers(self) -> Mapping[int, ProducerStateEntry]:
        """The producers by id. A view: it changes with the next batch."""
        return MappingProxyType(self._producers)

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of the oldest open transaction; None without one."""
        return next(iter(self._ongoing), None)

    @property
    def open_transactions(self) -> tuple[tuple[int, int], ...]:
        """Producer id and first offset of each, oldest first."""
        return tuple((producer_id, first_offset) for first_offset, producer_id in self._ongoing.items())

    def entry(self, producer_id: int) -> ProducerStateEntry:
        """The entry of that producer; see `ProducerStateEntry.is_unknown` for an unknown one."""
        return self._producers.get(producer_id) or ProducerStateEntry(producer_id)

    def follow(self, batch: ProducerBatch) -> CompletedTransaction | None:
        """Follow the next batch; return the transaction that it ends, if any."""
        header = batch.header
        if not batch.has_producer or (header.is_control and batch.marker is None):
            return None
        before = self.entry(header.producer_id)
        self._producers[header.producer_id] = after = before.after(batch)
        first_offset = before.current_txn_first_offset
        if first_offset is None and after.current_txn_first_offset is not None:
            self._ongoing[after.current_txn_first_offset] = header.producer_id
        if first_offset is None or after.current_txn_first_offset is not None:
            return None
        assert batch.marker is not None
        del self._ongoing[first_offset]
        return CompletedTransaction(
            header.producer_id,
            first_offset,
            header.last_offset,
            batch.marker.control_type is ControlType.ABORT,
            next(iter(self._ongoing), header.next_offset),
        )

    def forget(self, producer_ids: Iterable[int]) -> None:
        """Forget these producers, none of which has an open transaction."""
        for producer_id in producer_ids:
            forgotten = self._producers.pop(producer_id)
            assert forgotten.current_txn_first_offset is None

    def snapshot(self, end_offset: int, max_count: int | None = None) -> ProducerSnapshot:
        """The state after the last batch, as a snapshot at `end_offset`.

        Keeps at most `max_count` producers: those with open transactions, and those that wrote last. The
        others are left out as if they had expired.
        """
        entries = list(self._producers.values())
        if max_count is not None and len(entries) > max_count:
            entries.sort(key=_how_wanted, reverse=True)
            del entries[max(max_count, len(self._ongoing)) :]
        return ProducerSnapshot(end_offset, tuple(sorted(entries, key=attrgetter("producer_id"))))

    def part(self, producer_ids: Collection[int], end_offset: int) -> ProducerSnapshot:
        """The state of these producers alone, and of those with open transactions."""
        wanted = {*producer_ids, *self._ongoing.values()}
        return ProducerSnapshot(end_offset, tuple(self._producers[one] for one in sorted(wanted)))

    def check(self, end_offset: int) -> None:
        """Assert that producers and transactions agree, and belong to batches below `end_offset`."""
        opened = {
            entry.current_txn_first_offset: producer_id
            for producer_id, entry in self._producers.items()
            if entry.current_txn_first_offset is not None
        }
        assert opened == self._ongoing
        assert list(self._ongoing) == sorted(self._ongoing)
        assert all(first_offset < end_offset for first_offset in self._ongoing)
        for entry in self._producers.values():
            assert len(entry.batches) <= RETAINED_BATCH_COUNT
            assert all(batch.last_offset < end_offset for batch in entry.batches)


def _how_wanted(entry: ProducerStateEntry) -> tuple[bool, int, int]:
    return entry.current_txn_first_offset is not None, entry.last_timestamp_ms, entry.producer_id
