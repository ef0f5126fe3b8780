"""Follows a slice's producers, transactions and leader epochs while it is uploaded, up to its end.

They are taken from the uploaded batches, which a checksum proves: a transaction index that the local disk has
damaged or lost must not turn an aborted record into a committed one for ever. Only the state before the first
batch comes from the local log: from a producer snapshot (which has a checksum, too) and the batches behind
it. Leader epochs come from the log, which also knows epochs whose batches are gone.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.log.exchange.state_transfer import StateTransfer
from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.log.producers.producer_fold import ProducerFold
from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.record.header import parse_header
from stratalog.record.native.batch_kernels import walk_batches
from stratalog.record.native.batch_row import BatchRow
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.objects.slice_entry import LeaderEpoch, OpenTransaction
from stratalog.segment.indexes.transaction_index import AbortedTransaction

MAX_PRODUCER_COUNT = 20_000
"""Producers in a slice's snapshot, 46 bytes each. If there are more, those idle for longest are left out, as
if they had expired."""


class NotedBatches(NamedTuple):
    """The producers' part of a row of batches."""

    batches: list[tuple[int, ProducerBatch]]
    """Each batch, with the position behind it."""
    end_position: int
    """Position behind the last batch that could be read."""
    error: CorruptRecordError | None
    """The fault of the batch at `end_position`."""
    rows: list[BatchRow]
    """All batches, with their times; perhaps also the one with the fault."""


class SliceProducers:
    """The producers of a partition while its slices are written. Not thread-safe: guarded by its
    `PartitionUpload`."""

    def __init__(self, log: StateTransfer, offset: int) -> None:
        """The first slice begins at `offset`. Raises OffsetOutOfRangeError if the local log does not have
        that offset, CorruptRecordError, DataDirectoryError.
        """
        self._log = log
        self._fold = ProducerFold(log.producers_at(offset))
        self._aborted: list[AbortedTransaction] = []
        self._base_offset = offset

    def follow(self, noted: NotedBatches, end_position: int) -> None:
        """Take in the batches that end at or below `end_position`: they are in the slice."""
        for position, batch in noted.batches:
            if position > end_position:
                break
            completed = self._fold.follow(batch)
            if completed is not None and completed.is_aborted:
                self._aborted.append(completed.index_entry)

    def end_slice(self, end_offset: int) -> SliceEnd:
        """End the slice at `end_offset`, where the next one begins."""
        epochs = self._log.leader_epochs(self._base_offset, end_offset)
        end = SliceEnd(
            end_offset,
            open_transactions=tuple(OpenTransaction(*one) for one in self._fold.open_transactions),
            aborted=tuple(self._aborted),
            producer_snapshot=self._fold.snapshot(end_offset, MAX_PRODUCER_COUNT).to_bytes(),
            leader_epochs=tuple(LeaderEpoch(*epoch) for epoch in epochs),
        )
        self._aborted = []
        self._base_offset = end_offset
        return end


def note_batches(data: Buffer) -> NotedBatches:
    """Read the producers' part and the times of whole batches. `ObjectWriter.append` proves the batches."""
    noted: list[tuple[int, ProducerBatch]] = []
    all_rows: list[BatchRow] = []
    position = 0
    try:
        while position < len(data):
            # Without a row the batch is damaged, but its header may still be readable.
            rows = walk_batches(data, position, 0, 0, NO_LEADER_EPOCH) or [_row_of(data, position)]
            all_rows += rows
            for row in rows:
                if row.is_noted:
                    batch = ProducerBatch.read(data, row.position, parse_header(data, row.position))
                    position = row.end_position
                    noted.append((position, batch))
            position = rows[-1].end_position
    except CorruptRecordError as error:
        return NotedBatches(noted, position, error, all_rows)
    return NotedBatches(noted, position, None, all_rows)


def _row_of(data: Buffer, position: int) -> BatchRow:
    """The row of a batch by its header alone. Raises CorruptRecordError."""
    header = parse_header(data, position)
    return BatchRow(
        position=position,
        size_bytes=header.size_in_bytes,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        max_timestamp_ms=header.max_timestamp,
        leader_epoch=header.leader_epoch,
        is_noted=True,
    )
