"""Holding a transaction index against the log that it is about.

A file that a broker or an earlier version wrote has no checksum beside it, and what a damaged entry says is
served to readers of committed records. But each entry names two batches: the transaction's first one and its
abort marker. Where these lie in a hole, or in segments that are gone, there is no evidence, and the entry is
believed. Nor does it show where an entry lets its transaction begin with a later batch of the same one, or
claims that more was decided than was.

The other way round, each abort marker of a transaction that has batches here has an entry. Our own files keep
that, because the index is durable before another segment follows; of a directory that was copied file by
file, nobody knows, and a file that did not come along would let aborted records be read as committed.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile
from stratalog.log.leader_epoch_cache import LeaderEpochCache
from stratalog.log.producers.producer_batch import ProducerBatch, read_batch
from stratalog.log.recovery.recovered_lineage import is_newer, lower_epoch, require_epoch
from stratalog.record.batch import crc_matches
from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.record.end_transaction_marker import ControlType
from stratalog.record.header import (
    CONTROL_BIT,
    HEADER_SIZE,
    MAGIC,
    PRODUCER_ID_POSITION,
    TRANSACTIONAL_BIT,
    parse_header,
)
from stratalog.record.native.batch_kernels import skip_batches
from stratalog.segment.batch_walk import LocatedBatch, walk
from stratalog.segment.indexes.transaction_index import AbortedTransaction, TransactionIndex
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.old_messages import require_no_old_message
from stratalog.segment.open_files import OpenFiles

_CHUNK_BYTES = 16 * 1024


def is_contradicted(index: TransactionIndex, segments: Sequence[LogSegment]) -> bool:
    """The batches of these segments, of which the last is the index's own, say otherwise. Raises OSError."""
    firsts, markers = _BatchFinder(segments), _BatchFinder(segments)
    base_offset = segments[-1].base_offset
    return any(_is_contradicted(entry, base_offset, firsts, markers) for entry in index)


class AbortedWitness:
    """Holds the segments of a log, oldest first, against their transaction indexes, and, as every header is
    looked at, against the log's file of leader epochs. Used by one thread."""

    def __init__(self, files: OpenFiles, known_epochs: LeaderEpochCache, *, may_have_newer: bool) -> None:
        """`may_have_newer`: batches may have epochs that are not in the file yet."""
        self._files = files
        self._known_epochs = known_epochs
        self._may_have_newer = may_have_newer
        self._latest_epoch = NO_LEADER_EPOCH
        self._has_transactions = False
        # None once a header was damaged: any producer may have a transaction open then.
        self._opened: set[int] | None = set()

    def misses_entry(self, index: TransactionIndex, segment: LogSegment) -> bool:
        """The batches of the next segment have an abort marker that is not in its index, or may have one
        behind damage. Looks at every header. Raises DataDirectoryError where a batch has another leader epoch
        than the file says, UnsupportedOperationError where a message is of an older format, OSError."""
        known = {entry.last_offset for entry in index}
        end_position, end_offset = 0, segment.base_offset
        try:
            with self._files.use(segment.path) as file:
                for located in walk(file, 0, segment.size_bytes, epochs_ascend=False):
                    end_position = located.position + located.header.size_in_bytes
                    end_offset = located.header.next_offset
                    batch = read_batch(file, located)
                    self._require_epoch(segment, file, located)
                    if self._aborts(batch) and batch.header.last_offset not in known:
                        return True
        except CorruptRecordError:
            # Whoever reads the damage is told of it; what lies behind was not looked at.
            with self._files.use(segment.path) as file:
                require_no_old_message(file, end_position, segment.size_bytes, end_offset)
            self._opened = None
            return self._has_transactions and not known
        return False

    def _require_epoch(self, segment: LogSegment, file: AppendFile, located: LocatedBatch) -> None:
        position, header = located
        sinks = header.leader_epoch < self._latest_epoch
        is_known = self._known_epochs.epoch_for_offset(header.base_offset) in (None, header.leader_epoch)
        if not sinks and (is_known or (self._may_have_newer and is_newer(header, self._known_epochs))):
            self._latest_epoch = header.leader_epoch
            return
        # Of a damaged batch it would be the wrong thing to say.
        if crc_matches(file.read_at(position, header.size_in_bytes), 0, header):
            require_epoch(segment, header, self._known_epochs)
            raise lower_epoch(segment.path, header, self._latest_epoch)

    def _aborts(self, batch: ProducerBatch) -> bool:
        """The batch ends a transaction that has others here, and aborts it."""
        header, marker = batch.header, batch.marker
        if not batch.has_producer:
            return False
        if marker is not None:
            was_open = self._opened is None or header.producer_id in self._opened
            if self._opened is not None:
                self._opened.discard(header.producer_id)
            return was_open and marker.control_type is ControlType.ABORT
        if header.is_transactional and not header.is_control:
            self._has_transactions = True
            if self._opened is not None:
                self._opened.add(header.producer_id)
        return False


def _is_contradicted(
    entry: AbortedTransaction, base_offset: int, firsts: _BatchFinder, markers: _BatchFinder
) -> bool:
    producer_id, first_offset, last_offset, last_stable_offset = entry
    if not base_offset <= last_offset or last_stable_offset > last_offset + 1:
        return True
    marker = markers.batch_at(last_offset)
    if marker is not None:
        found_offset, attributes, last_offset_delta, found_id = marker
        if (
            found_id != producer_id
            or found_offset + last_offset_delta != last_offset
            or not attributes & CONTROL_BIT
        ):
            return True
    # Most transactions are short.
    first = markers.batch_nearby(first_offset) or firsts.batch_at(first_offset)
    if first is None:
        return False
    found_offset, attributes, _, found_id = first
    return (
        found_id != producer_id
        or found_offset != first_offset
        or attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) != TRANSACTIONAL_BIT
    )


# What is compared of a header: base offset, attributes, last offset delta and producer id. A plain tuple,
# because there are two for each entry of each index whenever a log is opened.
_Fields: TypeAlias = tuple[int, int, int, int]
_FIELDS = struct.Struct(">q8xb4xhi16xq")
assert PRODUCER_ID_POSITION + 8 == _FIELDS.size <= HEADER_SIZE


class _BatchFinder:
    """Batches by offset, cheap where the next one that is asked for is not far behind the last. Used by one
    thread."""

    def __init__(self, segments: Sequence[LogSegment]) -> None:
        self._segments = segments
        # Bytes of a segment from a batch's beginning on, where that is, and the batch's offset.
        self._chunk = b""
        self._segment = segments[-1]
        self._position = 0
        self._first_offset = self._segment.base_offset

    def batch_at(self, offset: int) -> _Fields | None:
        """The batch that has the offset; None where none has, or nobody can tell. Raises OSError."""
        found = self.batch_nearby(offset)
        if found is None and offset >= self._first_offset and self._segment is self._segments[-1]:
            found = self._further_on(offset)
        if found is not None:
            return found
        try:
            return self._by_index(offset)
        except CorruptRecordError:
            # That is found by whoever reads it, and no reason to doubt an index.
            return None

    def batch_nearby(self, offset: int) -> _Fields | None:
        """The same, if it is among the bytes that were read last."""
        chunk, first_offset = self._chunk, self._first_offset
        if offset < first_offset:
            return None
        position, _, _ = skip_batches(chunk, offset, first_offset, NO_LEADER_EPOCH)
        if position + HEADER_SIZE > len(chunk):
            return None
        base_offset, magic, attributes, last_offset_delta, producer_id = _FIELDS.unpack_from(chunk, position)
        if magic != MAGIC or not base_offset <= offset <= base_offset + last_offset_delta:
            return None
        return base_offset, attributes, last_offset_delta, producer_id

    def _further_on(self, offset: int) -> _Fields | None:
        """The same among the bytes behind the batches that end below `offset`."""
        skipped_bytes, next_offset, _ = skip_batches(self._chunk, offset, self._first_offset, NO_LEADER_EPOCH)
        try:
            self._read(self._segment, self._position + skipped_bytes, next_offset)
        except CorruptRecordError:
            return None
        return self.batch_nearby(offset)

    def _by_index(self, offset: int) -> _Fields | None:
        ordinal = bisect_right(self._segments, offset, key=_base_offset) - 1
        segment = self._segments[ordinal]
        position = None if ordinal < 0 else segment.position_of(offset)
        if position is None:
            return None
        self._read(segment, position, segment.base_offset)
        return self.batch_nearby(offset)

    def _read(self, segment: LogSegment, position: int, least_offset: int) -> None:
        chunk = segment.read_bytes(position, _CHUNK_BYTES)
        first_offset = parse_header(chunk).base_offset
        if first_offset < least_offset:
            raise CorruptRecordError(
                "a stored batch begins below the end of the one before it",
                path=segment.path,
                position=position,
                expected_offset=least_offset,
            )
        self._chunk, self._segment, self._position = chunk, segment, position
        self._first_offset = first_offset


def _base_offset(segment: LogSegment) -> int:
    return segment.base_offset
