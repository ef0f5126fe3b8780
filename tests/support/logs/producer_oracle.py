"""The producer state that a log must have, found by looking at the whole log each time.

Nothing is remembered but the batches themselves and when a producer was forgotten; every answer is a scan. It
shares no code with the engine but the batches' form.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.record.end_transaction_marker import ControlType

SEQUENCES = 2**31


class Row(NamedTuple):
    """A producer as a snapshot shows it."""

    epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    txn_first_offset: int


class Transaction(NamedTuple):
    """`marker_offset` is None while it is open."""

    producer_id: int
    first_offset: int
    marker_offset: int | None
    is_aborted: bool


class ProducerOracle:
    """The log's batches, all of them with a producer id. Guarded by its user."""

    def __init__(self) -> None:
        self.log: list[ProducerBatch] = []
        self._remembered_from: dict[int, int] = {}

    @property
    def end_offset(self) -> int:
        return self.log[-1].header.next_offset if self.log else 0

    def batches_of(self, producer_id: int) -> list[ProducerBatch]:
        """Those since it was forgotten."""
        start = self._remembered_from.get(producer_id, 0)
        return [batch for batch in self.log[start:] if batch.header.producer_id == producer_id]

    def rows(self) -> dict[int, Row]:
        """By producer id."""
        producer_ids = {batch.header.producer_id for batch in self.log}
        rows = {producer_id: self._row(producer_id) for producer_id in producer_ids}
        return {producer_id: row for producer_id, row in rows.items() if row is not None}

    def _row(self, producer_id: int) -> Row | None:
        mine = self.batches_of(producer_id)
        if not mine:
            return None
        last = mine[-1].header
        markers = [batch.marker.coordinator_epoch for batch in mine if batch.marker is not None]
        data = self._data_of_epoch(producer_id)
        opened = [txn.first_offset for txn in self.transactions() if txn[:3:2] == (producer_id, None)]
        return Row(
            epoch=last.producer_epoch,
            coordinator_epoch=markers[-1] if markers else -1,
            last_sequence=_last_sequence(data[-1]) if data else -1,
            last_offset=data[-1].header.last_offset if data else -1,
            offset_delta=data[-1].header.last_offset_delta if data else 0,
            timestamp_ms=last.max_timestamp,
            txn_first_offset=opened[0] if opened else -1,
        )

    def _data_of_epoch(self, producer_id: int) -> list[ProducerBatch]:
        """The producer's data batches behind the last change of its epoch."""
        mine = self.batches_of(producer_id)
        found: list[ProducerBatch] = []
        for batch in reversed(mine):
            if batch.header.producer_epoch != mine[-1].header.producer_epoch:
                break
            found += [batch] if batch.marker is None else []
        return found[::-1]

    def transactions(self) -> list[Transaction]:
        """All of the log, by their beginning."""
        found: list[Transaction] = []
        for producer_id in {batch.header.producer_id for batch in self.log}:
            first_offset = -1
            for batch in (batch for batch in self.log if batch.header.producer_id == producer_id):
                offset = batch.header.base_offset
                if batch.marker is not None and first_offset >= 0:
                    is_aborted = batch.marker.control_type is ControlType.ABORT
                    found.append(Transaction(producer_id, first_offset, offset, is_aborted))
                if batch.marker is not None:
                    first_offset = -1
                elif first_offset < 0 and batch.header.is_transactional:
                    first_offset = offset
            if first_offset >= 0:
                found.append(Transaction(producer_id, first_offset, None, is_aborted=False))
        return sorted(found, key=lambda transaction: transaction.first_offset)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Where the first transaction began whose marker is not below the high watermark."""
        return next(
            (
                transaction.first_offset
                for transaction in self.transactions()
                if transaction.marker_offset is None or transaction.marker_offset >= high_watermark
            ),
            None,
        )

    def aborted(self) -> list[tuple[int, int, int, int]]:
        """The contents of the transaction indexes: producer, first offset, marker, last stable offset
        then."""
        transactions = self.transactions()
        found: list[tuple[int, int, int, int]] = []
        for transaction in transactions:
            marker = transaction.marker_offset
            if marker is None or not transaction.is_aborted:
                continue
            undecided = [
                other.first_offset
                for other in transactions
                if other.first_offset < marker
                and (other.marker_offset is None or other.marker_offset > marker)
            ]
            stable = min(undecided, default=marker + 1)
            found.append((transaction.producer_id, transaction.first_offset, marker, stable))
        return sorted(found, key=lambda row: row[2])

    def answer(self, batch: ProducerBatch) -> str | tuple[int, int]:
        """The answer of a leader to a client's data batch or a coordinator's marker: the code of an error,
        the offsets of the batch that it repeats, or the offsets that it gets."""
        header = batch.header
        mine = self.batches_of(header.producer_id)
        row = self._row(header.producer_id)
        if batch.marker is None:
            wanted = (header.base_sequence, header.last_offset_delta)
            data = self._data_of_epoch(header.producer_id)[-5:]
            for old in (
                old.header for old in data if mine[-1].header.producer_epoch == header.producer_epoch
            ):
                if (old.base_sequence, old.last_offset_delta) == wanted:
                    return old.base_offset, old.last_offset
        if row is not None and header.producer_epoch < row.epoch:
            return "PRODUCER_FENCED"
        if batch.marker is not None:
            if row is not None and batch.marker.coordinator_epoch < row.coordinator_epoch:
                return "COORDINATOR_FENCED"
        elif row is not None:
            if row.txn_first_offset >= 0 and not header.is_transactional:
                return "INVALID_TXN_STATE"
            follows = header.producer_epoch == row.epoch and row.last_sequence >= 0
            expected = (row.last_sequence + 1) % SEQUENCES if follows else 0
            if header.base_sequence != expected:
                return "OUT_OF_ORDER_SEQUENCE"
        return header.base_offset, header.last_offset

    def forget(self, producer_id: int) -> None:
        """It has expired."""
        self._remembered_from[producer_id] = len(self.log)


def _last_sequence(batch: ProducerBatch) -> int:
    return (batch.header.base_sequence + batch.header.last_offset_delta) % SEQUENCES
