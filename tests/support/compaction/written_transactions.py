"""An oracle of a partition with transactions, in plain Python: it knows what was written and how each
transaction ended, and nothing of compaction.

* A record goes for one of these reasons: a later committed record of its key, an abort, or it is a tombstone
  whose time had come.
* A reader of committed records, from any offset on, gets committed records only, and the last one of each
  key.
* Below `compacted_upto` no key has two records, and nothing is aborted.
* A marker stays as long as data of its transaction is there, and an index names an aborted transaction
  exactly where its marker is.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence

from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.record import Record
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.objects.slice_entry import LeaderEpoch, OpenTransaction
from stratalog.segment.indexes.transaction_index import AbortedTransaction

UNDECIDED = sys.maxsize
"""The marker of an open transaction lies behind every record."""


@dataclasses.dataclass(eq=False, slots=True)
class Transaction:
    """A transaction of one partition. Not thread-safe: one test uses it."""

    producer_id: int
    first_offset: int
    marker_offset: int = UNDECIDED
    is_aborted: bool = False

    @property
    def is_committed(self) -> bool:
        return self.marker_offset != UNDECIDED and not self.is_aborted


class WrittenTransactions:
    """All records of one partition. Not thread-safe: one test uses it."""

    def __init__(self) -> None:
        self.next_offset = 0
        self.records: dict[int, Record] = {}
        self.transaction_of: dict[int, Transaction] = {}
        self.transactions: list[Transaction] = []
        self._open: dict[int, Transaction] = {}
        self._epochs: dict[int, int] = {}
        self._sequences: dict[int, int] = {}
        self._compacted_upto = 0
        self._settled_ms: dict[int, int] = {}
        """When the clock of a tombstone began, by its offset."""

    def data(self, records: Sequence[Record], codec: Codec, producer_id: int | None = None) -> bytes:
        """A batch; `producer_id`: as a part of this one's transaction, which it may begin."""
        placed = [record._replace(offset=self.next_offset + index) for index, record in enumerate(records)]
        producer = BatchProducer()
        if producer_id is not None:
            if producer_id not in self._open:
                self._open[producer_id] = Transaction(producer_id, self.next_offset)
                self.transactions.append(self._open[producer_id])
            self.transaction_of |= {record.offset: self._open[producer_id] for record in placed}
            sequence = self._sequences.get(producer_id, 0)
            self._sequences[producer_id] = sequence + len(placed)
            producer = BatchProducer(producer_id, self._epochs.get(producer_id, 0), sequence, True)
        self.records |= {record.offset: record for record in placed}
        base_offset, self.next_offset = self.next_offset, self.next_offset + len(placed)
        return encode_batch(placed, codec=codec, base_offset=base_offset, leader_epoch=1, producer=producer)

    def end(self, producer_id: int, now_ms: int, *, is_aborted: bool, bumps_epoch: bool = False) -> bytes:
        """A marker, which may end nothing. `bumps_epoch`: the producer was fenced."""
        transaction = self._open.pop(producer_id, None)
        if transaction is not None:
            transaction.marker_offset, transaction.is_aborted = self.next_offset, is_aborted
        if bumps_epoch:
            self._epochs[producer_id] = self._epochs.get(producer_id, 0) + 1
            self._sequences.pop(producer_id, None)
        marker = EndTransactionMarker(ControlType.ABORT if is_aborted else ControlType.COMMIT, 0)
        base_offset, self.next_offset = self.next_offset, self.next_offset + 1
        epoch = self._epochs.get(producer_id, 0)
        return marker.to_batch(producer_id, epoch, now_ms, base_offset=base_offset, leader_epoch=1)

    @property
    def open_producers(self) -> list[int]:
        return sorted(self._open)

    def open_at(self, offset: int) -> list[Transaction]:
        """The transactions with records below the offset and no marker there."""
        return [one for one in self.transactions if one.first_offset < offset <= one.marker_offset]

    def stable_end(self, offset: int) -> int:
        """The end of what is decided below the offset."""
        return min((one.first_offset for one in self.open_at(offset)), default=offset)

    def slice_end(self, base_offset: int) -> SliceEnd:
        """The end of a slice with all since `base_offset`."""
        end_offset = self.next_offset
        aborted = sorted(
            (one.marker_offset, one)
            for one in self.transactions
            if one.is_aborted and base_offset <= one.marker_offset < end_offset
        )
        return SliceEnd(
            end_offset,
            open_transactions=tuple(
                OpenTransaction(one.producer_id, one.first_offset) for one in self.open_at(end_offset)
            ),
            aborted=tuple(
                AbortedTransaction(one.producer_id, one.first_offset, offset, self.stable_end(offset + 1))
                for offset, one in aborted
            ),
            leader_epochs=(LeaderEpoch(1, base_offset),),
        )

    def is_committed(self, offset: int) -> bool:
        transaction = self.transaction_of.get(offset)
        return transaction is None or transaction.is_committed

    def is_undecided(self, offset: int) -> bool:
        transaction = self.transaction_of.get(offset)
        return transaction is not None and transaction.marker_offset == UNDECIDED

    def is_aborted(self, offset: int) -> bool:
        transaction = self.transaction_of.get(offset)
        return transaction is not None and transaction.is_aborted

    def newest(self, start_offset: int, end_offset: int) -> Mapping[bytes, int]:
        """The offset of the last committed record of each key in a range."""
        return {
            record.key: offset
            for offset, record in sorted(self.records.items())
            if start_offset <= offset < end_offset and self.is_committed(offset) and record.key is not None
        }

    def note_compaction(self, now_ms: int, compacted_upto: int) -> None:
        """A compaction has reached `compacted_upto` at that time."""
        assert compacted_upto >= self._compacted_upto, "compacted_upto only grows"
        for offset, record in self.records.items():
            if record.is_tombstone and self._compacted_upto <= offset < compacted_upto:
                self._settled_ms.setdefault(offset, now_ms)
        self._compacted_upto = compacted_upto

    def require(self, found: Sequence[Record], log_start_offset: int, over_ms: int) -> None:
        """Check all records that are left. `over_ms`: tombstones that were settled then or before may be
        gone. Raises AssertionError."""
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets)), "records are out of order"
        for record in found:
            assert self.records[record.offset] == record, "a record has changed"
        below = [record.key for record in found if record.offset < self._compacted_upto]
        assert len(below) == len(set(below)), "a key has two records below compacted_upto"
        left = set(offsets)
        assert not any(self.is_aborted(offset) for offset in left if offset < self._compacted_upto)
        newest = self.newest(log_start_offset, self.stable_end(self.next_offset))
        for offset, record in self.records.items():
            if offset in left or offset < log_start_offset or self.is_aborted(offset):
                continue
            assert record.key is not None
            is_replaced = newest.get(record.key, -1) > offset
            is_over = record.is_tombstone and self._settled_ms.get(offset, over_ms + 1) <= over_ms
            assert is_replaced or is_over, f"a record went for nothing: {record}"

    def require_committed(
        self, found: Sequence[Record], left: Sequence[Record], start_offset: int, end_offset: int
    ) -> None:
        """Check the records that a reader of committed records got of a range. `left`: all that are left.
        Raises AssertionError."""
        assert list(found) == [
            record
            for record in left
            if start_offset <= record.offset < end_offset and self.is_committed(record.offset)
        ], "a reader of committed records gets others"
        gone = {record.offset for record in left}.__contains__
        for offset in self.newest(start_offset, end_offset).values():
            assert gone(offset) or self.records[offset].is_tombstone, "the last record of a key is gone"
