"""The indexes of a segment, and the rule that fills the two that lead to its batches.

Kafka's rule: a batch is entered in both indexes when more than `index.interval.bytes` were written since the
batch that was entered last; the batch itself does not count yet. The offset entry is the batch's last offset
with its position; the time entry is the highest timestamp so far, this batch included, with the last offset
of the batch that has it. Append and rebuild both go through `add_rows`, so an index that was made again has
the bytes of the one that was lost.

The third index, that of aborted transactions, gets an entry when the marker of one is appended. What belongs
into it does not follow from the segment alone: a transaction may have begun before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import FileSystem
from stratalog.record.batch_kernels import index_rows
from stratalog.record.batch_row import BatchRow
from stratalog.record.index_rows import IndexProgress
from stratalog.segment.file_names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_path
from stratalog.segment.offset_index import OffsetIndex
from stratalog.segment.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from stratalog.segment.time_index import TimeIndex
from stratalog.segment.timestamp_offset import NO_TIMESTAMP_OFFSET, TimestampOffset
from stratalog.segment.transaction_index import AbortedTransaction, TransactionIndex


class SegmentIndexes:
    """Not thread-safe for changes: guarded by UnifiedLog.lock. Look-ups in the indexes run beside an
    append."""

    __slots__ = (
        "bytes_since_entry",
        "is_saved",
        "max_timestamp",
        "offset_index",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self, offset_index: OffsetIndex, time_index: TimeIndex, transaction_index: TransactionIndex
    ) -> None:
        self.offset_index = offset_index
        self.time_index = time_index
        self.transaction_index = transaction_index
        self.bytes_since_entry = 0
        self.max_timestamp = time_index.last or NO_TIMESTAMP_OFFSET
        self.is_saved = False
        """The files are what is here."""

    @staticmethod
    def empty(base_offset: int) -> SegmentIndexes:
        return SegmentIndexes(OffsetIndex(base_offset), TimeIndex(base_offset), TransactionIndex(base_offset))

    @staticmethod
    def load(filesystem: FileSystem, directory: str, base_offset: int) -> SegmentIndexes:
        """From the files. Raises FileNotFoundError, and CorruptRecordError where they cannot be indexes."""
        offset_data = filesystem.read_file(segment_path(directory, base_offset, OFFSET_INDEX_SUFFIX))
        time_data = filesystem.read_file(segment_path(directory, base_offset, TIME_INDEX_SUFFIX))
        indexes = SegmentIndexes(
            OffsetIndex(base_offset, offset_data),
            TimeIndex(base_offset, time_data),
            TransactionIndex.load(filesystem, directory, base_offset),
        )
        indexes.is_saved = True
        return indexes

    def save(self, filesystem: FileSystem, directory: str) -> None:
        """Write the files, with the highest timestamp of all as the last entry, unless they are so already.
        Not synced.

        Raises OSError.
        """
        if self.is_saved:
            return
        self.time_index.maybe_append(self.max_timestamp)
        base_offset = self.offset_index.base_offset
        _write(
            filesystem,
            segment_path(directory, base_offset, OFFSET_INDEX_SUFFIX),
            self.offset_index.to_bytes(),
        )
        _write(
            filesystem, segment_path(directory, base_offset, TIME_INDEX_SUFFIX), self.time_index.to_bytes()
        )
        self.transaction_index.save(filesystem, directory)
        self.is_saved = True

    def add(
        self, *, position: int, size_bytes: int, last_offset: int, max_timestamp_ms: int, interval_bytes: int
    ) -> None:
        """Take notice of a batch that lies at `position`, behind all others so far."""
        self.add_rows(
            (BatchRow(position, size_bytes, last_offset, max_timestamp_ms, is_noted=False),), interval_bytes
        )

    def add_rows(self, rows: Sequence[BatchRow], interval_bytes: int) -> None:
        """Take notice of many batches, in order, behind all others so far."""
        self.is_saved = False
        last = self.time_index.last
        progress = IndexProgress(
            self.bytes_since_entry, *self.max_timestamp, -1 if last is None else last.timestamp_ms
        )
        offsets, positions, times_ms, times_offsets, progress = index_rows(rows, interval_bytes, progress)
        self.offset_index.extend(offsets, positions)
        self.time_index.extend(times_ms, times_offsets)
        self.max_timestamp = TimestampOffset(progress.newest_ms, progress.newest_offset)
        self.bytes_since_entry = progress.bytes_since_entry

    def resume_with(self, size_bytes: int, last_offset: int, max_timestamp_ms: int) -> None:
        """Take notice, after loading, of a batch that the files already know: of the last indexed one and
        those behind."""
        self.bytes_since_entry += size_bytes
        if max_timestamp_ms > self.max_timestamp.timestamp_ms:
            self.max_timestamp = TimestampOffset(max_timestamp_ms, last_offset)
            self.is_saved = False

    def add_aborted(self, aborted: AbortedTransaction) -> None:
        """Take notice of a transaction whose abort marker is the last batch so far."""
        self.transaction_index.append(aborted)
        self.is_saved = False

    def is_full(self, max_index_bytes: int) -> bool:
        """One slot of the time index is kept for the entry that closes it."""
        return (
            self.offset_index.size_bytes + 8 > max_index_bytes
            or self.time_index.size_bytes + 2 * TIME_ENTRY_SIZE > max_index_bytes
        )

    @property
    def size_bytes(self) -> int:
        """Memory that the entries take."""
        return self.offset_index.size_bytes + self.time_index.size_bytes + self.transaction_index.size_bytes

    def check(self, *, end_offset: int, log_size_bytes: int) -> None:
        """Raises CorruptRecordError where an index is damaged or points beyond the log."""
        self.offset_index.check()
        self.time_index.check()
        self.transaction_index.check()
        last = self.offset_index.last
        if last is not None and (last.offset >= end_offset or last.position >= log_size_bytes):
            raise CorruptRecordError(
                "an offset index points beyond its log", offset=last.offset, end=end_offset
            )
        newest = self.time_index.last
        if newest is not None and newest.offset >= end_offset:
            raise CorruptRecordError(
                "a time index points beyond its log", offset=newest.offset, end=end_offset
            )
        aborted = self.transaction_index.last
        if aborted is not None and aborted.last_offset >= end_offset:
            raise CorruptRecordError(
                "a transaction index points beyond its log", offset=aborted.last_offset, end=end_offset
            )


def _write(filesystem: FileSystem, path: str, data: bytes) -> None:
    file = filesystem.open_append(path)
    try:
        file.truncate(0)
        file.append([data])
    finally:
        file.close()
