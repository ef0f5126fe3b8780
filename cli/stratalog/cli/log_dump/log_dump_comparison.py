"""Entries of an index held against the segment beside it, in one walk over both.

Entries ascend as batches do, so each is compared where the walk has got to. Only headers are read, and the
markers that a transaction index speaks of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile, FileSystem
from stratalog.cli.log_dump.log_dump_files import LogFile
from stratalog.log.producers.producer_batch import ProducerBatch, producer_batches
from stratalog.record.end_transaction_marker import ControlType
from stratalog.record.header import NO_TIMESTAMP
from stratalog.segment.batch_walk import LocatedBatch, walk
from stratalog.segment.file_names import LOG_SUFFIX
from stratalog.segment.indexes.offset_index import OffsetPosition
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.segment.timestamp_offset import TimestampOffset


class SegmentComparison:
    """A walk over a segment that stops where it is told, and goes on from there. One task's; close it."""

    def __init__(self, filesystem: FileSystem, index: LogFile) -> None:
        """Raises OSError, but for a segment that is missing: every comparison tells that one."""
        self.max_timestamp = NO_TIMESTAMP
        """Highest of the batches up to the current one."""
        self._end = "the segment ends before it"
        self._current: LocatedBatch | None = None
        self._file: AppendFile | None = None
        self._batches: Iterator[LocatedBatch] = iter(())
        try:
            self._file = filesystem.open_read(index.beside(LOG_SUFFIX))
        except FileNotFoundError:
            self._end = "there is no segment beside the index"
        else:
            self._batches = walk(self._file, 0, self._file.size())
        self._advance()

    @property
    def end(self) -> str:
        """Why there is no batch for an entry, as a clause."""
        return self._end

    def first(self, is_reached: Callable[[LocatedBatch], bool]) -> LocatedBatch | None:
        """The first batch from the current one on of which that holds; None where the segment ends, or breaks
        off."""
        while self._current is not None and not is_reached(self._current):
            self._advance()
        return self._current

    def with_marker(self, batch: LocatedBatch) -> ProducerBatch:
        """The batch with what it says about a transaction. Raises CorruptRecordError, OSError."""
        assert self._file is not None
        [found] = producer_batches(self._file, [batch])
        return found

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _advance(self) -> None:
        try:
            self._current = next(self._batches, None)
        except CorruptRecordError as failure:
            self._current = None
            self._end = f"the segment cannot be read up to it: {failure}"
        if self._current is not None:
            self.max_timestamp = max(self.max_timestamp, self._current.header.max_timestamp)


def compare_offset_position(segment: SegmentComparison, entry: OffsetPosition) -> str | None:
    """What is wrong with an entry of an offset index; None where nothing is."""
    batch = segment.first(lambda batch: batch.position >= entry.position)
    if batch is None:
        return f"no batch is at position {entry.position}: {segment.end}"
    if batch.position != entry.position:
        return f"no batch begins at position {entry.position}"
    if batch.header.last_offset != entry.offset:
        return f"the batch at position {entry.position} has the last offset {batch.header.last_offset}"
    return None


def compare_timestamp_offset(segment: SegmentComparison, entry: TimestampOffset) -> str | None:
    """What is wrong with an entry of a time index; None where nothing is."""
    batch = segment.first(lambda batch: batch.header.last_offset >= entry.offset)
    if batch is None:
        return f"no batch has the offset {entry.offset}: {segment.end}"
    if batch.header.last_offset != entry.offset:
        return f"no batch has the last offset {entry.offset}"
    if batch.header.max_timestamp != entry.timestamp_ms:
        return f"the batch with this last offset has the highest timestamp {batch.header.max_timestamp}"
    if segment.max_timestamp != entry.timestamp_ms:
        return f"a batch before it has the timestamp {segment.max_timestamp}"
    return None


def compare_aborted_transaction(segment: SegmentComparison, entry: AbortedTransaction) -> str | None:
    """What is wrong with an entry of a transaction index; None where nothing is. Raises OSError."""
    batch = segment.first(lambda batch: batch.header.last_offset >= entry.last_offset)
    if batch is None:
        return f"no batch has the offset {entry.last_offset}: {segment.end}"
    header = batch.header
    if header.last_offset != entry.last_offset or not header.is_control:
        return f"no marker is at offset {entry.last_offset}"
    if header.producer_id != entry.producer_id:
        return f"the marker at offset {entry.last_offset} is that of producer {header.producer_id}"
    try:
        marker = segment.with_marker(batch).marker
    except CorruptRecordError as failure:
        return f"the marker at offset {entry.last_offset} cannot be read: {failure}"
    if marker is None or marker.control_type is not ControlType.ABORT:
        return f"the marker at offset {entry.last_offset} does not abort a transaction"
    return None
