"""The state of one producer.

A producer numbers its records: each of its batches begins with the sequence number behind the last one, and 0
follows 2^31 - 1. The log remembers the offsets of its last five batches (a client sends no more ahead), so a
batch that comes again gets the same answer and is not stored twice.

The epoch grows each time another process takes over the producer's id, and keeps the former one out. The
sequence begins at 0 with every epoch, so batches of another epoch are forgotten.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.record.batch_producer import add_to_sequence
from stratalog.record.header import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP

RETAINED_BATCH_COUNT = 5
"""Batches of a producer that are recognised when they come again."""

NO_COORDINATOR_EPOCH = -1


class BatchMetadata(NamedTuple):
    """One of the last batches of a producer. All numbers are inclusive."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        """Valid only if the batch has sequence numbers."""
        return add_to_sequence(self.last_sequence, -self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerStateEntry(NamedTuple):
    """A producer after one of its batches. Immutable: the next batch makes another entry."""

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    """-1 for an unknown producer."""
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    """The epoch of the transaction coordinator that wrote its last marker."""
    last_timestamp_ms: int = NO_TIMESTAMP
    """Highest timestamp of its last batch, markers included."""
    current_txn_first_offset: int | None = None
    """First offset of its open transaction."""
    batches: tuple[BatchMetadata, ...] = ()
    """The last batches of this epoch, oldest first."""

    @property
    def is_unknown(self) -> bool:
        """The log has no record of this producer any more, or none yet."""
        return self.epoch == NO_PRODUCER_EPOCH

    @property
    def last_sequence(self) -> int:
        """The last sequence; -1 if no batch of the epoch is known, so that 0 comes next."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def next_sequence(self) -> int:
        return add_to_sequence(self.last_sequence, 1) if self.batches else 0

    def duplicate_of(self, batch: ProducerBatch) -> BatchMetadata | None:
        """The stored batch with exactly these sequence numbers, if there is one."""
        header = batch.header
        if header.producer_epoch != self.epoch or header.base_sequence == NO_SEQUENCE:
            return None
        wanted = (header.base_sequence, batch.last_sequence)
        return next(
            (item for item in self.batches if (item.first_sequence, item.last_sequence) == wanted), None
        )

    def after(self, batch: ProducerBatch) -> ProducerStateEntry:
        """The producer after `batch`, which is its own."""
        header = batch.header
        assert header.producer_id == self.producer_id
        kept = self.batches if header.producer_epoch == self.epoch else ()
        if header.is_control:
            if batch.marker is None:
                return self
            return ProducerStateEntry(
                producer_id=self.producer_id,
                epoch=header.producer_epoch,
                coordinator_epoch=batch.marker.coordinator_epoch,
                last_timestamp_ms=header.max_timestamp,
                current_txn_first_offset=None,
                batches=kept,
            )
        newest = BatchMetadata(
            batch.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp
        )
        first_offset = self.current_txn_first_offset
        if first_offset is None and header.is_transactional:
            first_offset = header.base_offset
        return ProducerStateEntry(
            producer_id=self.producer_id,
            epoch=header.producer_epoch,
            coordinator_epoch=self.coordinator_epoch,
            last_timestamp_ms=header.max_timestamp,
            current_txn_first_offset=first_offset,
            batches=(*kept[-(RETAINED_BATCH_COUNT - 1) :], newest),
        )
