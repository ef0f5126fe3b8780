"""The indexes of a segment, and the rule that fills the two that lead to its batches.

Kafka's rule: a batch is entered in both indexes when more than `index.interval.bytes` were written since the
last batch that was entered; the batch itself does not count yet. The offset entry is the batch's last offset
with its position. The time entry is the highest timestamp so far, this batch included, with the last offset
of the batch that has it. Append and rebuild both use `add_rows`, so a rebuilt index has the same bytes as the
lost one.

The third index gets an entry when the marker of an aborted transaction is appended. Its contents do not
follow from the segment alone: a transaction may have begun before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from errno import ENOENT

from stratalog.base.errors import CorruptRecordError
from stratalog.record.native.batch_kernels import index_rows
from stratalog.record.native.batch_row import BatchRow, IndexProgress
from stratalog.segment.batch_headers import BatchHeaders
from stratalog.segment.file_names import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_path,
)
from stratalog.segment.indexes.index_file import IndexSeal
from stratalog.segment.indexes.index_page_cache import IndexPageCache
from stratalog.segment.indexes.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from stratalog.segment.indexes.offset_index import OffsetIndex
from stratalog.segment.indexes.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from stratalog.segment.indexes.time_index import TimeIndex
from stratalog.segment.indexes.transaction_index import AbortedTransaction, TransactionIndex
from stratalog.segment.segment_seal import SegmentSeal
from stratalog.segment.timestamp_offset import NO_TIMESTAMP_OFFSET, TimestampOffset


class SegmentIndexes:
    """The three indexes of one segment. Not thread-safe for changes: guarded by UnifiedLog.lock. Look-ups in
    the indexes run beside an append."""

    __slots__ = (
        "_open_transactions",
        "_transaction_index",
        "bytes_since_entry",
        "damaged_position",
        "headers",
        "max_timestamp",
        "offset_index",
        "seal",
        "time_index",
    )

    def __init__(
        self, offset_index: OffsetIndex, time_index: TimeIndex, transaction_index: TransactionIndex | None
    ) -> None:
        """`transaction_index` is None if `leave_aborted` follows."""
        self.offset_index = offset_index
        self.time_index = time_index
        self._transaction_index = transaction_index
        self._open_transactions: Callable[[], TransactionIndex] | None = None
        self.bytes_since_entry = 0
        self.headers = BatchHeaders(offset_index.base_offset)
        """The sum over the headers of the indexed batches; unknown if the indexes were opened from files."""
        # The position of a damaged batch among those indexed here, if any. Its offsets are trusted, times are
        # not.
        self.damaged_position: int | None = None
        self.max_timestamp = time_index.last or NO_TIMESTAMP_OFFSET
        self.seal: SegmentSeal | None = None
        """The seal of the files, if they hold every entry of these indexes."""

    @staticmethod
    def empty(base_offset: int) -> SegmentIndexes:
        """Empty indexes in memory, until `attach`."""
        return SegmentIndexes(OffsetIndex(base_offset), TimeIndex(base_offset), TransactionIndex(base_offset))

    @staticmethod
    def open(cache: IndexPageCache, directory: str, base_offset: int, seal: SegmentSeal) -> SegmentIndexes:
        """Open the indexes of a sealed or closed segment. Reads only the last page of the offset index and of
        the time index.

        Raises FileNotFoundError if one of these two is missing, CorruptRecordError if one differs from its
        seal, OSError.
        """
        offset_path = segment_path(directory, base_offset, OFFSET_INDEX_SUFFIX)
        time_path = segment_path(directory, base_offset, TIME_INDEX_SUFFIX)
        indexes = SegmentIndexes(
            OffsetIndex.open(base_offset, cache, offset_path, seal.offset_index),
            TimeIndex.open(base_offset, cache, time_path, seal.time_index),
            None,
        )
        indexes.leave_aborted(cache, directory, seal.transaction_index)
        indexes.seal = seal
        return indexes

    def leave_aborted(self, cache: IndexPageCache, directory: str, seal: IndexSeal) -> None:
        """Take the transaction index from its sealed file, which is opened on first use."""
        base_offset = self.offset_index.base_offset
        path = segment_path(directory, base_offset, TRANSACTION_INDEX_SUFFIX)

        def opened() -> TransactionIndex:
            if seal.size_bytes == 0:
                return TransactionIndex(base_offset)
            try:
                return TransactionIndex.open(base_offset, cache, path, seal)
            except FileNotFoundError as missing:
                raise FileNotFoundError(
                    ENOENT,
                    "the transaction index is missing; restart the server, which rebuilds the index",
                    path,
                ) from missing

        self._transaction_index, self._open_transactions = None, opened

    @property
    def transaction_index(self) -> TransactionIndex:
        """The transaction index, opened on first use, so that users of the other indexes do not depend on it.

        The first use raises CorruptRecordError, OSError (FileNotFoundError); later ones do not.
        """
        index = self._transaction_index
        if index is None:
            assert self._open_transactions is not None
            index = self._transaction_index = self._open_transactions()
        return index

    @transaction_index.setter
    def transaction_index(self, index: TransactionIndex) -> None:
        self._transaction_index = index

    def attach(self, cache: IndexPageCache, directory: str) -> None:
        """Grow in the segment's files from now on. Present contents of the file of an index in memory mean
        nothing."""
        for index, suffix in (
            (self.offset_index, OFFSET_INDEX_SUFFIX),
            (self.time_index, TIME_INDEX_SUFFIX),
            (self.transaction_index, TRANSACTION_INDEX_SUFFIX),
        ):
            if not index.has_file:
                index.attach(cache, segment_path(directory, index.base_offset, suffix))

    def save(self, log_size_bytes: int, end_offset: int) -> SegmentSeal:
        """Write all entries to the files, with the highest timestamp as the last time entry. Not synced.
        `log_size_bytes` and `end_offset` describe the indexed batches. The indexes go on as before, so a
        failure does not spoil them.

        Raises OSError.
        """
        self.seal = None
        seal = self.seal = SegmentSeal.of(
            log_size_bytes,
            end_offset,
            self.headers.packed(),
            self.offset_index.save(),
            self.time_index.save_closed(self.max_timestamp),
            self.transaction_index.save_or_remove(),
        )
        return seal

    def closing_files(self) -> tuple[bytes, bytes]:
        """The contents of the two files of a sealed segment: offset index and time index. Add nothing
        afterwards."""
        self.time_index.maybe_append(self.max_timestamp)
        return self.offset_index.to_bytes(), self.time_index.to_bytes()

    def until(self, end_position: int) -> SegmentIndexes:
        """The indexes as they were when the segment ended at `end_position`, growing. They lack the batches
        after the last entry, and the sum over the headers: call `resume_with` for that entry's batch and each
        one after it.

        A time entry after the last offset entry is the one that closed the file: whenever a batch was
        entered, the time index got the highest timestamp so far.
        """
        offset_index = self.offset_index.below_position(end_position)
        last = offset_index.last
        return SegmentIndexes(
            offset_index,
            self.time_index.first(0) if last is None else self.time_index.up_to_offset(last.offset),
            self.transaction_index.first(len(self.transaction_index)),
        )

    def _all(self) -> tuple[OffsetIndex, TimeIndex, TransactionIndex]:
        return self.offset_index, self.time_index, self.transaction_index

    def add_rows(self, rows: list[BatchRow], interval_bytes: int) -> None:
        """Index batches, in order, after all others so far."""
        self.seal = None
        last = self.time_index.last
        entered_ms = -1 if last is None else last.timestamp_ms
        progress = IndexProgress(self.bytes_since_entry, *self.max_timestamp, entered_ms, self.headers.crc)
        base_offset = self.offset_index.base_offset
        offset_entries, time_entries, progress = index_rows(rows, interval_bytes, base_offset, progress)
        if offset_entries:
            self.offset_index.extend(offset_entries)
        if time_entries:
            self.time_index.extend(time_entries)
        if progress.newest_ms != self.max_timestamp.timestamp_ms:
            self.max_timestamp = TimestampOffset(progress.newest_ms, progress.newest_offset)
        self.bytes_since_entry = progress.bytes_since_entry
        self.headers.follow(rows, progress.headers_crc)

    def resume_with(self, size_bytes: int, last_offset: int, max_timestamp_ms: int) -> None:
        """Count the batch of the last entry, or one after it, without a new entry."""
        self.bytes_since_entry += size_bytes
        if max_timestamp_ms > self.max_timestamp.timestamp_ms:
            self.max_timestamp = TimestampOffset(max_timestamp_ms, last_offset)

    def add_aborted(self, aborted: AbortedTransaction) -> None:
        """Enter a transaction whose abort marker is the last batch so far."""
        self.seal = None
        self.transaction_index.append(aborted)

    def is_full(self, max_index_bytes: int) -> bool:
        """Return whether another entry would exceed `max_index_bytes`. One slot of the time index is kept for
        the entry that closes it."""
        return (
            self.offset_index.size_bytes + OFFSET_ENTRY_SIZE > max_index_bytes
            or self.time_index.size_bytes + 2 * TIME_ENTRY_SIZE > max_index_bytes
        )

    def cut_files(self) -> None:
        """Remove from the files all bytes that are not of these indexes. Raises OSError."""
        self.seal = None
        for index in self._all():
            index.cut_file()

    def forget_pages(self) -> None:
        """Drop the pages from memory: no look-up follows."""
        for index in self._opened():
            index.forget_pages()

    def _opened(self) -> Iterator[OffsetIndex | TimeIndex | TransactionIndex]:
        yield self.offset_index
        yield self.time_index
        if self._transaction_index is not None:
            yield self._transaction_index

    def check(self, *, end_offset: int, log_size_bytes: int) -> None:
        """Look at every entry. Raises CorruptRecordError if an index is damaged or points beyond the log,
        OSError."""
        for index in self._all():
            index.check()
        self.check_last(end_offset=end_offset, log_size_bytes=log_size_bytes)

    def check_last(self, *, end_offset: int, log_size_bytes: int) -> None:
        """Look at the last entries of the open indexes. Raises CorruptRecordError if one points beyond the
        log."""
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
        aborted = None if self._transaction_index is None else self._transaction_index.last
        if aborted is not None and aborted.last_offset >= end_offset:
            raise CorruptRecordError(
                "a transaction index points beyond its log", offset=aborted.last_offset, end=end_offset
            )
