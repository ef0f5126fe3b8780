"""One segment of a log: a file of record batches and its indexes.

The last segment of a log is active. It takes appends, and its indexes grow with it, for the most part in
their files. Sealing the segment writes the rest of the indexes for good. The index files of a segment without
a seal mean nothing, and after a crash recovery makes them again from the data for everything that was not yet
fsynced.

Every look-up compares the index entry with the data. If a sealed segment's index is wrong, its indexes are
made again. The indexes of an active segment are changing; if one is wrong, searches walk the segment from its
beginning until it is sealed.

Readers see the data up to `size_bytes` and `end_offset`, which move after the bytes are in the file: a read
beside an append sees whole batches only. A dropped segment is renamed at once and unlinked later; on a full
disk without room for the new names it is unlinked at once. A reader that has the file open finishes. A later
reader gets FileNotFoundError and looks at the log again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from errno import ENOENT
from typing import TypeVar

from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.base.filesystem import AppendFile, Buffer
from stratalog.record.header import HEADER_SIZE, MAX_OFFSET, NO_TIMESTAMP, parse_header
from stratalog.record.native.batch_row import AppendedBatch, BatchRow
from stratalog.segment.batch_read import (
    FIRST_READ_BYTES,
    BatchRead,
    CachedFile,
    ReadBounds,
    read_batches,
)
from stratalog.segment.batch_walk import LocatedBatch, damaged_batch, summed_headers
from stratalog.segment.file_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SEAL_SUFFIX,
    segment_path,
)
from stratalog.segment.indexes.index_rebuild import indexes_until, rebuild_indexes, resume_closed
from stratalog.segment.indexes.offset_index import MAX_RELATIVE_OFFSET
from stratalog.segment.indexes.segment_indexes import SegmentIndexes
from stratalog.segment.indexes.transaction_index import AbortedInRange, AbortedTransaction
from stratalog.segment.open_files import LentFile
from stratalog.segment.proven_batches import ProvenBatches
from stratalog.segment.segment_extent import SegmentExtent
from stratalog.segment.segment_files import make_data_file, put_aside, put_indexes_aside, unlink_segment
from stratalog.segment.segment_resources import SegmentResources
from stratalog.segment.segment_seal import SegmentSeal, contradicts_seal
from stratalog.segment.segment_search import position_of, position_since, proven_position_of
from stratalog.segment.timestamp_offset import TimestampOffset

Result = TypeVar("Result")


class LogSegment:
    """A segment's data file, indexes and seal. Changes are guarded by UnifiedLog.lock; reads are thread-safe
    beside them."""

    __slots__ = (
        "_indexes",
        "_is_superseded",
        "_max_timestamp",
        "_resources",
        "base_offset",
        "created_ms",
        "directory",
        "end_offset",
        "first_append_ms",
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
        """`extent` bounds the data that the segment has. `indexes` are given for an active segment only.
        `seal` is the one on disk, None if there is none."""
        base_offset = extent.base_offset
        self._resources = resources
        self.directory = directory
        self.base_offset = base_offset
        self.path = segment_path(directory, base_offset, LOG_SUFFIX)
        self.end_offset = extent.limit_offset
        self.size_bytes = extent.size_bytes
        self.created_ms = created_ms
        self.first_append_ms = created_ms
        """Wall time since which the oldest records have been here; of the creation while it is empty. After a
        restart it is the last change of an active segment, and the start for a sealed one."""
        self.first_timestamp_ms = NO_TIMESTAMP
        self.index_interval_bytes = index_interval_bytes
        self.has_aborted = seal is not None and seal.has_aborted
        self.written_seal = seal
        self.is_active = indexes is not None
        # None for a sealed segment until a look-up needs them.
        self._indexes = indexes
        # The segment is dropped, or another object has its files: late readers must not write to them.
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
        """Create an active segment: an empty file with `reserved_bytes` of disk space. The name is not
        synced.

        Raises OSError with the file removed again, and DataDirectoryError if it could not be removed. The log
        must then not grow over this offset, because another process would find the segment there.
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
        """Return whether an index entry can hold the offset as a distance from the base."""
        return last_offset - self.base_offset <= MAX_RELATIVE_OFFSET

    @property
    def sealed_headers_crc(self) -> int | None:
        """The sum over the headers in the seal; None if the seal is of other batches or missing."""
        seal = self.written_seal
        return None if seal is None or seal.log_size_bytes != self.size_bytes else seal.headers_crc

    def is_index_full(self, max_index_bytes: int) -> bool:
        return self._growing().is_full(max_index_bytes)

    def _growing(self) -> SegmentIndexes:
        assert self.is_active
        assert self._indexes is not None
        return self._indexes

    def append(self, parts: Sequence[Buffer], batches: Sequence[AppendedBatch]) -> None:
        """Write batches, whose bytes are `parts`. Readers see them when this returns; they are durable after
        `sync`.

        Raises OSError with no byte of them left in the file, and DataDirectoryError if the bytes could not be
        removed: the segment must not be written to again.
        """
        indexes = self._growing()
        assert batches
        # Checked before the write: no index could be made of a file that holds such a batch.
        last_offset = batches[-1].last_offset
        assert self.fits(last_offset)
        with self._resources.files.use(self.path, for_writing=True) as file:
            size_before = file.size()
            if size_before != self.size_bytes:
                self._repair_size(size_before)
            try:
                file.append(parts)
            except OSError as failure:
                self._cut_back(failure)
                raise
        position = self.size_bytes
        rows: list[BatchRow] = []
        for batch in batches:
            # By position, because this is done for each small append.
            rows.append(BatchRow(position, *batch, False))
            position += batch[0]
        indexes.add_rows(rows, self.index_interval_bytes)
        if self.size_bytes == 0:
            self.first_timestamp_ms = batches[0].max_timestamp_ms
        # Published last, size before offset: a reader that sees the new end also finds the bytes below it.
        self.size_bytes = position
        self.end_offset = last_offset + 1

    def add_aborted(self, aborted: AbortedTransaction) -> None:
        """Enter the transaction that the last appended marker aborted."""
        self._growing().add_aborted(aborted)
        self.has_aborted = True

    def collect_aborted(self, fetch_offset: int, upper_bound_offset: int) -> AbortedInRange:
        """The aborted transactions of a range: see `TransactionIndex.collect`. Raises CorruptRecordError,
        OSError (FileNotFoundError if the index is missing, alone or with the segment)."""
        if not self.has_aborted:
            return AbortedInRange((), is_complete=False)
        index = self.indexes().transaction_index
        found = index.collect(fetch_offset, upper_bound_offset)
        if self.is_dropped:
            # Another segment may have its names by now.
            raise self._gone()
        return found

    def _repair_size(self, found_bytes: int) -> None:
        """Handle a file whose size differs from `size_bytes`. A longer one ends in an interrupted write,
        which is cut off. A shorter one is damaged: raises DataDirectoryError."""
        if found_bytes < self.size_bytes:
            raise DataDirectoryError(
                "a log file has become shorter; find out what changed it and restart the server",
                path=self.path,
                size_bytes=found_bytes,
                expected_bytes=self.size_bytes,
            )
        self._cut_back(None)

    def _cut_back(self, failure: OSError | None) -> None:
        """Durably remove the bytes after `size_bytes`: a crash must not bring back a refused append."""
        try:
            self.trim(durable=True)
        except OSError as second_failure:
            raise DataDirectoryError(
                "the bytes of a failed write cannot be removed; repair the disk and restart the server",
                path=self.path,
                reason=str(failure or second_failure),
            ) from second_failure

    def activate(self, indexes: SegmentIndexes, end_offset: int) -> None:
        """Let a loaded segment take appends. Raises CorruptRecordError, OSError."""
        self.written_seal = indexes.seal
        indexes.attach(self._resources.index_pages, self.directory)
        self._indexes = indexes
        self.is_active = True
        self.end_offset = end_offset
        self.has_aborted = len(indexes.transaction_index) > 0
        if self.size_bytes:
            with self.lend() as file:
                self.first_timestamp_ms = parse_header(file.read_at(0, HEADER_SIZE)).max_timestamp
            modified_ms = self._resources.filesystem.modified_ms(self.path)
            self.first_append_ms = min(self.first_append_ms, modified_ms)

    def resume(self) -> None:
        """Activate the last segment of a closed log with the indexes in its files.

        Raises CorruptRecordError if its files contradict each other, OSError (FileNotFoundError).
        """
        opened, seal = self._open_indexes(), self.written_seal
        assert seal is not None
        with self.lend() as file:
            indexes = resume_closed(opened, file, self._extent)
        self.activate(indexes, seal.end_offset)

    def truncate_to(self, size_bytes: int) -> None:
        """Shorten a segment during recovery. Not synced. Raises OSError."""
        assert not self.is_active
        if size_bytes < self.size_bytes:
            self.size_bytes = size_bytes
            self.trim()

    def discard_old_seal(self) -> None:
        """Remove a seal of another size: the segment could grow to that size with other batches. Not synced.
        Raises OSError."""
        if self.written_seal is not None and self.written_seal.log_size_bytes != self.size_bytes:
            self._remove_seal()

    def _remove_seal(self) -> None:
        path = segment_path(self.directory, self.base_offset, SEAL_SUFFIX)
        self.written_seal = None
        self._resources.files.forget(path)
        if self._resources.filesystem.exists(path):
            self._resources.filesystem.unlink(path)

    def trim(self, *, durable: bool = False) -> None:
        """Cut the file to `size_bytes`: removes unused reserved space, or batches that no longer belong to
        the segment. Raises OSError."""
        with self._resources.files.use(self.path, for_writing=True) as file:
            file.truncate(self.size_bytes)
            if durable:
                file.sync()

    def seal(self) -> None:
        """Take no more appends. The caller has saved the indexes."""
        indexes = self._growing()
        self._max_timestamp = indexes.max_timestamp
        self.is_active = False
        self._indexes = None
        indexes.forget_pages()

    def save_indexes(self) -> None:
        """Write the index files and the seal of the active segment, unless they are up to date. The segment
        stays active. Not synced. Raises OSError."""
        indexes = self._growing()
        # A save that failed behind the indexes has no seal in the file.
        if indexes.seal is not None and indexes.seal is self.written_seal:
            return
        seal = indexes.save(self.size_bytes, self.end_offset)
        path = segment_path(self.directory, self.base_offset, SEAL_SUFFIX)
        with self._resources.files.use(path, for_writing=True) as file:
            file.truncate(0)
            file.append([seal.to_bytes()])
        self.written_seal = seal

    def sync(self, *, with_indexes: bool) -> None:
        """Make the data durable, and with `with_indexes` the index files of a sealed segment. Raises
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
        """Lend the data file, open for reading. Raises OSError; FileNotFoundError if the segment was dropped,
        even if another segment has its name by now."""
        lent = self._resources.files.use(self.path)
        if self.is_dropped:
            with lent:
                raise self._gone()
        return lent

    def _gone(self) -> FileNotFoundError:
        return FileNotFoundError(ENOENT, "the segment was dropped", self.path)

    def supersede(self) -> None:
        """Stop this object's writes: its files are about to belong to another segment."""
        with self._resources.index_pages.rebuild_lock:
            self._is_superseded = True

    def let_go(self) -> None:
        """Stop this object's reads and writes: its files are elsewhere."""
        self._is_superseded = self.is_dropped = True
        self.close()

    def position_of(self, offset: int) -> int | None:
        """The position of the first batch that ends at or above `offset`; None if the segment has none.

        Raises CorruptRecordError, OSError (FileNotFoundError if the segment was dropped).
        """
        return self._search(position_of, offset)

    def proven_position_of(self, offset: int) -> int | None:
        """`position_of`, with proof: if the offset lies in a hole, the checksum of the batch before it is
        compared."""
        return self._search(proven_position_of, offset)

    def _search(
        self, search: Callable[[AppendFile, SegmentExtent, SegmentIndexes | None, int], Result], wanted: int
    ) -> Result:
        """Search by the indexes. If they are wrong, search again: by new ones, or by a walk if the segment is
        active."""
        indexes = self._indexes or self.indexes()
        with self.lend() as file:
            try:
                return search(file, self._extent, indexes, wanted)
            except (CorruptRecordError, FileNotFoundError):
                made_again = None if self.is_active else self.rebuild_indexes(indexes)
                return search(file, self._extent, made_again, wanted)

    def read(self, position: int, max_bytes: int, bounds: ReadBounds, *, min_one: bool) -> BatchRead:
        """Read whole batches from `position`, where one begins; see `read_batches`.

        At most `max_bytes`; with `min_one` the first batch may be larger. Compares checksums. Raises
        CorruptRecordError, OSError (FileNotFoundError if the segment was dropped).
        """
        available_bytes = self.size_bytes - position
        size_bytes = max(0, min(max_bytes, available_bytes))
        if FIRST_READ_BYTES < size_bytes < available_bytes:
            size_bytes = self._whole_size(position, size_bytes)
        first_max_bytes = available_bytes if min_one else max_bytes
        with self.lend() as file:
            return read_batches(file, position, size_bytes, available_bytes, first_max_bytes, bounds)

    def read_cached(
        self, position: int, max_bytes: int, bounds: ReadBounds, *, min_one: bool
    ) -> BatchRead | None:
        """Like `read`, but does not wait for the disk. None if the system does not have the bytes in memory,
        the file is not open, or the first batch is larger than `max_bytes`, also with `min_one`.

        Raises CorruptRecordError, OSError.
        """
        lent = self._resources.files.use_open(self.path)
        if lent is None:
            return None
        available_bytes = self.size_bytes - position
        size_bytes = max(0, min(max_bytes, available_bytes))
        first_max_bytes = available_bytes if min_one else max_bytes
        with lent as file:
            if self.is_dropped:
                return None
            cached = CachedFile(file, max(max_bytes, FIRST_READ_BYTES))
            try:
                return read_batches(cached, position, size_bytes, available_bytes, first_max_bytes, bounds)
            except BlockingIOError:
                return None

    def _whole_size(self, position: int, size_bytes: int) -> int:
        """`OffsetIndex.whole_size`, which is only a hint. So a damaged index is no failure here; the searches
        that depend on it repair it."""
        try:
            indexes = self._indexes or self.indexes()
            return indexes.offset_index.whole_size(position, size_bytes)
        except (CorruptRecordError, FileNotFoundError):
            return size_bytes

    def read_bytes(self, position: int, size: int) -> bytes:
        """Read at most `size` bytes of the data. Raises OSError."""
        with self.lend() as file:
            return file.read_at(position, max(0, min(size, self.size_bytes - position)))

    def batches(self, position: int = 0) -> Iterator[LocatedBatch]:
        """Yield the batches from `position`, where one begins. The file stays lent until the iterator
        ends."""
        with self.lend() as file:
            yield from self._extent.walk(file, position)

    @property
    def _extent(self) -> SegmentExtent:
        # The end of a segment that grows, or was not loaded yet, is unknown.
        is_settled = not self.is_active and self.end_offset > self.base_offset
        limit_offset = self.end_offset if is_settled else MAX_OFFSET
        return SegmentExtent(self.base_offset, limit_offset, self.size_bytes)

    def rows_since(self, timestamp_ms: int) -> Iterator[BatchRow]:
        """Yield batches from a position before which every record is older than `timestamp_ms`. Compares
        checksums: raises CorruptRecordError at the first damaged batch; OSError."""
        for rows in self._read_since(timestamp_ms):
            yield from rows

    def _read_since(self, timestamp_ms: int) -> Iterator[list[BatchRow]]:
        """`rows_since`, with a list for each part of the file that is read."""
        position = self._search(position_since, timestamp_ms)
        with self.lend() as file:
            yield from self._extent.rows(file, position, is_search=True)

    def max_timestamp(self) -> TimestampOffset:
        """The highest timestamp, with the last offset of the first batch that has it. The index file and the
        headers agree on it; if they do not, it is taken from batches with true checksums. Raises
        CorruptRecordError, OSError."""
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
        """Return whether the claimed batch has this timestamp and no later batch has a higher one. The index
        vouches for the earlier batches."""
        try:
            since = self.batches(self._search(position_since, claimed.timestamp_ms + 1))
            newest = max((located.header.max_timestamp for located in since), default=NO_TIMESTAMP)
        except CorruptRecordError:
            return False
        return newest == claimed.timestamp_ms

    def prove_max_timestamp(self, on_read: Callable[[], None] = lambda: None) -> None:
        """Compare the checksums of the batch with the highest timestamp and of all batches after it. A
        deletion by time needs this proof; two files that agree are not enough. Calls `on_read` behind each
        part of the file that was read. Raises CorruptRecordError, OSError."""
        for _ in self._read_since(self.max_timestamp().timestamp_ms + 1):
            on_read()

    def prove_headers(self, check: Callable[[], None]) -> None:
        """Compare the headers of all batches with the seal, if there is one of these batches.
        `summed_headers` says what it costs, and when it calls `check`. Raises CorruptRecordError, the
        errors of `check`, OSError."""
        sealed_crc = self.sealed_headers_crc
        if sealed_crc is None:
            return
        with self.lend() as file:
            try:
                is_altered = summed_headers(file, self.size_bytes, check) != sealed_crc
            except CorruptRecordError as invalid:
                raise contradicts_seal(self.path) from invalid
        if is_altered:
            raise contradicts_seal(self.path)

    def indexes(self) -> SegmentIndexes:
        """The growing indexes of an active segment, or those in the files of a sealed one. Raises
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
            raise CorruptRecordError(
                "a sealed segment has no seal; restart the server, which rebuilds it", path=self.path
            )
        return SegmentIndexes.open(
            self._resources.index_pages, self.directory, self.base_offset, self.written_seal
        )

    def rebuild_indexes(self, damaged: SegmentIndexes | None) -> SegmentIndexes:
        """Make the indexes of a sealed segment again, unless another thread has replaced `damaged` meanwhile.
        `damaged` is None if they were missing. Raises CorruptRecordError, OSError."""
        assert not self.is_active
        with self._resources.index_pages.rebuild_lock:
            indexes = self._indexes
            if indexes is None or (indexes is damaged and indexes.damaged_position is None):
                self._indexes = indexes = rebuild_indexes(
                    self._resources,
                    self.directory,
                    self._extent,
                    interval_bytes=self.index_interval_bytes,
                    sealed=self.written_seal,
                    replaces_files=not self._is_superseded,
                    # Existing indexes may lead to batches after the damage. Without any, the batches before
                    # it are enough.
                    may_end=indexes is None,
                )
                self.written_seal = indexes.seal or self.written_seal
            return indexes

    def before(self, offset: int) -> LogSegment:
        """The segment as it will be, active, without the batches that end at or above `offset`.

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
        """Remove the seal, and from the index files the entries of the batches that `trim` has removed. Not
        synced. Raises OSError."""
        self._remove_seal()
        self._growing().cut_files()

    def close(self) -> None:
        """Close the files and drop their pages from memory."""
        if self._indexes is not None:
            self._indexes.forget_pages()
        self._resources.forget(self.directory, self.base_offset)

    def mark_deleted(self) -> None:
        """Rename the files, data first, so that a loader of the directory finds no log; see `put_aside`. Not
        synced. Raises OSError: if `is_dropped`, index files are left; otherwise nothing has changed."""
        self._is_superseded = True
        put_aside(self._resources.filesystem, self.path)
        # Set before another segment can take the name: a file found there later is not this segment's.
        self.is_dropped = True
        try:
            put_indexes_aside(self._resources.filesystem, self.directory, self.base_offset)
        finally:
            self.close()

    def unlink_deleted(self) -> None:
        """Unlink the files that `mark_deleted` renamed; missing files are fine. Raises OSError."""
        unlink_segment(self._resources.filesystem, self.directory, self.base_offset, DELETED_SUFFIX)

    def check(self) -> None:
        """Walk the segment and prove its sizes, order and indexes. Raises CorruptRecordError, OSError."""
        assert self.base_offset <= self.end_offset
        with self.lend() as file:
            assert file.size() >= self.size_bytes
        with self.lend() as file:
            proven = ProvenBatches.of(self._extent.rows(file), self.base_offset)
        assert proven.size_bytes == self.size_bytes
        assert proven.end_offset <= self.end_offset
        assert self.fits(proven.end_offset - 1)
        # A damaged index file is no defect: every user of the indexes makes them again, and so does this
        # check.
        make_again = None if self.is_active else self.rebuild_indexes
        proven.check_indexes(self.indexes(), self.end_offset, make_again)
        assert self.max_timestamp() == proven.max_timestamp
