"""Writes one cleaned segment: data, indexes and aborted transactions, as `.cleaned` files.

The kernel of recovery walks the batches before they are written, not the kernel that made them: a batch with
a wrong checksum or a descending offset never reaches the file. The indexes follow from that walk by the rule
of an append. Small pieces are collected and written together.

Crash: a recovery ignores `.cleaned` files.
"""

from __future__ import annotations

from crc32c import crc32c

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.log.exchange.cleaned_segment import CleanedSegment
from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.record.native.batch_kernels import walk_batches
from stratalog.segment.file_names import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEAL_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_path,
)
from stratalog.segment.indexes.index_file import IndexSeal
from stratalog.segment.indexes.offset_index import MAX_RELATIVE_OFFSET, OffsetIndex
from stratalog.segment.indexes.segment_indexes import SegmentIndexes
from stratalog.segment.indexes.time_index import TimeIndex
from stratalog.segment.segment_files import unlink_segment
from stratalog.segment.segment_resources import SegmentResources
from stratalog.segment.segment_seal import SegmentSeal

_WRITE_BYTES = 256 * 1024
MAX_POSITION = 2**31 - 1
"""The highest position of an index entry."""


class SegmentWriter:
    """A cleaned segment that grows. Not thread-safe: guarded by its user."""

    def __init__(
        self, resources: SegmentResources, directory: str, base_offset: int, index_interval_bytes: int
    ) -> None:
        """Create the files, after removing those of an earlier attempt. Raises OSError."""
        self.base_offset = base_offset
        self.next_offset = base_offset
        """The offset after the last batch."""
        self.size_bytes = 0
        self._filesystem = resources.filesystem
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._indexes = SegmentIndexes.empty(base_offset)
        self._files = resources.files
        self._checksum = 0
        self._pending = memoryview(bytearray(_WRITE_BYTES))
        self._pending_bytes = 0
        self._unlink()
        # Written as entries come: a segment may consist of markers.
        self._indexes.transaction_index.attach(resources.index_pages, self._path(TRANSACTION_INDEX_SUFFIX))
        self._file = self._filesystem.open_append(self._path(LOG_SUFFIX))
        self._is_closed = False

    def _path(self, suffix: str) -> str:
        return segment_path(self._directory, self.base_offset, suffix) + CLEANED_SUFFIX

    def has_room(self, size_bytes: int, max_index_bytes: int) -> bool:
        """Return whether the segment may grow by `size_bytes`. An empty one always may, or a large batch
        would never fit."""
        return self.size_bytes == 0 or (
            self.size_bytes + size_bytes <= MAX_POSITION and not self._indexes.is_full(max_index_bytes)
        )

    def write(self, batches: Buffer) -> None:
        """Add whole batches; the caller may reuse their memory. Raises CorruptRecordError if they are not
        sound or do not follow the batches before, OSError."""
        position = 0
        while position < len(batches):
            rows = walk_batches(batches, position, self.size_bytes, self.next_offset, NO_LEADER_EPOCH)
            if not rows:
                raise CorruptRecordError(
                    "a clean made a batch that is not sound, or does not follow the batch before it; check"
                    " the segment that it was made of for damage",
                    path=self._path(LOG_SUFFIX),
                    position=self.size_bytes + position,
                    expected_offset=self.next_offset,
                )
            assert rows[-1].last_offset - self.base_offset <= MAX_RELATIVE_OFFSET
            self._indexes.add_rows(rows, self._index_interval_bytes)
            position, self.next_offset = rows[-1].end_position - self.size_bytes, rows[-1].last_offset + 1
        self._checksum = crc32c(batches, self._checksum)
        self.size_bytes += len(batches)
        end = self._pending_bytes + len(batches)
        if end > len(self._pending):
            self._flush(batches)
        else:
            self._pending[self._pending_bytes : end] = batches
            self._pending_bytes = end

    def _flush(self, batches: Buffer = b"") -> None:
        self._file.append([self._pending[: self._pending_bytes], batches])
        self._pending_bytes = 0

    def add_aborted(self, entries: bytes) -> None:
        """Add whole transaction index entries with markers in this segment, in order."""
        self._indexes.transaction_index.extend(entries)

    def finish(self, modified_ms: int) -> CleanedSegment:
        """Close and sync the files; their names are not synced. `modified_ms` becomes the data's time. Raises
        OSError."""
        assert self.size_bytes > 0, "only the active segment may be empty"
        self._flush()
        self._pending = memoryview(b"")
        self._filesystem.set_modified_ms(self._path(LOG_SUFFIX), modified_ms)
        self._file.sync()
        self._close()
        offset_index, time_index = self._indexes.closing_files()
        seal = SegmentSeal.of(
            self.size_bytes,
            self.next_offset,
            self._indexes.headers.packed(),
            OffsetIndex.seal_of(offset_index),
            TimeIndex.seal_of(time_index),
            self._save_aborted(),
        )
        self._save(OFFSET_INDEX_SUFFIX, offset_index)
        self._save(TIME_INDEX_SUFFIX, time_index)
        self._save(SEAL_SUFFIX, seal.to_bytes())
        return CleanedSegment(self.base_offset, self.next_offset - 1, self._checksum, seal)

    def _save_aborted(self) -> IndexSeal:
        index = self._indexes.transaction_index
        if not len(index):
            return IndexSeal()
        seal = index.save()
        path = self._path(TRANSACTION_INDEX_SUFFIX)
        with self._files.use(path, for_writing=True) as file:
            file.sync()
        self._files.forget(path)
        return seal

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._file.close()

    def _save(self, suffix: str, data: bytes) -> None:
        file = self._filesystem.open_append(self._path(suffix))
        try:
            file.append([data])
            file.sync()
        finally:
            file.close()

    def discard(self) -> None:
        """Remove the files, finished or not. Raises OSError."""
        self._close()
        self._unlink()

    def _unlink(self) -> None:
        # Otherwise writes would go to an open file whose name is gone.
        self._files.forget(self._path(TRANSACTION_INDEX_SUFFIX))
        unlink_segment(self._filesystem, self._directory, self.base_offset, CLEANED_SUFFIX)
