"""Copies a segment into another directory while the segment may still grow.

The copy proves the data before it writes them: whole batches with true checksums, whose offsets and leader
epochs ascend. It makes the offset and time indexes from the batches, as an append does, so it copies no
damage of an index. The entries of aborted transactions do not follow from one segment; the copy takes them
from the source's index.

The copy counts only when all of it is durable and its directory has a partition's name, so a failure needs no
clean-up here.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.record.header import HEADER_SIZE, NO_TIMESTAMP, parse_header
from stratalog.record.native.batch_kernels import walk_batches
from stratalog.record.native.batch_row import BatchRow
from stratalog.segment.file_names import LOG_SUFFIX, SEGMENT_SUFFIXES, segment_path
from stratalog.segment.indexes.segment_indexes import SegmentIndexes
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_extent import SegmentExtent
from stratalog.segment.segment_resources import SegmentResources
from stratalog.segment.segment_seal import SegmentSeal, require_sealed_headers


class ProvenPortion(NamedTuple):
    """Proven batches that continue the copy; empty if the source has no more."""

    data: bytes
    rows: list[BatchRow]


class SegmentCopy:
    """A copy that grows. One thread uses it; the source may be appended to, sealed and dropped meanwhile."""

    def __init__(
        self, resources: SegmentResources, source: LogSegment, directory: str, leader_epoch: int
    ) -> None:
        """Create an empty file in `directory`. `leader_epoch` is that of the batch before the segment. Raises
        OSError."""
        self.source = source
        self.base_offset = source.base_offset
        self.size_bytes = 0
        self.end_offset = source.base_offset
        self.leader_epoch = leader_epoch
        """The leader epoch of the last batch copied so far."""
        self.is_sealed = False
        """The copy is complete with its indexes, and durable except for the names."""
        self.is_synced = False
        """The data copied so far are durable."""
        self._resources = resources
        self._directory = directory
        self._path = segment_path(directory, self.base_offset, LOG_SUFFIX)
        self._indexes: SegmentIndexes | None = SegmentIndexes.empty(self.base_offset)
        self._first_timestamp_ms = NO_TIMESTAMP
        self._seal: SegmentSeal | None = None
        with resources.files.use(self._path, for_writing=True) as file:
            file.truncate(0)

    @property
    def remaining_bytes(self) -> int:
        return self.source.size_bytes - self.size_bytes

    def next_portion(self, max_bytes: int) -> ProvenPortion:
        """Read and prove the batches to `write` next: at most `max_bytes`, except for a first batch that is
        larger.

        Raises CorruptRecordError if the source is damaged, OSError of the source's disk (FileNotFoundError if
        the source was dropped).
        """
        available_bytes = self.remaining_bytes
        if available_bytes == 0:
            return ProvenPortion(b"", [])
        data = self.source.read_bytes(self.size_bytes, max(max_bytes, HEADER_SIZE))
        first_bytes = parse_header(data).size_in_bytes
        if len(data) < first_bytes <= available_bytes:
            data = self.source.read_bytes(self.size_bytes, first_bytes)
        rows = self._prove(data)
        if not rows:
            raise CorruptRecordError(
                "a stored batch is torn, contradicts the batch before it or does not match its checksum;"
                " restore the log's files from a copy before you move them",
                path=self.source.path,
                position=self.size_bytes,
            )
        return ProvenPortion(data[: rows[-1].end_position - self.size_bytes], rows)

    def _prove(self, data: bytes) -> list[BatchRow]:
        """The sound batches at the beginning of `data`."""
        proven: list[BatchRow] = []
        position, next_offset, leader_epoch = 0, self.end_offset, self.leader_epoch
        while rows := walk_batches(data, position, self.size_bytes, next_offset, leader_epoch):
            proven += rows
            position, next_offset = rows[-1].end_position - self.size_bytes, rows[-1].last_offset + 1
            leader_epoch = rows[-1].leader_epoch
        return proven

    def write(self, portion: ProvenPortion) -> None:
        """Append the portion to the copy and its indexes. Not synced. Raises OSError."""
        if not portion.rows:
            return
        indexes = self._growing()
        with self._resources.files.use(self._path, for_writing=True) as file:
            file.append([portion.data])
        indexes.add_rows(portion.rows, self.source.index_interval_bytes)
        if self.size_bytes == 0:
            self._first_timestamp_ms = portion.rows[0].max_timestamp_ms
        self.size_bytes = portion.rows[-1].end_position
        self.end_offset = portion.rows[-1].last_offset + 1
        self.leader_epoch = portion.rows[-1].leader_epoch
        self.is_synced = False

    def new_aborted(self) -> list[AbortedTransaction]:
        """The entries of the source's transaction index that the copy lacks.

        Raises CorruptRecordError, OSError (FileNotFoundError if the source was dropped or its index is
        missing).
        """
        if not self.source.has_aborted:
            return []
        index = self.source.indexes().transaction_index
        return [index.entry(ordinal) for ordinal in range(len(self._growing().transaction_index), len(index))]

    def add_aborted(self, aborted: list[AbortedTransaction]) -> None:
        for entry in aborted:
            self._growing().add_aborted(entry)

    def sync(self) -> None:
        """Make the data durable; the name is not. Raises OSError."""
        if not self.is_synced:
            with self._resources.files.use(self._path, for_writing=True) as file:
                file.sync()
            self.is_synced = True

    def seal(self, modified_ms: int) -> None:
        """Write the indexes, once all of a sealed source is copied, aborted transactions included. The files
        are durable when this returns, their names are not. `modified_ms` is the time of the last write to the
        source's file. Raises CorruptRecordError if the batches contradict the source's seal, OSError."""
        assert not self.source.is_active
        assert self.size_bytes == self.source.size_bytes
        headers = self._growing().headers.packed()
        require_sealed_headers(self.source.written_seal, self.size_bytes, headers, self.source.path)
        self._resources.filesystem.set_modified_ms(self._path, modified_ms)
        segment = self.segment(self._directory)
        segment.save_indexes()
        segment.seal()
        self._seal = segment.written_seal
        segment.sync(with_indexes=True)
        segment.close()
        self._indexes = None
        # A hole may follow the last batch, up to the next segment.
        self.end_offset = self.source.end_offset
        self.is_sealed = self.is_synced = True

    def segment(self, directory: str) -> LogSegment:
        """The copy as a segment of the log in `directory`, where its files are by now. It is active if the
        copy is not sealed."""
        segment = LogSegment(
            self._resources,
            directory,
            SegmentExtent(self.base_offset, self.end_offset, self.size_bytes),
            created_ms=self.source.created_ms,
            index_interval_bytes=self.source.index_interval_bytes,
            indexes=self._indexes,
            seal=self._seal,
        )
        segment.first_append_ms = self.source.first_append_ms
        segment.first_timestamp_ms = self._first_timestamp_ms
        return segment

    def discard(self) -> None:
        """Unlink the copy of a dropped source. Not synced. Raises OSError."""
        filesystem = self._resources.filesystem
        for suffix in SEGMENT_SUFFIXES:
            path = segment_path(self._directory, self.base_offset, suffix)
            self._resources.files.forget(path)
            if filesystem.exists(path):
                filesystem.unlink(path)

    def _growing(self) -> SegmentIndexes:
        assert self._indexes is not None, "the copy is sealed"
        return self._indexes
