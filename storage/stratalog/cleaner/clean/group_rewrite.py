"""The second pass of a clean: writes the kept batches of a group of segments into new segments.
docs/cleaning.md says what a clean keeps ("What a clean keeps").

A kernel cleans the batches of a window with one call, as far as they are plain; `BatchRewrite` cleans the
others one by one. Batches at or above the end of the map are copied unchanged. Transactions are tracked
through the whole clean, in the order of offsets, because a transaction and its marker may lie in different
groups of segments. The last batch of the group stays even without records: segments tile after a clean as
before it, so that a hole between two of them always means lost data.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from contextlib import suppress
from itertools import zip_longest
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.cleaner.clean.aborted_index import AbortedIndex, entries_of
from stratalog.cleaner.clean.batch_rewrite import BatchRewrite
from stratalog.cleaner.clean.batch_window import BatchWindow
from stratalog.cleaner.clean.clean_result import CleanStats
from stratalog.cleaner.clean.kept_horizons import KeptHorizons
from stratalog.cleaner.clean.rebuilt_batch import is_compressed
from stratalog.cleaner.clean.segment_groups import SegmentGroup
from stratalog.cleaner.clean.segment_writer import SegmentWriter
from stratalog.log.exchange.cleaned_segment import CleanedSegment, OnRead
from stratalog.log.log_config import LogConfig
from stratalog.record.header import BatchHeader
from stratalog.record.native.batch_kernels import whole_batches
from stratalog.record.native.cleaned_batches import CleanedBatches, CleanRule
from stratalog.record.native.offset_map import OffsetMap, OpenTransactions, clean_batches
from stratalog.segment.batch_walk import LocatedBatch
from stratalog.segment.indexes.transaction_index import bytes_below, without_markers
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_resources import SegmentResources


class CleanPlan(NamedTuple):
    """The values that are the same for all groups of a clean."""

    offset_map: OffsetMap
    start_offset: int
    """The log start offset: records below it are deleted."""
    now_ms: int
    kept_empty: array[int]
    """Last offsets of batches that stay without records, ascending; typecode 'q'."""
    kept_epochs: array[int]
    """The epochs of `CleanRule.kept_epochs`; typecode 'q'."""
    config: LogConfig
    window_bytes: int
    """Bytes that are read at once."""

    @property
    def stop_offset(self) -> int:
        """The end of the offsets that the map covers, exclusive."""
        return self.offset_map.latest_offset + 1


class GroupRewrite:
    """Rewrites one group after the other, in the order of offsets. Not thread-safe: guarded by its user."""

    def __init__(
        self,
        resources: SegmentResources,
        directory: str,
        plan: CleanPlan,
        aborted: AbortedIndex,
        transactions: OpenTransactions,
        stats: CleanStats,
        on_io: OnRead,
    ) -> None:
        """`transactions` are those with data below the first group."""
        self._resources = resources
        self._directory = directory
        self._plan = plan
        self._aborted = aborted
        self._stats = stats
        self._on_io = on_io
        self._buffer = bytearray(plan.window_bytes)
        self._transactions = transactions
        self._batches = BatchRewrite(
            plan.offset_map, transactions, plan.start_offset, plan.config.compression_level, on_io
        )
        # Markers of aborted transactions that the current window has dropped.
        self._dropped_aborts: set[int] = set()
        # Transaction index entries with markers below this offset are copied, or dropped.
        self._kept_until = 0
        self._rule = CleanRule(plan.now_ms, 0, kept_epochs=plan.kept_epochs)
        self._writers: list[SegmentWriter] = []
        self.horizons = KeptHorizons(plan.now_ms)
        """Horizons of the tombstones and markers that the clean has kept so far."""

    def write(self, group: SegmentGroup, horizon_ms: int) -> list[CleanedSegment]:
        """Write the segments that will replace the group, and sync them. `horizon_ms` is the new delete
        horizon of tombstones and markers.

        Raises CorruptRecordError, OSError (FileNotFoundError if a segment was dropped), and the errors of
        `on_io`. The new segments are removed then, as far as the disk allows.
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
        """Remove the new segments, as far as the disk allows. The next process removes the rest."""
        for writer in self._writers:
            with suppress(OSError):
                writer.discard()

    def _kept_empty(self, group: SegmentGroup) -> array[int]:
        kept = array("q", self._plan.kept_empty)
        _, header = _last_batch(group[-1])
        place = bisect_left(kept, header.last_offset)
        if place == len(kept) or kept[place] != header.last_offset:
            kept.insert(place, header.last_offset)
        return kept

    def _keep_aborted(self, segment: LogSegment, end_offset: int) -> None:
        """Copy the segment's transaction index entries with kept markers, up to that offset."""
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
        # Batches that the map does not cover stay unchanged, even below the log's start.
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
                    spans = self._aborted.between(start_offset, window.end_offset)
                    self._rule = self._rule._replace(aborted=spans.values)
                header = window.header()
                is_row = header.base_offset >= odd_offset and not is_compressed(header)
                if header.base_offset < stop_offset and not is_row:
                    self._clean_one(window, header)
                elif not self._clean_row(window):
                    self._clean_odd(window, header)
        self._keep_aborted(segment, segment.end_offset)

    def _clean_row(self, window: BatchWindow) -> bool:
        """Clean the batches that a kernel takes; False if it takes none."""
        cleaned = clean_batches(window.data, window.at, self._plan.offset_map, self._rule, self._transactions)
        if cleaned.end_position == window.at:
            return False
        self._take(cleaned)
        window.move_to(cleaned.end_position, cleaned.next_offset)
        return True

    def _clean_odd(self, window: BatchWindow, header: BatchHeader) -> None:
        """Clean the next batch, which the kernel did not take; or copy batches above the end of the map."""
        if header.base_offset < self._plan.stop_offset:
            self._clean_one(window, header)
            return
        size_bytes, _ = whole_batches(memoryview(window.data)[window.at :])
        self._write(memoryview(window.data)[window.at : window.at + size_bytes])
        window.move_to(window.at + size_bytes, self._writers[-1].next_offset)

    def _clean_one(self, window: BatchWindow, header: BatchHeader) -> None:
        try:
            self._take(self._batches.rewrite(window.batch(header), header, self._rule))
        except CorruptRecordError as failure:
            raise window.damaged(failure.message) from failure
        window.pass_by(header)

    def _take(self, cleaned: CleanedBatches) -> None:
        stats = self._stats
        stats.cleaned_record_count += cleaned.records_in
        stats.kept_record_count += cleaned.records_kept
        stats.null_key_count += cleaned.null_key_count
        stats.aborted_record_count += cleaned.aborted_count
        stats.dropped_tombstone_count += cleaned.dropped_tombstone_count
        stats.dropped_marker_count += cleaned.dropped_marker_count
        self._dropped_aborts.update(cleaned.dropped_aborts)
        self.horizons.note(cleaned.earliest_horizon_ms, cleaned.latest_horizon_ms)
        if cleaned.has_waiting_marker:
            self.horizons.note_waiting_marker()
        self._write(cleaned.data)

    def _write(self, batches: Buffer) -> None:
        if not batches:
            return
        self._on_io(len(batches))
        writer = self._writers[-1]
        if not writer.has_room(len(batches), self._plan.config.segment_index_bytes):
            # The new segment begins at the end of the one before: segments tile.
            self._begin(writer.next_offset)
        self._writers[-1].write(batches)


def _last_batch(segment: LogSegment) -> LocatedBatch:
    """The last batch of the segment. Raises CorruptRecordError, OSError."""
    floor = segment.indexes().offset_index.last
    *_, last = segment.batches(0 if floor is None else floor.position)
    return last
