"""The first pass of a clean: finds the last offset of each key of the dirty part.

A kernel puts the batches of a window into the map with one call, and leaves compressed ones to this class. A
full map ends the pass: it then covers the log up to an offset, and the clean ends there.
"""

from __future__ import annotations

from stratalog.base.errors import CorruptRecordError
from stratalog.cleaner.clean.aborted_index import AbortedIndex
from stratalog.cleaner.clean.batch_window import BatchWindow
from stratalog.cleaner.clean.clean_result import CleanStats
from stratalog.cleaner.clean.rebuilt_batch import is_compressed
from stratalog.log.exchange.cleaned_segment import OnRead
from stratalog.log.log_segments import LogSegments
from stratalog.record.batch import require_crc
from stratalog.record.header import BatchHeader
from stratalog.record.native.aborted_spans import AbortedSpans
from stratalog.record.native.offset_map import OffsetMap
from stratalog.record.reading.record_sections import RecordSections
from stratalog.segment.log_segment import LogSegment


class MapBuilder:
    """Fills a map, once. Not thread-safe: guarded by its user."""

    def __init__(
        self,
        offset_map: OffsetMap,
        aborted: AbortedIndex,
        first_offset: int,
        stop_offset: int,
        stats: CleanStats,
        on_read: OnRead,
        window_bytes: int,
    ) -> None:
        """Only keys of records in [first_offset, stop_offset) go into the map."""
        self._map = offset_map
        self._aborted = aborted
        self._first_offset = first_offset
        self._stop_offset = stop_offset
        self._stats = stats
        self._on_read = on_read
        self._buffer = bytearray(window_bytes)
        self._spans = AbortedSpans()

    def build(self, segments: LogSegments) -> int:
        """Fill the map and return the exclusive end of the offsets that it covers.

        Raises CorruptRecordError, OSError (FileNotFoundError if a segment was dropped).
        """
        for segment in segments.since(self._first_offset):
            if segment.base_offset >= self._stop_offset or self._map.is_full:
                break
            self._put_segment(segment)
        if not self._map.is_full:
            # After the last batch there is a hole, or nothing.
            self._map.skip_to(self._stop_offset - 1)
        return self._map.latest_offset + 1

    def _put_segment(self, segment: LogSegment) -> None:
        position = segment.position_of(max(self._first_offset, segment.base_offset))
        if position is None:
            return
        with segment.lend() as file:
            window = BatchWindow(segment, file, position, self._read, self._buffer)
            while not self._map.is_full and window.has_batch():
                if window.is_new:
                    window.is_new = False
                    start_offset = window.header().base_offset
                    self._spans = self._aborted.between(start_offset, window.end_offset)
                header = window.header()
                if is_compressed(header) or not self._put_plain(window):
                    if header.base_offset >= self._stop_offset:
                        return
                    self._put_batch(window, header)

    def _read(self, size_bytes: int) -> None:
        self._stats.mapped_bytes += size_bytes
        self._on_read(size_bytes)

    def _put_plain(self, window: BatchWindow) -> bool:
        """Put the batches that a kernel takes into the map. False if it took none and the map is not full."""
        end_position, next_offset = self._map.put_batches(
            window.data, window.at, self._first_offset, self._stop_offset, self._spans.values
        )
        if end_position == window.at:
            return self._map.is_full
        window.move_to(end_position, next_offset)
        return True

    def _put_batch(self, window: BatchWindow, header: BatchHeader) -> None:
        batch = window.batch(header)
        try:
            require_crc(batch, 0, header)
            if not (header.is_control or header.is_bare or self._spans.has(header)):
                self._put_records(batch, header)
        except CorruptRecordError as failure:
            raise window.damaged(failure.message) from failure
        if not self._map.is_full:
            self._map.skip_to(header.last_offset)
            window.pass_by(header)

    def _put_records(self, batch: memoryview, header: BatchHeader) -> None:
        rule = self._map.rule
        versions = None if rule is None else rule.of_batch(header)
        for section, count in RecordSections(batch, header):
            # Only asks whether to go on: nothing is read.
            self._on_read(1)
            self._map.put_records(
                section, count, header.base_offset, self._first_offset, header.last_offset_delta, versions
            )
            if self._map.is_full:
                break
