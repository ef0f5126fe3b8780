"""One segment of a log: a file of record batches and the indexes of it.

The last segment of a log is active: it takes appends, and its indexes grow with it, for the most part in
their files. Sealing it writes the rest, for good. Before a segment is sealed the index files, if there are
any, mean nothing, and after a crash they are made again from the data for everything that was not yet
fsynced.

What an index says is compared with the data. Where it is wrong, the indexes of a sealed segment are made
again; an active one, whose indexes are changing, is walked from its beginning until it is sealed.

Readers see the data up to `size_bytes` and `end_offset`, which move after the bytes are in the file: a read
beside an append sees whole batches only. A segment that is dropped is renamed at once and unlinked later, or,
where a full disk has no room for the names, unlinked at once; a reader that has the file open finishes, one
that comes later gets FileNotFoundError and looks at the log again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from errno import ENOENT
from typing import TypeVar

from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.base.filesystem import AppendFile, Buffer
from stratalog.record.header import HEADER_SIZE, MAX_OFFSET, NO_TIMESTAMP, parse_header
from stratalog.record.native.batch_row import BatchRow
from stratalog.segment.appended_batch import AppendedBatch
from stratalog.segment.batch_read import FIRST_READ_BYTES, BatchRead, ReadBounds, read_batches
from stratalog.segment.batch_walk import LocatedBatch, damaged_batch
from stratalog.segment.file_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SEAL_SUFFIX,
    segment_path,
)
from stratalog.segment.indexes.index_file import IndexSeal
from stratalog.segment.indexes.index_rebuild import indexes_until, rebuild_indexes, resume_closed
from stratalog.segment.indexes.offset_index import MAX_RELATIVE_OFFSET
from stratalog.segment.indexes.segment_indexes import SegmentIndexes
from stratalog.segment.indexes.transaction_index import AbortedInRange, AbortedTransaction
from stratalog.segment.open_files import LentFile
from stratalog.segment.proven_batches import ProvenBatches
from stratalog.segment.segment_extent import SegmentExtent
from stratalog.segment.segment_files import make_data_file, put_aside, put_indexes_aside, unlink_segment
from stratalog.segment.segment_resources import SegmentResources
from stratalog.segment.segment_seal import SegmentSeal
from stratalog.segment.segment_search import position_of, position_since, proven_position_of
from stratalog.segment.timestamp_offset import TimestampOffset

Result = TypeVar("Result")


class LogSegment:
    """Changes are guarded by UnifiedLog.lock; reads are thread-safe beside them."""

    __slots__ = (
        "_indexes",
        "_is_superseded",
        "_max_timestamp",
        "_resources",
        "base_offset",
        "created_ms",
        "directory",
        "end_offset",
        "first_timestamp_ms",
        "has_aborted",
        "index_interval_bytes",
        "is_active",
        "is_dropped",
        "path",
        "size_bytes",
        "written_seal",
    )

    def __init__(
        self,
        resources: SegmentResources,
        directory: str,
        extent: SegmentExtent,
        *,
        created_ms: int,
        index_interval_bytes: int,
        indexes: SegmentIndexes | None = None,
        seal: SegmentSeal | None = None,
    ) -> None:
        """`extent` is the data that the segment has. `indexes` are those of an active segment. `seal` is the
        one on disk, None if there is none."""
        base_offset = extent.base_offset
        self._resources = resources
        self.directory = directory
        self.base_offset = base_offset
        self.path = segment_path(directory, base_offset, LOG_SUFFIX)
        self.end_offset = extent.limit_offset
        self.size_bytes = extent.size_bytes
        self.created_ms = created_ms
        self.first_timestamp_ms = NO_TIMESTAMP
        self.index_interval_bytes = index_interval_bytes
        self.has_aborted = seal is not None and seal.has_aborted
        self.written_seal = seal
        self.is_active = indexes is not None
        # Of a sealed segment None until they are needed.
        self._indexes = indexes
        # Dropped, or another object has the files: a reader that is still here must not write to them.
        self._is_superseded = self.is_dropped = False
        self._max_timestamp: TimestampOffset | None = None
        if indexes is not None:
            self.has_aborted = len(indexes.transaction_index) > 0
            indexes.attach(resources.index_pages, directory)

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
            SegmentExtent(base_offset, base_offset, 0),
            created_ms=created_ms,
            index_interval_bytes=index_interval_bytes,
            indexes=SegmentIndexes.empty(base_offset),
        )
        make_data_file(resources, segment.path, reserved_bytes)
        return segment

    def fits(self, last_offset: int) -> bool:
        """The offset can be written as a distance from the base."""
        return last_offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def is_index_full(self, max_index_bytes: int) -> bool:
        return self._growing().is_full(max_index_bytes)

    def _growing(self) -> SegmentIndexes:
        assert self.is_active
        assert self._indexes is not None
        return self._indexes

    def append(self, parts: Sequence[Buffer], batches: Sequence[AppendedBatch]) -> None:
        """Write batches whose bytes are `parts`. Visible when this returns, durable after `sync`.

        Raises OSError with nothing of them left in the file, and DataDirectoryError where that could not be
        achieved: the segment must not be written to again.
        """
        indexes = self._growing()
        assert batches
        # Before the bytes are in the file: behind them no index could be made of it any more.
        assert self.fits(batches[-1].last_offset)
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
        indexes.add_rows(rows, self.index_interval_bytes)
        if self.size_bytes == 0:
            self.first_timestamp_ms = batches[0].max_timestamp_ms
        # Published last, size before offset: a reader that sees the new end also finds the bytes below it.
        self.size_bytes = position
        self.end_offset = batches[-1].last_offset + 1

    def add_aborted(self, aborted: AbortedTransaction) -> None:
        """The marker that was appended last aborted this transaction."""
        self._growing().add_aborted(aborted)
        self.has_aborted = True

    def collect_aborted(self, fetch_offset: int, upper_bound_offset: int) -> AbortedInRange:
        """See `TransactionIndex.collect`. Raises CorruptRecordError, OSError (FileNotFoundError where the
        index is gone, be it with the segment)."""
        if not self.has_aborted:
            return AbortedInRange((), is_complete=False)
        index = self.indexes().transaction_index
        found = index.collect(fetch_offset, upper_bound_offset)
        if self.is_dropped:
            # Another one may have its names.
            raise self._gone()
        return found

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
            self.trim(durable=True)
        except OSError as second_failure:
            raise DataDirectoryError(
                "a failed write could not be taken back; repair the disk and restart the server",
                path=self.path,
                reason=str(failure or second_failure),
            ) from second_failure

    def activate(self, indexes: SegmentIndexes, end_offset: int) -> None:
        """Let a segment that was loaded take appends. Raises CorruptRecordError, OSError."""
        self.written_seal = indexes.seal
        indexes.attach(self._resources.index_pages, self.directory)
        self._indexes = indexes
        self.is_active = True
        self.end_offset = end_offset
        self.has_aborted = len(indexes.transaction_index) > 0
        if self.size_bytes:
            with self.lend() as file:
                self.first_timestamp_ms = parse_header(file.read_at(0, HEADER_SIZE)).max_timestamp

    def resume(self) -> None:
        """Activate the last segment of a closed log with the indexes that are in its files.

        Raises CorruptRecordError where its files do not agree with each other, OSError (FileNotFoundError).
        """
        opened, seal = self._open_indexes(), self.written_seal
        assert seal is not None
        with self.lend() as file:
            indexes = resume_closed(opened, file, self._extent)
        self.activate(indexes, seal.end_offset)

    def truncate_to(self, size_bytes: int) -> None:
        """Shorten a segment that is being recovered. Not synced. Raises OSError."""
        assert not self.is_active
        if size_bytes < self.size_bytes:
            self.size_bytes = size_bytes
            self.trim()

    def trim(self, *, durable: bool = False) -> None:
        """Cut off what is in the file behind `size_bytes`: disk space that the data did not need, or batches
        that are not of the segment any more. Raises OSError."""
        with self._resources.files.use(self.path, for_writing=True) as file:
            file.truncate(self.size_bytes)
            if durable:
                file.sync()

    def seal(self) -> None:
        """Take no more appends. The indexes were saved."""
        indexes = self._growing()
        self._max_timestamp = indexes.max_timestamp
        self.is_active = False
        self._indexes = None
        indexes.forget_pages()

    def save_indexes(self) -> None:
        """Write the index files of the active segment, which stays active, and its seal, unless they are
        written. Not synced. Raises OSError."""
        indexes = self._growing()
        if indexes.seal is not None:
            return
        seal = indexes.save(self.size_bytes, self.end_offset)
        path = segment_path(self.directory, self.base_offset, SEAL_SUFFIX)
        with self._resources.files.use(path, for_writing=True) as file:
            file.truncate(0)
            file.append([seal.to_bytes()])
        self.written_seal = seal

    def sync(self, *, with_indexes: bool) -> None:
        """Data (and the index files, of a sealed segment) survive a power loss when this returns. Raises
        OSError."""
        files = self._resources.files  # The data is opened for reading, so that a shared file stays shared.
        with self.lend() as file:
            file.sync()
        for suffix in INDEX_SUFFIXES if with_indexes else ():
            path = segment_path(self.directory, self.base_offset, suffix)
            if self._resources.filesystem.exists(path):
                with files.use(path, for_writing=True) as file:
                    file.sync()
                files.forget(path)

    def lend(self) -> LentFile:
        """The data file, open for reading. Raises FileNotFoundError where the segment was dropped, also where
        another one has its name by now, OSError."""
        lent = self._resources.files.use(self.path)
        if self.is_dropped:
            with lent:
                raise self._gone()
        return lent

    def _gone(self) -> FileNotFoundError:
        return FileNotFoundError(ENOENT, "the segment was dropped", self.path)

    def supersede(self) -> None:
        """The files are about to be another segment's: nobody writes to them for this one from now on."""
        with self._resources.index_pages.rebuild_lock:
            self._is_superseded = True

    def let_go(self) -> None:
        """The files are elsewhere: nobody reads or writes them for this object from now on."""
        self._is_superseded = self.is_dropped = True
        self.close()

    def position_of(self, offset: int) -> int | None:
        """Where the first batch that ends at or above `offset` begins; None where the segment has none.

        Raises CorruptRecordError, OSError (FileNotFoundError where the segment was dropped).
        """
        return self._search(position_of, offset)

    def proven_position_of(self, offset: int) -> int | None:
        """The same; if the offset lies in a hole, the batch before it was proven not to reach there."""
        return self._search(proven_position_of, offset)

    def _search(
        self, search: Callable[[AppendFile, SegmentExtent, SegmentIndexes | None, int], Result], wanted: int
    ) -> Result:
        """What is found by the indexes; where these are wrong, by what becomes of them."""
        indexes = self._indexes or self.indexes()
        with self.lend() as file:
            try:
                return search(file, self._extent, indexes, wanted)
            except (CorruptRecordError, FileNotFoundError):
                made_again = None if self.is_active else self.rebuild_indexes(indexes)
                return search(file, self._extent, made_again, wanted)

    def read(self, position: int, max_bytes: int, bounds: ReadBounds, *, min_one: bool) -> BatchRead:
        """Whole batches from `position`, where one begins; see `read_batches`.

        At most `max_bytes`, except for a first batch that is larger, if `min_one`. Checksums are compared.
        Raises CorruptRecordError, OSError (FileNotFoundError where the segment was dropped).
        """
        available_bytes = self.size_bytes - position
        size_bytes = max(0, min(max_bytes, available_bytes))
        if FIRST_READ_BYTES < size_bytes < available_bytes:
            size_bytes = self._whole_size(position, size_bytes)
        first_max_bytes = available_bytes if min_one else max_bytes
        with self.lend() as file:
            return read_batches(file, position, size_bytes, available_bytes, first_max_bytes, bounds)

    def _whole_size(self, position: int, size_bytes: int) -> int:
        """See `OffsetIndex.whole_size`: a hint, so an index that is wrong is left to those who need it."""
        try:
            indexes = self._indexes or self.indexes()
            return indexes.offset_index.whole_size(position, size_bytes)
        except (CorruptRecordError, FileNotFoundError):
            return size_bytes

    def read_bytes(self, position: int, size: int) -> bytes:
        """At most `size` bytes of the file, as they are. Raises OSError."""
        with self.lend() as file:
            return file.read_at(position, max(0, min(size, self.size_bytes - position)))

    def batches(self, position: int = 0) -> Iterator[LocatedBatch]:
        """The batches from that one on that begins at `position`. The file stays lent until the iterator
        ends."""
        with self.lend() as file:
            yield from self._extent.walk(file, position)

    @property
    def _extent(self) -> SegmentExtent:
        # Where a segment ends that grows, or was not loaded yet, nobody knows.
        is_settled = not self.is_active and self.end_offset > self.base_offset
        limit_offset = self.end_offset if is_settled else MAX_OFFSET
        return SegmentExtent(self.base_offset, limit_offset, self.size_bytes)

    def rows_since(self, timestamp_ms: int) -> Iterator[BatchRow]:
        """The batches from some point on, before which no record is as new as `timestamp_ms`. Checksums are
        compared: raises CorruptRecordError at the first batch that is damaged, OSError."""
        position = self._search(position_since, timestamp_ms)
        with self.lend() as file:
            for rows in self._extent.rows(file, position, is_search=True):
                yield from rows

    def max_timestamp(self) -> TimestampOffset:
        """The highest timestamp with the last offset of the first batch that has it: as the index file and
        the headers agree, or else as checksums prove. Raises CorruptRecordError, OSError."""
        if self.is_active:
            return self.indexes().max_timestamp
        if self._max_timestamp is None:
            indexes = self.indexes()
            if not self._is_max_timestamp(indexes.max_timestamp):
                indexes = self.rebuild_indexes(indexes)
                if indexes.damaged_position is not None:
                    raise damaged_batch(self.path, indexes.damaged_position)
            self._max_timestamp = indexes.max_timestamp
        return self._max_timestamp

    def _is_max_timestamp(self, claimed: TimestampOffset) -> bool:
        """The batch is there, and none behind it is newer; the index vouches for those before it."""
        try:
            since = self.batches(self._search(position_since, claimed.timestamp_ms + 1))
            newest = max((located.header.max_timestamp for located in since), default=NO_TIMESTAMP)
        except CorruptRecordError:
            return False
        return newest == claimed.timestamp_ms

    def prove_max_timestamp(self) -> None:
        """Compare the checksums of the batch that has it and of all behind: who deletes by it needs more than
        two files that agree. Raises CorruptRecordError, OSError."""
        deque(self.rows_since(self.max_timestamp().timestamp_ms + 1), maxlen=0)

    def indexes(self) -> SegmentIndexes:
        """Those of the active segment, which grow; of a sealed one those of its files. Raises
        CorruptRecordError, OSError."""
        indexes = self._indexes
        if indexes is not None:
            return indexes
        try:
            indexes = self._open_indexes()
        except (FileNotFoundError, CorruptRecordError):
            return self.rebuild_indexes(None)
        self._indexes = indexes
        return indexes

    def _open_indexes(self) -> SegmentIndexes:
        if self.written_seal is None:
            raise CorruptRecordError("a segment has no seal, so its indexes prove nothing", path=self.path)
        return SegmentIndexes.open(
            self._resources.index_pages, self.directory, self.base_offset, self.written_seal
        )

    def rebuild_indexes(self, damaged: SegmentIndexes | None) -> SegmentIndexes:
        """Make the indexes of a sealed segment again, unless somebody has done so since they were found to be
        `damaged`, or missing. Raises CorruptRecordError, OSError."""
        assert not self.is_active
        with self._resources.index_pages.rebuild_lock:
            indexes = self._indexes
            if indexes is None or (indexes is damaged and indexes.damaged_position is None):
                self._indexes = indexes = rebuild_indexes(
                    self._resources,
                    self.directory,
                    self._extent,
                    interval_bytes=self.index_interval_bytes,
                    aborted=IndexSeal() if self.written_seal is None else self.written_seal.transaction_index,
                    replaces_files=not self._is_superseded,
                    # What there is may lead to batches behind the damage; without any, those before it count.
                    may_end=indexes is None,
                )
                self.written_seal = indexes.seal or self.written_seal
            return indexes

    def before(self, offset: int) -> LogSegment:
        """The segment as it will be, active, once the batches that end at or above `offset` are gone.

        The file is not touched yet: `trim` follows. Raises CorruptRecordError, OSError.
        """
        position = self.position_of(offset)
        size_bytes = self.size_bytes if position is None else position
        with self.lend() as file:
            extent = self._extent._replace(size_bytes=size_bytes)
            indexes, end_offset = indexes_until(self.indexes(), file, extent, self.index_interval_bytes)
        self._is_superseded = True
        kept = LogSegment(
            self._resources,
            self.directory,
            SegmentExtent(self.base_offset, end_offset, size_bytes),
            created_ms=self.created_ms,
            index_interval_bytes=self.index_interval_bytes,
        )
        kept.activate(indexes, end_offset)
        return kept

    def cut_indexes(self) -> None:
        """Remove from the index files what `trim` has removed from the data. Raises OSError."""
        self._growing().cut_files()

    def close(self) -> None:
        """Let go of the files and of what was read of them."""
        if self._indexes is not None:
            self._indexes.forget_pages()
        self._resources.forget(self.directory, self.base_offset)

    def mark_deleted(self) -> None:
        """Rename the files, data first: whoever loads the directory finds no log then; see `put_aside`. Not
        synced. Raises OSError: index files are left if `is_dropped`; else nothing has changed."""
        self._is_superseded = True
        put_aside(self._resources.filesystem, self.path)
        # Before another segment can have the name: what is found there is not this one's any more.
        self.is_dropped = True
        try:
            put_indexes_aside(self._resources.filesystem, self.directory, self.base_offset)
        finally:
            self.close()

    def unlink_deleted(self) -> None:
        """Unlink what `mark_deleted` renamed; missing files are fine. Raises OSError."""
        unlink_segment(self._resources.filesystem, self.directory, self.base_offset, DELETED_SUFFIX)

    def check(self) -> None:
        """Walk the segment and prove sizes, order and indexes. Raises CorruptRecordError, OSError."""
        assert self.base_offset <= self.end_offset
        with self.lend() as file:
            assert file.size() >= self.size_bytes
        with self.lend() as file:
            proven = ProvenBatches.of(self._extent.rows(file), self.base_offset)
        assert proven.size_bytes == self.size_bytes
        assert proven.end_offset <= self.end_offset
        assert self.fits(proven.end_offset - 1)
        # The file of an index may be damaged; whoever meets that makes it again, and so does this.
        make_again = None if self.is_active else self.rebuild_indexes
        proven.check_indexes(self.indexes(), self.end_offset, make_again)
        assert self.max_timestamp() == proven.max_timestamp
