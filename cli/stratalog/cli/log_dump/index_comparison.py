"""Compares the entries of an index with the segment beside it, in one walk over both.

Entries ascend as batches do, so each is compared with the batch that the walk has reached. Only headers are
read, and the markers that a transaction index names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile
from stratalog.cli.log_dump.dumped_file import DumpedFile
from stratalog.log.producers.producer_batch import producer_batches
from stratalog.record.end_transaction_marker import ControlType
from stratalog.record.header import NO_TIMESTAMP
from stratalog.segment.batch_walk import LocatedBatch, walk
from stratalog.segment.file_names import LOG_SUFFIX
from stratalog.segment.indexes.offset_index import OffsetPosition
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.segment.timestamp_offset import TimestampOffset


class SegmentComparison:
    """A walk over the segment beside `index`. Its methods return the difference between the segment and an
    entry as a clause, or None. Not thread-safe; close it."""

    def __init__(self, index: DumpedFile) -> None:
        """A missing segment differs from every entry. Raises OSError."""
        self._max_timestamp = NO_TIMESTAMP
        self._end = "the segment ends before it"
        self._current: LocatedBatch | None = None
        self._file: AppendFile | None = None
        self._batches: Iterator[LocatedBatch] = iter(())
        try:
            self._file = index.filesystem.open_read(index.beside(LOG_SUFFIX))
        except FileNotFoundError:
            self._end = "there is no segment beside the index"
        else:
            self._batches = walk(self._file, 0, self._file.size())
        self._advance()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def offset_position(self, entry: OffsetPosition) -> str | None:
        batch = self._first(lambda batch: batch.position >= entry.position)
        if batch is None:
            return f"no batch is at position {entry.position}: {self._end}"
        if batch.position != entry.position:
            return f"no batch begins at position {entry.position}"
        if batch.header.last_offset != entry.offset:
            return f"the batch at position {entry.position} has the last offset {batch.header.last_offset}"
        return None

    def timestamp_offset(self, entry: TimestampOffset) -> str | None:
        batch = self._first(lambda batch: batch.header.last_offset >= entry.offset)
        if batch is None:
            return f"no batch has the offset {entry.offset}: {self._end}"
        if batch.header.last_offset != entry.offset:
            return f"no batch has the last offset {entry.offset}"
        if batch.header.max_timestamp != entry.timestamp_ms:
            return f"the batch with this last offset has the highest timestamp {batch.header.max_timestamp}"
        if self._max_timestamp != entry.timestamp_ms:
            return f"a batch before it has the timestamp {self._max_timestamp}"
        return None

    def aborted_transaction(self, entry: AbortedTransaction) -> str | None:
        """Compare an entry of a transaction index. Raises OSError."""
        batch = self._first(lambda batch: batch.header.last_offset >= entry.last_offset)
        if batch is None:
            return f"no batch has the offset {entry.last_offset}: {self._end}"
        header = batch.header
        if header.last_offset != entry.last_offset or not header.is_control:
            return f"no marker is at offset {entry.last_offset}"
        if header.producer_id != entry.producer_id:
            return f"the marker at offset {entry.last_offset} is that of producer {header.producer_id}"
        assert self._file is not None
        try:
            [found] = producer_batches(self._file, [batch])
        except CorruptRecordError as failure:
            return f"the marker at offset {entry.last_offset} cannot be read: {failure}"
        if found.marker is None or found.marker.control_type is not ControlType.ABORT:
            return f"the marker at offset {entry.last_offset} does not abort a transaction"
        return None

    def _first(self, is_reached: Callable[[LocatedBatch], bool]) -> LocatedBatch | None:
        """The first batch from the current one on that is reached; None if the segment ends or breaks off."""
        while self._current is not None and not is_reached(self._current):
            self._advance()
        return self._current

    def _advance(self) -> None:
        try:
            self._current = next(self._batches, None)
        except CorruptRecordError as failure:
            self._current = None
            self._end = f"the segment cannot be read up to it: {failure}"
        if self._current is not None:
            self._max_timestamp = max(self._max_timestamp, self._current.header.max_timestamp)
