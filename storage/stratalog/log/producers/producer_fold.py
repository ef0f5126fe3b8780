"""What the producers did over a run of batches, from a snapshot at its beginning on.

One rule for the state of a log that is open, which `ProducerStateManager` keeps, and for a run that passes by
and ends with the snapshot at its end. No batch is refused: what is in a log has happened. Nothing here knows
of time, files, or the high watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.log.producers.producer_state_entry import RETAINED_BATCH_COUNT, ProducerStateEntry
from stratalog.record.end_transaction_marker import ControlType
from stratalog.segment.indexes.transaction_index import AbortedTransaction


class CompletedTransaction(NamedTuple):
    """From its first record to its marker, both inclusive."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    last_stable_offset: int
    """First offset of the oldest transaction that was still open then; behind the marker without one."""

    @property
    def index_entry(self) -> AbortedTransaction:
        """What the transaction index of the marker's segment gets of an aborted one."""
        assert self.is_aborted
        return AbortedTransaction(
            self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset
        )


class ProducerFold:
    """Not thread-safe: guarded by its user."""

    def __init__(self, snapshot: ProducerSnapshot) -> None:
        """The run begins where the snapshot was taken."""
        self._producers = {entry.producer_id: entry for entry in snapshot.entries}
        opened = ((entry.current_txn_first_offset, entry.producer_id) for entry in snapshot.entries)
        # First offset to producer, oldest first: transactions begin in the order of offsets.
        self._ongoing = dict(sorted((first, producer) for first, producer in opened if first is not None))

    @property
    def producers(self) -> Mapping[int, ProducerStateEntry]:
        """By id. A view: it moves on with the run."""
        return MappingProxyType(self._producers)

    @property
    def first_undecided_offset(self) -> int | None:
        """Where the oldest open transaction began; None without one."""
        return next(iter(self._ongoing), None)

    @property
    def open_transactions(self) -> tuple[tuple[int, int], ...]:
        """Producer id and first offset of each, oldest first."""
        return tuple((producer_id, first_offset) for first_offset, producer_id in self._ongoing.items())

    def entry(self, producer_id: int) -> ProducerStateEntry:
        """What is known of that producer; an unknown one's entry says so."""
        return self._producers.get(producer_id) or ProducerStateEntry(producer_id)

    def follow(self, batch: ProducerBatch) -> CompletedTransaction | None:
        """Take notice of the next batch; the transaction that it ends, if any."""
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
        """Know these producers no more, of which none has a transaction open."""
        for producer_id in producer_ids:
            forgotten = self._producers.pop(producer_id)
            assert forgotten.current_txn_first_offset is None

    def snapshot(self, end_offset: int, max_count: int | None = None) -> ProducerSnapshot:
        """The state behind the run; not above `end_offset`.

        Of more than `max_count` producers those stay that have a transaction open, and the ones that wrote
        last: the others are forgotten as if they had been idle for too long.
        """
        entries = list(self._producers.values())
        if max_count is not None and len(entries) > max_count:
            entries.sort(key=_how_wanted, reverse=True)
            del entries[max(max_count, len(self._ongoing)) :]
        return ProducerSnapshot(end_offset, tuple(sorted(entries, key=attrgetter("producer_id"))))

    def check(self, end_offset: int) -> None:
        """Prove that producers and transactions agree, and are of batches below `end_offset`."""
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
