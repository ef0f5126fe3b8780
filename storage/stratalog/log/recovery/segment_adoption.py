"""Seals the segments of a broker's log, whose indexes have no checksums.

Offset and time indexes are kept if their entries ascend and end within the segment: each entry is compared
with its batch when it is used. A transaction index is not kept, because a damaged or missing one would let
aborted records be read as committed. It is made from the batches, by a walk over every header of the log, and
replaces the broker's file if the two differ. The walk also compares offsets and leader epochs.

If the log was trimmed, the batches do not show a transaction whose records are gone; then the broker's entry
stands. A damaged header ends the walk of its segment; behind it the broker's entries stand, too. Such a
segment gets a seal that says nothing about headers, and so does one with a damaged batch whose epoch
contradicts the log's file.

Files are written by `write`, once it is known that the log can be served.
"""

from __future__ import annotations

import posixpath
from typing import NoReturn

from stratalog.base.atomic_file import TEMPORARY_SUFFIX
from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.base.file_contents import write_file
from stratalog.base.filesystem import AppendFile
from stratalog.log.leader_epoch_cache import LEADER_EPOCH_FILE, LeaderEpochCache
from stratalog.log.producers.producer_batch import ProducerBatch, read_batch
from stratalog.log.recovery.batch_order import require_end_below
from stratalog.log.recovery.known_epochs import is_newer, require_epoch
from stratalog.record.batch import crc_matches
from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.record.end_transaction_marker import ControlType
from stratalog.record.header import MAX_OFFSET, NO_PRODUCER_ID, BatchHeader
from stratalog.segment.batch_headers import UNKNOWN_HEADERS, BatchHeaders
from stratalog.segment.batch_walk import LocatedBatch, walk
from stratalog.segment.file_names import (
    OFFSET_INDEX_SUFFIX,
    SEAL_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_path,
)
from stratalog.segment.indexes.index_rebuild import index_batches
from stratalog.segment.indexes.offset_index import OffsetIndex
from stratalog.segment.indexes.segment_indexes import SegmentIndexes
from stratalog.segment.indexes.time_index import TimeIndex
from stratalog.segment.indexes.transaction_index import AbortedTransaction, TransactionIndex
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.old_messages import require_no_old_message
from stratalog.segment.segment_extent import SegmentExtent
from stratalog.segment.segment_resources import SegmentResources
from stratalog.segment.segment_seal import SegmentSeal


class SegmentAdoption:
    """Adopts the segments of one log, oldest first. Used by one thread."""

    def __init__(
        self, resources: SegmentResources, known_epochs: LeaderEpochCache, *, may_have_newer: bool
    ) -> None:
        """`known_epochs`: the leader epochs of the log's file. `may_have_newer`: batches may have epochs that
        are not in the file yet."""
        self._resources = resources
        self._filesystem = resources.filesystem
        self._known_epochs = known_epochs
        self._may_have_newer = may_have_newer
        self._latest_epoch = NO_LEADER_EPOCH
        # First offsets of the open transactions, by producer id.
        self._open: dict[int, int] = {}
        self._is_torn = False
        self.max_producer_id = NO_PRODUCER_ID
        """The largest producer id of the sound batches that were walked; -1 without one."""
        self._files: dict[str, bytes | None] = {}

    def adopt(self, segment: LogSegment, *, is_settled: bool) -> None:
        """Walk the headers of the next segment, and seal it if `is_settled`, that is, unless recovery is
        going to walk it.

        Raises DataDirectoryError if a batch contradicts the leader epochs or overlaps the next segment,
        UnsupportedOperationError for a message of an older format, OSError.
        """
        known = self._known_entries(segment)
        aborted, end_offset = TransactionIndex(segment.base_offset), segment.base_offset
        end_position, headers = 0, BatchHeaders(segment.base_offset)
        is_last = segment.end_offset == segment.base_offset
        has_all_headers = True
        with self._resources.files.use(segment.path) as file:
            try:
                for located in walk(file, 0, segment.size_bytes, epochs_ascend=False):
                    batch = read_batch(file, located)
                    has_all_headers &= self._has_true_epoch(segment, file, located)
                    self._require_order(segment, file, located)
                    self._note_producer(file, located)
                    entry = self._follow(batch, known)
                    if entry is not None:
                        aborted.append(entry)
                    headers.follow_header(*located)
                    end_position = located.position + located.header.size_in_bytes
                    end_offset = located.header.next_offset
                if not is_last and end_offset > segment.end_offset:
                    # The last batch is damaged. A start trusts no seal that ends above the next segment.
                    end_offset, has_all_headers = segment.end_offset, False
            except CorruptRecordError:
                require_no_old_message(file, end_position, segment.size_bytes, end_offset)
                self._open.clear()
                self._is_torn, has_all_headers = True, False
                for entry in known.values():
                    if entry.last_offset >= end_offset:
                        aborted.append(entry)
                end_offset = MAX_OFFSET
            if is_settled:
                packed = headers.packed() if has_all_headers else UNKNOWN_HEADERS
                self._seal(segment, file, packed, aborted.to_bytes(), end_offset)

    def write(self) -> None:
        """Write the files that differ from the broker's, under new inodes: the broker may share the old ones.
        Durable when it returns. Raises OSError."""
        for path, data in self._files.items():
            if data is None:
                self._filesystem.unlink(path)
            else:
                write_file(self._filesystem, path + TEMPORARY_SUFFIX, [data])
                self._filesystem.rename(path + TEMPORARY_SUFFIX, path)
            self._resources.files.forget(path)
        for directory in {posixpath.dirname(path) for path in self._files}:
            self._filesystem.sync_directory(directory)
        self._files.clear()

    def _known_entries(self, segment: LogSegment) -> dict[int, AbortedTransaction]:
        """The broker's entries by marker; none if its index is damaged."""
        try:
            entries = TransactionIndex.load(self._filesystem, segment.directory, segment.base_offset)
        except CorruptRecordError:
            return {}
        return {entry.last_offset: entry for entry in entries}

    def _follow(
        self, batch: ProducerBatch, known: dict[int, AbortedTransaction]
    ) -> AbortedTransaction | None:
        """The transaction that the batch aborts, or None."""
        header, marker = batch.header, batch.marker
        if not batch.has_producer:
            return None
        if marker is None:
            if header.is_transactional and not header.is_control:
                self._open.setdefault(header.producer_id, header.base_offset)
            return None
        first_offset = self._open.pop(header.producer_id, None)
        if marker.control_type is not ControlType.ABORT:
            return None
        entry = known.get(header.last_offset)
        if first_offset is None or (self._is_torn and entry is not None):
            return entry
        stable_offset = min(self._open.values(), default=header.next_offset)
        return AbortedTransaction(header.producer_id, first_offset, header.last_offset, stable_offset)

    def _has_true_epoch(self, segment: LogSegment, file: AppendFile, located: LocatedBatch) -> bool:
        """Whether the epoch of the batch fits; False if the batch is damaged and its epoch proves nothing.
        Raises DataDirectoryError if the batch is sound."""
        position, header = located
        sinks = header.leader_epoch < self._latest_epoch
        is_known = self._known_epochs.epoch_for_offset(header.base_offset) in (None, header.leader_epoch)
        if sinks or not is_known:
            if not crc_matches(file.read_at(position, header.size_in_bytes), 0, header):
                return False
            if sinks or not (self._may_have_newer and is_newer(header, self._known_epochs)):
                self._refuse_epoch(segment, header)
        self._latest_epoch = header.leader_epoch
        return True

    def _refuse_epoch(self, segment: LogSegment, header: BatchHeader) -> NoReturn:
        require_epoch(segment, header, self._known_epochs)
        raise DataDirectoryError(
            "a sound batch has a lower leader epoch than the one before it; restore the segment and the"
            f" file of epochs from a copy, or remove {LEADER_EPOCH_FILE} if the batches are right",
            path=segment.path,
            base_offset=header.base_offset,
            leader_epoch=header.leader_epoch,
            epoch_before=self._latest_epoch,
        )

    def _require_order(self, segment: LogSegment, file: AppendFile, located: LocatedBatch) -> None:
        """Raise DataDirectoryError if a sound batch ends above the base of the next segment."""
        position, header = located
        is_last = segment.end_offset == segment.base_offset
        if is_last or header.next_offset <= segment.end_offset:
            return
        if crc_matches(file.read_at(position, header.size_in_bytes), 0, header):
            require_end_below(segment, header.next_offset, segment.end_offset)

    def _note_producer(self, file: AppendFile, located: LocatedBatch) -> None:
        """Note the largest producer id. A damaged batch may show any, so a larger one is proved."""
        position, header = located
        if header.producer_id > self.max_producer_id and crc_matches(
            file.read_at(position, header.size_in_bytes), 0, header
        ):
            self.max_producer_id = header.producer_id

    def _seal(
        self, segment: LogSegment, file: AppendFile, headers: bytes, aborted: bytes, end_offset: int
    ) -> None:
        """Seal the segment. `headers`: the packed sum over the batch headers. `end_offset`: behind the last
        batch; MAX_OFFSET if a damaged header hides it."""
        limit_offset = segment.end_offset if segment.end_offset > segment.base_offset else end_offset
        extent = SegmentExtent(segment.base_offset, limit_offset, segment.size_bytes)
        offset_index, time_index = self._leading_indexes(segment, file, extent)
        if end_offset == MAX_OFFSET:
            end_offset = _end_behind(file, extent, OffsetIndex(segment.base_offset, offset_index))
        seal = SegmentSeal.of(
            segment.size_bytes,
            end_offset,
            headers,
            OffsetIndex.seal_of(offset_index),
            TimeIndex.seal_of(time_index),
            TransactionIndex.seal_of(aborted),
        )
        segment.written_seal = seal
        segment.has_aborted = seal.has_aborted
        for suffix, data in (
            (OFFSET_INDEX_SUFFIX, offset_index),
            (TIME_INDEX_SUFFIX, time_index),
            (TRANSACTION_INDEX_SUFFIX, aborted or None),
            (SEAL_SUFFIX, seal.to_bytes()),
        ):
            if self._read(segment, suffix) != data:
                self._files[segment_path(segment.directory, segment.base_offset, suffix)] = data

    def _leading_indexes(
        self, segment: LogSegment, file: AppendFile, extent: SegmentExtent
    ) -> tuple[bytes, bytes]:
        """The contents of the offset and the time index: the broker's if they can be right."""
        base_offset = segment.base_offset
        offset_index = self._read(segment, OFFSET_INDEX_SUFFIX)
        time_index = self._read(segment, TIME_INDEX_SUFFIX)
        if offset_index is not None and time_index is not None:
            try:
                SegmentIndexes(
                    OffsetIndex(base_offset, offset_index),
                    TimeIndex(base_offset, time_index),
                    TransactionIndex(base_offset),
                ).check_last(end_offset=extent.limit_offset, log_size_bytes=segment.size_bytes)
                return offset_index, time_index
            except CorruptRecordError:
                pass
        indexes, _ = index_batches(file, extent, segment.index_interval_bytes, may_end=True)
        return indexes.closing_files()

    def _read(self, segment: LogSegment, suffix: str) -> bytes | None:
        try:
            return self._filesystem.read_file(segment_path(segment.directory, segment.base_offset, suffix))
        except FileNotFoundError:
            return None


def _end_behind(file: AppendFile, extent: SegmentExtent, index: OffsetIndex) -> int:
    """The end of the batches from the last one in the index on."""
    end_offset = extent.base_offset
    try:
        for _, header in extent.walk(file, 0 if index.last is None else index.last.position):
            end_offset = header.next_offset
    except CorruptRecordError:
        pass
    return end_offset
