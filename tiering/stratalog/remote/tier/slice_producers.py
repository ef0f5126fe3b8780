"""Follows a slice's producers, transactions and leader epochs while it is uploaded, up to its end.

They are taken from the uploaded batches, which a checksum proves: a transaction index that the local disk has
damaged or lost must not turn an aborted record into a committed one for ever. Only the state before the first
batch comes from the local log: from a producer snapshot (which has a checksum, too) and the batches behind
it. Leader epochs come from the log, which also knows epochs whose batches are gone.

The slices of waiting tails are small and many. So the index of such a slice has only the producers that have
changed since the last slice with a whole snapshot, if these are few. A log that is restored reads two indexes
then, however many slices lie between. `MAX_PART_COUNT` slices later at the latest the snapshot is whole
again; so it is where the slice with the whole one has been dropped behind the log start.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.log.exchange.state_transfer import StateTransfer
from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.log.producers.producer_fold import ProducerFold
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.record.header import parse_header
from stratalog.record.native.batch_kernels import walk_batches
from stratalog.record.native.batch_row import BatchRow
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.objects.slice_entry import LeaderEpoch, OpenTransaction
from stratalog.segment.batch_headers import row_of
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.segment.split_batch import SplitBatch

MAX_PRODUCER_COUNT = 20_000
"""Producers in a slice's snapshot, 46 bytes each. If there are more, those idle for longest are left out, as
if they had expired."""
MAX_PART_COUNT = 64
"""Slices in a row without a whole snapshot."""
SMALL_PRODUCER_COUNT = 64
"""A snapshot of so few producers is always whole."""
MAX_PART_OF_PRODUCERS = 4
"""A snapshot is whole if more than one in so many producers has changed."""
LARGE_BATCH_BYTES = 64 << 10


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
    `Uploader`."""

    def __init__(self, log: StateTransfer, offset: int, *, is_of_tails: bool = False) -> None:
        """The first slice begins at `offset`. If it `is_of_tails`, snapshots may be of changed producers
        only. Raises OffsetOutOfRangeError if the local log does not have that offset, CorruptRecordError,
        DataDirectoryError.
        """
        self.offset = offset
        """The end of the last slice."""
        self._log = log
        self._fold = ProducerFold(log.producers_at(offset))
        self._is_of_tails = is_of_tails
        self._aborted: list[AbortedTransaction] = []
        self._changed: set[int] = set()
        """Producers that have changed since the last whole snapshot."""
        self._whole_offset: int | None = None
        """The end of the slice with that snapshot; None if no slice may refer to it."""
        self._part_count = 0

    @property
    def producer_count(self) -> int:
        return len(self._fold.producers)

    def note_log_start(self, offset: int) -> None:
        """Note that slices that end there or below are dropped."""
        if self._whole_offset is not None and self._whole_offset <= offset:
            self._whole_offset = None

    def follow(self, noted: NotedBatches, end_position: int) -> None:
        """Take in the batches that end at or below `end_position`: they are in the slice."""
        for position, batch in noted.batches:
            if position > end_position:
                break
            if batch.has_producer:
                self._changed.add(batch.header.producer_id)
            completed = self._fold.follow(batch)
            if completed is not None and completed.is_aborted:
                self._aborted.append(completed.index_entry)

    def end_slice(self, end_offset: int) -> SliceEnd:
        """End the slice at `end_offset`, where the next one begins."""
        epochs = self._log.leader_epochs(self.offset, end_offset)
        since = self._whole_offset if self._is_part_enough else None
        if since is None:
            snapshot = self._whole_snapshot(end_offset)
        else:
            self._part_count += 1
            snapshot = self._fold.part(self._changed, end_offset)
        end = SliceEnd(
            end_offset,
            open_transactions=tuple(OpenTransaction(*one) for one in self._fold.open_transactions),
            aborted=tuple(self._aborted),
            producer_snapshot=snapshot.to_bytes(),
            producers_since=since,
            leader_epochs=tuple(LeaderEpoch(*epoch) for epoch in epochs),
        )
        self._aborted = []
        self.offset = end_offset
        return end

    @property
    def _is_part_enough(self) -> bool:
        return (
            self._is_of_tails
            and self._part_count < MAX_PART_COUNT
            and self.producer_count > SMALL_PRODUCER_COUNT
            and len(self._changed) * MAX_PART_OF_PRODUCERS <= self.producer_count
        )

    def _whole_snapshot(self, end_offset: int) -> ProducerSnapshot:
        # What is kept for many passes must not grow with every producer that there ever was.
        opened = {producer_id for producer_id, _ in self._fold.open_transactions}
        self._fold.forget([one for one in self._log.forgotten(self._fold.producers) if one not in opened])
        self._changed.clear()
        self._part_count = 0
        self._whole_offset = end_offset
        return self._fold.snapshot(end_offset, MAX_PRODUCER_COUNT)


def note_batches(data: Buffer) -> NotedBatches:
    """Read the producers' part and the times of whole batches. `ObjectWriter.append` proves the batches."""
    noted: list[tuple[int, ProducerBatch]] = []
    all_rows: list[BatchRow] = []
    position = 0
    try:
        while position < len(data):
            rows = _rows_at(data, position)
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


def note_split(batch: SplitBatch) -> NotedBatches:
    """The same of one batch."""
    header, size_bytes = batch.header, batch.size_bytes
    row = row_of(0, header)._replace(is_noted=True)
    return NotedBatches([(size_bytes, ProducerBatch(header))], size_bytes, None, [row])


def _rows_at(data: Buffer, position: int) -> list[BatchRow]:
    """The rows of the batch at `position` and of some behind it. Raises CorruptRecordError."""
    if len(data) - position >= LARGE_BATCH_BYTES:
        row = _row_of(data, position)
        if row.size_bytes >= LARGE_BATCH_BYTES:
            # A walk would compare its checksum, which takes longer than a look at the header.
            return [row]
    # Without a row the batch is damaged, but its header may still be readable.
    return walk_batches(data, position, 0, 0, NO_LEADER_EPOCH) or [_row_of(data, position)]


def _row_of(data: Buffer, position: int) -> BatchRow:
    """The row of a batch by its header alone. Raises CorruptRecordError."""
    return row_of(position, parse_header(data, position))._replace(is_noted=True)
