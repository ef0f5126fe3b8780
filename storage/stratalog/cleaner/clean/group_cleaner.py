"""The second pass of a clean: what stays of a group of segments, written as the segments that replace it.

Batches are a kernel's, a window at a time. One by one are dealt with: batches that begin below the log's
start, compressed ones, and control batches that are not quite the markers that everybody writes. What lies at
or above the end of the map is copied as it is.

Data of an aborted transaction goes, whatever its keys say. A marker stays as long as the clean has met a
batch of its transaction, be it an empty one: only a clean that finds nothing left of the transaction gives
the marker a time to go, and one after that time drops it. What is known of that is kept for the whole clean,
in the order of offsets, so that a transaction and its marker may lie in different groups of segments.

These batches stay, emptied if need be:

* the last one with records of each producer that is remembered, so that whoever opens the log later still
  knows its sequence;
* the one before the high watermark, and the last one of the group: segments tile after a clean as before it,
  and nobody can take a hole between two of them for lost data.

A marker stays whole where it alone tells the epoch of a producer that is remembered: one that fenced it, say.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.cleaner.clean.aborted_index import AbortedIndex, entries_of
from stratalog.cleaner.clean.batch_window import BatchWindow
from stratalog.cleaner.clean.clean_result import CleanStats
from stratalog.cleaner.clean.kept_horizons import KeptHorizons
from stratalog.cleaner.clean.odd_batches import (
    clean_compressed,
    emptied,
    is_compressed,
    since_offset,
    with_horizon,
)
from stratalog.cleaner.clean.segment_groups import SegmentGroup
from stratalog.cleaner.clean.segment_writer import SegmentWriter
from stratalog.log.exchange.cleaned_segment import CleanedSegment, OnRead
from stratalog.log.log_config import LogConfig
from stratalog.record.batch import require_crc
from stratalog.record.codecs.compression import Codec
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import BatchHeader, parse_header
from stratalog.record.native.aborted_spans import AbortedSpans
from stratalog.record.native.batch_kernels import whole_batches
from stratalog.record.native.clean_rule import is_kept_epoch
from stratalog.record.native.offset_map import (
    CleanedBatches,
    CleanedRecords,
    CleanRule,
    OffsetMap,
    OpenTransactions,
    clean_batches,
)
from stratalog.segment.batch_walk import LocatedBatch
from stratalog.segment.indexes.transaction_index import bytes_below, without_markers
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_resources import SegmentResources


class CleanPlan(NamedTuple):
    """What all groups of a clean are cleaned by."""

    offset_map: OffsetMap
    start_offset: int
    """Of the log: records below it are deleted."""
    stop_offset: int
    """The map knows the log up to there."""
    now_ms: int
    kept_empty: array[int]
    """Last offsets of batches that stay, ascending: 'q'."""
    kept_epochs: array[int]
    """See `CleanRule.kept_epochs`: 'q'."""
    config: LogConfig


class GroupCleaner:
    """Cleans one group after the other, in the order of offsets. Not thread-safe: guarded by its user."""

    def __init__(
        self,
        resources: SegmentResources,
        directory: str,
        plan: CleanPlan,
        aborted: AbortedIndex,
        transactions: OpenTransactions,
        stats: CleanStats,
        on_io: OnRead,
        window_bytes: int,
    ) -> None:
        """`transactions`: those that have data below the first group."""
        self._resources = resources
        self._directory = directory
        self._plan = plan
        self._aborted = aborted
        self._stats = stats
        self._on_io = on_io
        self._buffer = bytearray(window_bytes)
        self._transactions = transactions
        # Of the window that is being looked at.
        self._dropped_aborts: set[int] = set()
        self._spans = AbortedSpans()
        # Entries of markers below it were dealt with.
        self._kept_until = 0
        self._rule = CleanRule(plan.now_ms, 0, plan.stop_offset, kept_epochs=plan.kept_epochs)
        self._writers: list[SegmentWriter] = []
        self.horizons = KeptHorizons(plan.now_ms)
        """Of what the clean has kept so far."""

    def clean(self, group: SegmentGroup, horizon_ms: int) -> list[CleanedSegment]:
        """Write the segments that are to replace the group, synced. `horizon_ms`: what tombstones and markers
        get that are kept for a while.

        Raises CorruptRecordError, OSError (FileNotFoundError where a segment was dropped), and whatever
        `on_io` does: nothing is left of the segments then, as far as the disk lets go of them.
        """
        self._writers = []
        try:
            self._rule = self._rule._replace(horizon_ms=horizon_ms, kept_empty=self._kept_empty(group))
            self._begin(group[0].base_offset)
            for segment in group:
                self._clean_segment(segment)
            modified_ms = max(self._resources.filesystem.modified_ms(segment.path) for segment in group)
            cleaned = [writer.finish(modified_ms) for writer in self._writers]
        except BaseException:
            self._discard()
            raise
        self._stats.cleaned_bytes += sum(segment.size_bytes for segment in group)
        self._stats.written_bytes += sum(segment.size_bytes for segment in cleaned)
        self._stats.cleaned_segment_count += len(group)
        self._stats.written_segment_count += len(cleaned)
        return cleaned

    def _discard(self) -> None:
        """Remove what was written last, as far as the disk lets it: the next process removes the rest."""
        for writer in self._writers:
            with suppress(OSError):
                writer.discard()

    def _kept_empty(self, group: SegmentGroup) -> array[int]:
        kept = array("q", self._plan.kept_empty)
        _, header = _last_batch(group[-1])
        if not _is_in(kept, header.last_offset):
            insort(kept, header.last_offset)
        return kept

    def _keep_aborted(self, segment: LogSegment, end_offset: int) -> None:
        """Of the segment's transaction index those entries whose markers were kept, up to that offset."""
        found = entries_of(segment, self._kept_until, end_offset) if segment.has_aborted else ()
        for chunk in found:
            kept = without_markers(chunk, self._dropped_aborts) if self._dropped_aborts else chunk
            for writer, follower in zip_longest(self._writers, self._writers[1:]):
                size = len(kept) if follower is None else bytes_below(kept, follower.base_offset)
                writer.add_aborted(kept[:size])
                kept = kept[size:]
        self._dropped_aborts.clear()
        self._kept_until = end_offset

    def _begin(self, base_offset: int) -> None:
        interval_bytes = self._plan.config.index_interval_bytes
        self._writers.append(SegmentWriter(self._resources, self._directory, base_offset, interval_bytes))

    def _clean_segment(self, segment: LogSegment) -> None:
        # What the map does not know is left as it is, wherever the log begins by now.
        stop_offset = self._plan.stop_offset
        odd_offset = min(self._plan.start_offset, stop_offset)
        self._kept_until = segment.base_offset
        with segment.lend() as file:
            window = BatchWindow(segment, file, 0, self._on_io, self._buffer)
            while window.has_batch():
                if window.is_new:
                    window.is_new = False
                    start_offset = window.header().base_offset
                    self._keep_aborted(segment, start_offset)
                    self._spans = self._aborted.between(start_offset, window.end_offset)
                    self._rule = self._rule._replace(aborted=self._spans.values)
                header = window.header()
                is_row = header.base_offset >= odd_offset and not is_compressed(header)
                if header.base_offset < stop_offset and not is_row:
                    self._clean_one(window, header)
                elif not self._clean_row(window):
                    self._clean_odd(window, header)
        self._keep_aborted(segment, segment.end_offset)

    def _clean_row(self, window: BatchWindow) -> bool:
        """Clean what a kernel takes; whether that was anything."""
        cleaned = self._cleaned(window.data, window.at)
        if cleaned.end_position == window.at:
            return False
        self._write(cleaned.data)
        window.move_to(cleaned.end_position, cleaned.next_offset)
        return True

    def _cleaned(self, data: Buffer, position: int) -> CleanedBatches:
        """What a kernel leaves of the batches that it takes, counted."""
        cleaned = clean_batches(
            data,
            position,
            self._plan.offset_map,
            self._rule,
            self._transactions,
            self._writers[-1].size_bytes,
        )
        self._stats.cleaned_record_count += cleaned.records_in
        self._stats.aborted_record_count += cleaned.aborted_count
        self._stats.dropped_marker_count += cleaned.dropped_marker_count
        self._dropped_aborts.update(cleaned.dropped_aborts)
        self._count_records(cleaned)
        self.horizons.note(cleaned.earliest_horizon_ms, cleaned.latest_horizon_ms)
        if cleaned.has_waiting_marker:
            self.horizons.note_waiting_marker()
        return cleaned

    def _clean_odd(self, window: BatchWindow, header: BatchHeader) -> None:
        """Clean the next batch, which the kernel has not taken; or copy a row that no map knows."""
        if header.base_offset < self._plan.stop_offset:
            self._clean_one(window, header)
            return
        size_bytes, _ = whole_batches(memoryview(window.data)[window.at :])
        self._write(memoryview(window.data)[window.at : window.at + size_bytes])
        window.move_to(window.at + size_bytes, self._writers[-1].next_offset)

    def _clean_one(self, window: BatchWindow, header: BatchHeader) -> None:
        """Clean the next batch, by itself."""
        batch: Buffer = window.batch(header)
        try:
            require_crc(batch, 0, header)
            if header.is_control:
                self._clean_marker(batch, header)
            else:
                self._clean_data(batch, header)
        except CorruptRecordError as failure:
            raise window.damaged(failure.message) from failure
        window.pass_by(header)

    def _clean_data(self, batch: Buffer, header: BatchHeader) -> None:
        plan, level = self._plan, self._plan.config.compression_level(header.codec)
        is_aborted = self._spans.has(header)
        if is_aborted:
            self._stats.aborted_record_count += header.records_count
        left = header
        if not is_aborted and header.base_offset < plan.start_offset:
            batch = since_offset(batch, header, plan.start_offset, level)
            left = parse_header(batch) if batch else header
        if is_aborted or not batch:
            is_kept = self._write_emptied(header)
        else:
            is_kept = self._clean_records(batch, left)
        if header.is_transactional:
            self._transactions.on_data(header.producer_id, is_kept=is_kept)

    def _clean_records(self, batch: Buffer, header: BatchHeader) -> bool:
        """Whether anything stays."""
        if header.codec is Codec.NONE:
            cleaned = self._cleaned(batch, 0)
            if cleaned.end_position == 0:
                raise CorruptRecordError("the records of a batch are not framed well")
            return self._write(cleaned.data)
        level = self._plan.config.compression_level(header.codec)
        left = clean_compressed(batch, header, self._plan.offset_map, self._rule, level, self._on_io)
        self._stats.cleaned_record_count += header.records_count
        self._count_records(left.records)
        if not left.batch:
            return self._write_emptied(header)
        if left.records.tombstone_count and left.horizon_ms is not None:
            self._note_horizon(left.horizon_ms, is_new=header.delete_horizon_ms is None)
        return self._write(left.batch)

    def _note_horizon(self, horizon_ms: int, *, is_new: bool) -> None:
        """Something stays that goes at that time; where that was before the clean, it is not the clean's."""
        if is_new or horizon_ms > self._plan.now_ms:
            self.horizons.note(horizon_ms, horizon_ms)

    def _clean_marker(self, batch: Buffer, header: BatchHeader) -> None:
        marker, horizon_ms = EndTransactionMarker.read(batch, 0, header), header.delete_horizon_ms
        if marker is None and header.records_count > 0:
            # Of some other kind.
            self._write(batch)
            return
        is_data_kept = self._transactions.on_marker(header.producer_id)
        tells_epoch = marker is not None and is_kept_epoch(self._rule.kept_epochs, header)
        if is_data_kept is not None or tells_epoch:
            self._write(batch)
            if is_data_kept is False and not tells_epoch:
                self.horizons.note_waiting_marker()
        elif marker is not None and horizon_ms is None:
            self._write(with_horizon(batch, header, self._rule.horizon_ms))
            self._note_horizon(self._rule.horizon_ms, is_new=True)
        elif marker is not None and horizon_ms is not None and horizon_ms > self._plan.now_ms:
            self._write(batch)
            self._note_horizon(horizon_ms, is_new=False)
        else:
            self._stats.dropped_marker_count += marker is not None
            if marker is not None and marker.control_type is ControlType.ABORT:
                self._dropped_aborts.add(header.last_offset)
            self._write_emptied(header)

    def _write_emptied(self, header: BatchHeader) -> bool:
        """The batch has no records any more: it goes, or stays for what its header says; whether it stays."""
        return _is_in(self._rule.kept_empty, header.last_offset) and self._write(emptied(header))

    def _write(self, batches: Buffer) -> bool:
        """Whether there is anything."""
        if not batches:
            return False
        self._on_io(len(batches))
        writer = self._writers[-1]
        if not writer.has_room(len(batches), self._plan.config.segment_index_bytes):
            # Where the one before it ends: segments tile.
            self._begin(writer.next_offset)
        self._writers[-1].write(batches)
        return True

    def _count_records(self, cleaned: CleanedBatches | CleanedRecords) -> None:
        self._stats.kept_record_count += cleaned.records_kept
        self._stats.null_key_count += cleaned.null_key_count
        self._stats.dropped_tombstone_count += cleaned.dropped_tombstone_count


def _is_in(ascending: Sequence[int], offset: int) -> bool:
    at = bisect_left(ascending, offset)
    return at < len(ascending) and ascending[at] == offset


def _last_batch(segment: LogSegment) -> LocatedBatch:
    """Raises CorruptRecordError, OSError."""
    floor = segment.indexes().offset_index.last
    *_, last = segment.batches(0 if floor is None else floor.position)
    return last
