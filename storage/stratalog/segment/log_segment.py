"""One segment of a log: a file of record batches and the indexes of it.

The last segment of a log is active: it takes appends and keeps its indexes in memory, complete at any moment.
Sealing it writes the indexes beside the data, for good. Before a segment is sealed the index files, if there
are any, mean nothing, and after a crash they are made again from the data for everything that was not yet
fsynced.

Readers see the data up to `size_bytes` and `end_offset`, which move after the bytes are in the file: a read
beside an append sees whole batches only. A segment that is dropped is renamed at once and unlinked later; a
reader that has the file open finishes, one that comes later gets FileNotFoundError and looks at the log
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from errno import ENOENT

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.base.filesystem import AppendFile, Buffer
from stratalog.record.batch_row import BatchRow
from stratalog.record.header import HEADER_SIZE, MAX_OFFSET, NO_TIMESTAMP, parse_header
from stratalog.segment.appended_batch import AppendedBatch
from stratalog.segment.batch_read import FIRST_READ_BYTES, BatchRead, ReadBounds, read_batches
from stratalog.segment.batch_walk import LocatedBatch, seek, walk
from stratalog.segment.file_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    segment_path,
)
from stratalog.segment.offset_index import MAX_RELATIVE_OFFSET
from stratalog.segment.segment_indexes import SegmentIndexes
from stratalog.segment.segment_resources import SegmentResources
from stratalog.segment.timestamp_offset import NO_TIMESTAMP_OFFSET, TimestampOffset
from stratalog.segment.transaction_index import AbortedInRange, AbortedTransaction, TransactionIndex


class LogSegment:
    """Changes are guarded by UnifiedLog.lock; reads are thread-safe beside them."""

    __slots__ = (
        "_indexes",
        "_max_timestamp",
        "_resources",
        "base_offset",
        "created_ms",
        "directory",
        "end_offset",
        "first_timestamp_ms",
        "has_aborted",
        "index_interval_bytes",
        "path",
        "size_bytes",
    )

    def __init__(
        self,
        resources: SegmentResources,
        directory: str,
        base_offset: int,
        *,
        end_offset: int,
        size_bytes: int,
        created_ms: int,
        index_interval_bytes: int,
        indexes: SegmentIndexes | None,
        has_aborted: bool = False,
    ) -> None:
        """`indexes`: of the active segment; None for one that is sealed. `has_aborted`: it has a transaction
        index."""
        self._resources = resources
        self.directory = directory
        self.base_offset = base_offset
        self.path = segment_path(directory, base_offset, LOG_SUFFIX)
        self.end_offset = end_offset
        self.size_bytes = size_bytes
        self.created_ms = created_ms
        self.first_timestamp_ms = NO_TIMESTAMP
        self.index_interval_bytes = index_interval_bytes
        self.has_aborted = has_aborted
        self._indexes = indexes
        self._max_timestamp: TimestampOffset | None = None

    @staticmethod
    def create(
        resources: SegmentResources,
        directory: str,
        base_offset: int,
        *,
        created_ms: int,
        index_interval_bytes: int,
        reserved_bytes: int = 0,
    ) -> LogSegment:
        """A new active segment: an empty file with disk space for so many bytes. The name is not synced.

        Raises OSError without a trace of it, and DataDirectoryError where that could not be achieved: the log
        must not grow over the offset at which another process would find the segment.
        """
        segment = LogSegment(
            resources,
            directory,
            base_offset,
            end_offset=base_offset,
            size_bytes=0,
            created_ms=created_ms,
            index_interval_bytes=index_interval_bytes,
            indexes=SegmentIndexes.empty(base_offset),
        )
        try:
            with resources.files.use(segment.path, for_writing=True) as file:
                # A file of this name may be left from an attempt that failed half-way.
                file.truncate(0)
                resources.preallocation.reserve(file, reserved_bytes)
        except OSError as failure:
            segment._take_back(failure)
            raise
        return segment

    def _take_back(self, failure: OSError) -> None:
        """Remove the file of a segment that could not be created."""
        self._resources.files.forget(self.path)
        try:
            self._resources.filesystem.unlink(self.path)
        except FileNotFoundError:
            pass
        except OSError as second_failure:
            raise DataDirectoryError(
                "a new segment could not be taken back; repair the disk and restart the server",
                path=self.path,
                reason=str(failure),
            ) from second_failure

    @property
    def is_active(self) -> bool:
        return self._indexes is not None

    def fits(self, last_offset: int) -> bool:
        """The offset can be written as a distance from the base."""
        return last_offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def is_index_full(self, max_index_bytes: int) -> bool:
        assert self._indexes is not None
        return self._indexes.is_full(max_index_bytes)

    def append(self, parts: Sequence[Buffer], batches: Sequence[AppendedBatch]) -> None:
        """Write batches whose bytes are `parts`. Visible when this returns, durable after `sync`.

        Raises OSError with nothing of them left in the file, and DataDirectoryError where that could not be
        achieved: the segment must not be written to again.
        """
        assert self._indexes is not None
        assert batches
        with self._resources.files.use(self.path, for_writing=True) as file:
            size_before = file.size()
            if size_before != self.size_bytes:
                self._repair_size(size_before)
            try:
                file.append(parts)
            except OSError as failure:
                self._cut_back(failure)
                raise
        position, rows = self.size_bytes, list[BatchRow]()
        for batch in batches:
            rows.append(BatchRow(position, *batch, is_noted=False))
            position += batch.size_bytes
        self._indexes.add_rows(rows, self.index_interval_bytes)
        if self.size_bytes == 0:
            self.first_timestamp_ms = batches[0].max_timestamp_ms
        # Published last, size before offset: a reader that sees the new end also finds the bytes below it.
        self.size_bytes = position
        self.end_offset = batches[-1].last_offset + 1

    def add_aborted(self, aborted: AbortedTransaction) -> None:
        """The marker that was appended last aborted this transaction."""
        assert self._indexes is not None
        self._indexes.add_aborted(aborted)
        self.has_aborted = True

    def collect_aborted(self, fetch_offset: int, upper_bound_offset: int) -> AbortedInRange:
        """See `TransactionIndex.collect`. Raises CorruptRecordError, OSError."""
        if not self.has_aborted:
            return AbortedInRange((), is_complete=False)
        index = self.indexes().transaction_index
        if not len(index):
            # The segment is being dropped: its other files were still there. Nobody may take it for having
            # none.
            raise FileNotFoundError(ENOENT, "the transaction index is gone", self.path)
        return index.collect(fetch_offset, upper_bound_offset)

    def _repair_size(self, found_bytes: int) -> None:
        """The file is not as long as this object knows. More: a write that was interrupted; cut it off. Less:
        damage."""
        if found_bytes < self.size_bytes:
            raise DataDirectoryError(
                "a log file has become shorter; find out what changed it and restart the server",
                path=self.path,
                size_bytes=found_bytes,
                expected_bytes=self.size_bytes,
            )
        self._cut_back(None)

    def _cut_back(self, failure: OSError | None) -> None:
        """Remove what lies behind `size_bytes`, for good: a crash must not bring back what was refused."""
        try:
            self.drop_tail()
        except OSError as second_failure:
            raise DataDirectoryError(
                "a failed write could not be taken back; repair the disk and restart the server",
                path=self.path,
                reason=str(failure or second_failure),
            ) from second_failure

    def activate(self, indexes: SegmentIndexes, end_offset: int) -> None:
        """Let a segment that was loaded take appends. Raises CorruptRecordError, OSError."""
        self._indexes = indexes
        self.end_offset = end_offset
        self.has_aborted = len(indexes.transaction_index) > 0
        if self.size_bytes:
            with self._resources.files.use(self.path) as file:
                self.first_timestamp_ms = parse_header(file.read_at(0, HEADER_SIZE)).max_timestamp

    def cut(self, size_bytes: int) -> None:
        """Shorten a segment that is being recovered. Not synced. Raises OSError."""
        assert self._indexes is None
        if size_bytes < self.size_bytes:
            self.size_bytes = size_bytes
            self.trim()

    def trim(self) -> None:
        """Give back the disk space that the data did not need. Raises OSError."""
        with self._resources.files.use(self.path, for_writing=True) as file:
            file.truncate(self.size_bytes)

    def seal(self) -> None:
        """Take no more appends. The indexes were saved."""
        assert self._indexes is not None
        self._max_timestamp = self._indexes.max_timestamp
        self._resources.index_cache.put(self.path, self._indexes)
        self._indexes = None

    def save_indexes(self) -> None:
        """Write the index files of the active segment, which stays active. Not synced. Raises OSError."""
        assert self._indexes is not None
        self._indexes.save(self._resources.filesystem, self.directory)

    def sync(self, *, with_indexes: bool) -> None:
        """Data (and the index files, of a sealed segment) survive a power loss when this returns. Raises
        OSError."""
        files = self._resources.files  # The data is opened for reading, so that a shared file stays shared.
        with files.use(self.path) as file:
            file.sync()
        for suffix in INDEX_SUFFIXES if with_indexes else ():
            path = segment_path(self.directory, self.base_offset, suffix)
            if self._resources.filesystem.exists(path):
                with files.use(path, for_writing=True) as file:
                    file.sync()
                files.forget(path)

    def position_of(self, offset: int) -> int | None:
        """Where the first batch that ends at or above `offset` begins; None where the segment has none.

        Raises CorruptRecordError, OSError (FileNotFoundError where the segment was dropped).
        """
        try:
            return self._position_of(offset, self.indexes())
        except CorruptRecordError:
            if self._indexes is not None:
                raise
            return self._position_of(offset, self.rebuild_indexes())

    def _position_of(self, offset: int, indexes: SegmentIndexes) -> int | None:
        entry = indexes.offset_index.floor(offset)
        with self._resources.files.use(self.path) as file:
            return seek(
                file,
                entry.position if entry else 0,
                self.size_bytes,
                offset,
                indexed_offset=entry.offset if entry else None,
                first_offset=self.base_offset,
                limit_offset=self._limit_offset,
            )

    def read(self, position: int, max_bytes: int, bounds: ReadBounds, *, min_one: bool) -> BatchRead:
        """Whole batches from `position`, where one begins; see `read_batches`.

        At most `max_bytes`, except for a first batch that is larger, if `min_one`. Checksums are compared.
        Raises CorruptRecordError, OSError (FileNotFoundError where the segment was dropped).
        """
        available_bytes = self.size_bytes - position
        size_bytes = max(0, min(max_bytes, available_bytes))
        if FIRST_READ_BYTES < size_bytes < available_bytes:
            size_bytes = self.indexes().offset_index.whole_size(position, size_bytes)
        first_max_bytes = available_bytes if min_one else max_bytes
        with self._resources.files.use(self.path) as file:
            return read_batches(file, position, size_bytes, available_bytes, first_max_bytes, bounds)

    def read_bytes(self, position: int, size: int) -> bytes:
        """At most `size` bytes of the file, as they are. Raises OSError."""
        with self._resources.files.use(self.path) as file:
            return file.read_at(position, max(0, min(size, self.size_bytes - position)))

    def batches(self, position: int = 0) -> Iterator[LocatedBatch]:
        """The batches from that one on that begins at `position`. The file stays lent until the iterator
        ends."""
        with self._resources.files.use(self.path) as file:
            yield from self._walk(file, position, self.size_bytes)

    def _walk(self, file: AppendFile, position: int, end_position: int) -> Iterator[LocatedBatch]:
        return walk(file, position, end_position, self.base_offset, self._limit_offset)

    @property
    def _limit_offset(self) -> int:
        """Where a segment ends that grows, or was not loaded yet, nobody knows."""
        is_settled = self._indexes is None and self.end_offset > self.base_offset
        return self.end_offset if is_settled else MAX_OFFSET

    def batches_since(self, timestamp_ms: int) -> Iterator[LocatedBatch]:
        """The batches from some point on, before which no record is as new as `timestamp_ms`."""
        try:
            position = self._position_since(timestamp_ms, self.indexes())
        except CorruptRecordError:
            if self._indexes is not None:
                raise
            position = self._position_since(timestamp_ms, self.rebuild_indexes())
        return self.batches(position)

    def _position_since(self, timestamp_ms: int, indexes: SegmentIndexes) -> int:
        entry = indexes.time_index.before(timestamp_ms)
        if entry is None:
            return 0
        position = self._position_of(entry.offset, indexes)
        if position is None:
            raise CorruptRecordError("a time index points beyond its log", path=self.path, entry=entry)
        with self._resources.files.use(self.path) as file:
            header = parse_header(file.read_at(position, HEADER_SIZE))
        if (header.max_timestamp, header.last_offset) != entry:
            raise CorruptRecordError("a time index points at another batch", path=self.path, entry=entry)
        return position

    def max_timestamp(self) -> TimestampOffset:
        """The highest timestamp with the last offset of the first batch that has it.

        Retention deletes by it, so what an index file says is compared with the data once. Raises
        CorruptRecordError, OSError.
        """
        if self._indexes is not None:
            return self._indexes.max_timestamp
        if self._max_timestamp is None:
            claimed = self.indexes().max_timestamp
            self._max_timestamp = (
                claimed if self._is_max_timestamp(claimed) else self.rebuild_indexes().max_timestamp
            )
        return self._max_timestamp

    def _is_max_timestamp(self, claimed: TimestampOffset) -> bool:
        """The batch is there, and none behind it is newer; the index vouches for those before it."""
        try:
            since = self.batches_since(claimed.timestamp_ms + 1)
            newest = max((located.header.max_timestamp for located in since), default=NO_TIMESTAMP)
        except CorruptRecordError:
            return False
        return newest == claimed.timestamp_ms

    def indexes(self) -> SegmentIndexes:
        """Of the active segment those in memory, of a sealed one those of its files. Raises
        CorruptRecordError, OSError."""
        indexes = self._indexes or self._resources.index_cache.get(self.path)
        if indexes is not None:
            return indexes
        try:
            indexes = SegmentIndexes.load(self._resources.filesystem, self.directory, self.base_offset)
            indexes.check(end_offset=self.end_offset, log_size_bytes=self.size_bytes)
        except (FileNotFoundError, CorruptRecordError):
            return self.rebuild_indexes()
        self._resources.index_cache.put(self.path, indexes)
        return indexes

    def rebuild_indexes(self) -> SegmentIndexes:
        """Make the indexes of a sealed segment from its data, and replace the files. That of aborted
        transactions cannot be made so, and stays.

        Raises CorruptRecordError, OSError.
        """
        indexes, _ = self._index_until(self.size_bytes)
        indexes.transaction_index = TransactionIndex.load(
            self._resources.filesystem, self.directory, self.base_offset
        )
        indexes.time_index.maybe_append(indexes.max_timestamp)
        self._resources.index_cache.put(self.path, indexes)
        self._max_timestamp = indexes.max_timestamp
        try:
            for suffix, data in (
                (OFFSET_INDEX_SUFFIX, indexes.offset_index.to_bytes()),
                (TIME_INDEX_SUFFIX, indexes.time_index.to_bytes()),
            ):
                replace_file(
                    self._resources.filesystem, segment_path(self.directory, self.base_offset, suffix), data
                )
        except OSError:
            # The disk may be full or read-only. The copy in memory serves; the next process tries again.
            pass
        return indexes

    def _index_until(self, end_position: int) -> tuple[SegmentIndexes, int]:
        """Indexes of the batches before `end_position`, without transactions, and the offset behind them."""
        indexes, end_offset = SegmentIndexes.empty(self.base_offset), self.base_offset
        with self._resources.files.use(self.path) as file:
            for position, header in self._walk(file, 0, end_position):
                indexes.add(
                    position=position,
                    size_bytes=header.size_in_bytes,
                    last_offset=header.last_offset,
                    max_timestamp_ms=header.max_timestamp,
                    interval_bytes=self.index_interval_bytes,
                )
                end_offset = header.next_offset
        return indexes, end_offset

    def before(self, offset: int) -> LogSegment:
        """The segment as it will be, active, once the batches that end at or above `offset` are gone.

        The file is not touched yet: `drop_tail` follows. Raises CorruptRecordError, OSError.
        """
        position = self.position_of(offset)
        size_bytes = self.size_bytes if position is None else position
        indexes, end_offset = self._index_until(size_bytes)
        for aborted in self.indexes().transaction_index if self.has_aborted else ():
            if aborted.last_offset < end_offset:
                indexes.add_aborted(aborted)
        kept = LogSegment(
            self._resources,
            self.directory,
            self.base_offset,
            end_offset=end_offset,
            size_bytes=size_bytes,
            created_ms=self.created_ms,
            index_interval_bytes=self.index_interval_bytes,
            indexes=None,
        )
        kept.activate(indexes, end_offset)
        return kept

    def drop_tail(self) -> None:
        """Cut the file behind `size_bytes`; durable when it returns. Raises OSError."""
        self._resources.index_cache.remove(self.path)
        with self._resources.files.use(self.path, for_writing=True) as file:
            file.truncate(self.size_bytes)
            file.sync()

    def mark_deleted(self) -> None:
        """Rename the files, data first: whoever loads the directory finds no log then. Not synced. Raises
        OSError."""
        self._resources.index_cache.remove(self.path)
        for suffix in SEGMENT_SUFFIXES:
            path = segment_path(self.directory, self.base_offset, suffix)
            if self._resources.filesystem.exists(path):
                self._resources.filesystem.rename(path, path + DELETED_SUFFIX)
            self._resources.files.forget(path)

    def unlink_deleted(self) -> None:
        """Unlink what `mark_deleted` renamed; missing files are fine. Raises OSError."""
        for suffix in SEGMENT_SUFFIXES:
            path = segment_path(self.directory, self.base_offset, suffix) + DELETED_SUFFIX
            with suppress(FileNotFoundError):
                self._resources.filesystem.unlink(path)

    def check(self) -> None:
        """Walk the segment and prove sizes, order and indexes. Raises CorruptRecordError, OSError."""
        assert self.base_offset <= self.end_offset
        with self._resources.files.use(self.path) as file:
            assert file.size() >= self.size_bytes
        size_bytes, next_offset = 0, self.base_offset
        max_timestamp = NO_TIMESTAMP_OFFSET
        positions: dict[int, int] = {}
        for located in self.batches():
            header = located.header
            assert header.base_offset >= next_offset, "offsets ascend"
            size_bytes, next_offset = located.position + header.size_in_bytes, header.next_offset
            positions[located.position] = header.last_offset
            if header.max_timestamp > max_timestamp.timestamp_ms:
                max_timestamp = TimestampOffset(header.max_timestamp, header.last_offset)
        assert size_bytes == self.size_bytes
        assert next_offset <= self.end_offset
        indexes = self.indexes()
        if not self.is_active and any(
            positions.get(entry.position) != entry.offset for entry in indexes.offset_index
        ):
            # The file of an index may be damaged; whoever meets that makes it again, and so does this.
            indexes = self.rebuild_indexes()
        indexes.check(end_offset=self.end_offset, log_size_bytes=self.size_bytes)
        assert all(positions.get(entry.position) == entry.offset for entry in indexes.offset_index)
        assert self.max_timestamp() == max_timestamp
