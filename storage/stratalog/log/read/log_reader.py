"""Reads a log while other threads change it.

No method takes a lock, unless a file is missing. Each takes the list of segments once, which is a snapshot,
and answers from it; if a segment is dropped meanwhile, it repeats the read. Entries of index files are
compared with the data, and a wrong index is made again, so a damaged index does no harm.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import islice
from operator import attrgetter

from stratalog.base.errors import CorruptRecordError
from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.log.log_parts import LogParts
from stratalog.log.log_segments import LogSegments
from stratalog.log.read import time_lookup
from stratalog.log.read.segment_info import (
    SegmentInfo,
    SegmentSource,
    describe_segment,
    tail_sources,
    upload_sources,
)
from stratalog.record.header import HEADER_SIZE, BatchHeader, parse_header
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.split_batch import SplitBatch
from stratalog.segment.timestamp_offset import TimestampOffset


class LogReader:
    """Reads a log. Thread-safe: it changes nothing."""

    def __init__(self, parts: LogParts) -> None:
        self._local = parts.local_log
        self._offsets = parts.offsets
        self._availability = parts.availability

    def read(
        self,
        offset: int,
        max_bytes: int,
        isolation: Isolation = Isolation.HIGH_WATERMARK,
        *,
        min_one_message: bool = True,
    ) -> FetchData:
        """Read whole batches from the first one that ends at or above `offset`, up to the end for
        `isolation`.

        Reads at most `max_bytes`; with `min_one_message` also a larger first batch. Compares checksums.
        Raises OffsetOutOfRangeError below `local_log_start_offset` or above `log_end_offset`,
        CorruptRecordError, DataDirectoryError.
        """

        def read_once() -> FetchData:
            # The end comes first: a later list of segments has the markers of all transactions below it.
            limit = self._offsets.end_offset(isolation)
            # The whole read uses one list of segments: a newer one may have lost or gained some.
            segments = self._local.segments
            log_end_offset = segments[-1].end_offset
            if (
                not (self._offsets.log_start_offset <= offset <= log_end_offset)
                or offset < segments[0].base_offset
            ):
                raise self._offsets.out_of_range(offset)
            end = min(limit, log_end_offset)
            if offset >= end:
                return FetchData((), offset)
            data = self._local.read(
                segments,
                offset,
                max_bytes,
                end_offset=end,
                min_one=min_one_message,
                epoch_at=self._offsets.epoch_at,
            )
            if isolation is not Isolation.TXN_COMMITTED or not data.chunks:
                return data
            aborted = segments.aborted_in(offset, data.next_offset)
            return data._replace(aborted_transactions=aborted) if aborted else data

        return self._availability.reading(read_once)

    def read_recent(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData | None:
        """Like `read`, but from memory alone: it does not block. None if it takes a file, or if there is
        nothing to read."""
        bounds = self._bounds_at_once(offset, isolation)
        if bounds is None:
            return None
        _, end_offset = bounds
        return self._local.read_tail(offset, max_bytes, end_offset=end_offset, min_one=min_one_message)

    def read_cached(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData | None:
        """Like `read`, but from files that the system has in memory, and only behind the end of another read:
        it does not wait for the disk. None if it cannot, also for a reason that `read` raises. It compares
        checksums, so it takes time for each byte."""
        bounds = self._bounds_at_once(offset, isolation)
        if bounds is None:
            return None
        segments, end_offset = bounds
        try:
            data = self._local.read_cached(
                segments,
                offset,
                max_bytes,
                end_offset=min(end_offset, segments[-1].end_offset),
                min_one=min_one_message,
                epoch_at=self._offsets.epoch_at,
            )
        except (CorruptRecordError, OSError):
            # The read on a thread finds it, too, and handles it.
            return None
        # As for `read`: the files of a log that was closed meanwhile may belong to another one.
        return None if self._availability.is_closed else data

    def _bounds_at_once(self, offset: int, isolation: Isolation) -> tuple[LogSegments, int] | None:
        """The segments and the end of a read that does not block; None if there is none, or nothing to
        read."""
        if self._availability.is_closed or self._availability.health.reason is not None:
            return None
        # As for `read`, the end comes first.
        end_offset = self._offsets.end_offset(isolation)
        segments = self._local.segments
        start_offset = max(self._offsets.log_start_offset, segments.start_offset)
        if not start_offset <= offset < min(end_offset, segments.end_offset):
            return None
        if isolation is Isolation.TXN_COMMITTED and segments.has_aborted:
            return None
        return segments, end_offset

    def aborted_transactions(self, start_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions with records in [start_offset, end_offset) and markers on this disk, in
        the order of the markers. The records may be in the object store only.

        Raises CorruptRecordError, DataDirectoryError.
        """

        def find() -> tuple[AbortedTransaction, ...]:
            segments = self._local.segments
            return segments.aborted_in(max(start_offset, segments.start_offset), end_offset)

        return self._availability.reading(find)

    def offset_for_timestamp(
        self, timestamp_ms: int, isolation: Isolation = Isolation.HIGH_WATERMARK
    ) -> TimestampOffset | None:
        """The first local record with that timestamp or a later one, in offset order; markers count.

        Raises CorruptRecordError, DataDirectoryError.
        """
        return self._availability.reading(
            lambda: time_lookup.first_at_or_after(
                self._local.segments,
                timestamp_ms,
                self._offsets.local_log_start_offset,
                self._offsets.end_offset(isolation),
            )
        )

    def max_timestamp(self, isolation: Isolation = Isolation.HIGH_WATERMARK) -> TimestampOffset | None:
        """The first of the local records that have the highest timestamp; markers count.

        Raises CorruptRecordError, DataDirectoryError.
        """
        return self._availability.reading(
            lambda: time_lookup.newest(
                self._local.segments,
                self._offsets.local_log_start_offset,
                self._offsets.end_offset(isolation),
            )
        )

    def end_without(self, offset: int) -> int:
        """The log's end without the batches that end at or above `offset`: that offset, or the base offset of
        a batch that contains it. Raises as `header_at` does."""
        header = self.header_at(offset)
        return offset if header is None else min(offset, header.base_offset)

    def header_at(self, offset: int) -> BatchHeader | None:
        """The header of the first batch that ends at or above `offset`, or None.

        Does not compare the checksum, which covers neither offsets nor epoch: the header of a batch with
        damaged records is still valid. Raises OffsetOutOfRangeError outside of the local log,
        CorruptRecordError if a header cannot be read, DataDirectoryError.
        """

        def find() -> BatchHeader | None:
            segments = self._local.segments
            if not segments.start_offset <= offset <= segments.end_offset:
                raise self._offsets.out_of_range(offset)
            for segment in segments.since(offset):
                position = segment.position_of(offset)
                if position is not None:
                    return parse_header(segment.read_bytes(position, HEADER_SIZE))
            return None

        return self._availability.reading(find)

    def segments(
        self,
        proven_end_offset: int = 0,
        *,
        begin_offset: int = 0,
        max_count: int | None = None,
        on_segment: Callable[[], None] = lambda: None,
    ) -> tuple[SegmentInfo, ...]:
        """The local segments with base offsets from `begin_offset` on, oldest first, at most `max_count`. For
        those that begin below `proven_end_offset`, checksums prove the highest timestamp. Calls `on_segment`
        before each of them, which may be read, and behind each read that proves one. Raises
        DataDirectoryError."""

        def described(segment: LogSegment) -> SegmentInfo:
            on_segment()
            return describe_segment(
                segment, is_proven=segment.base_offset < proven_end_offset, on_read=on_segment
            )

        def describe() -> tuple[SegmentInfo, ...]:
            segments = self._local.segments
            first = bisect_left(segments, begin_offset, key=attrgetter("base_offset"))
            end = None if max_count is None else first + max_count
            return tuple(map(described, islice(segments, first, end)))

        return self._availability.reading(describe)

    @property
    def tail_since_ms(self) -> int | None:
        """Wall time since which the active segment has had records; None while it is empty."""
        active = self._local.segments.active
        return active.first_append_ms if active.size_bytes else None

    def upload_candidates(self, from_offset: int) -> tuple[SegmentSource, ...]:
        """The segments to copy to the object store, at or above `from_offset`: sealed, fsynced, and below the
        last stable offset.

        They tile, from `from_offset` or the log's start on, whichever is higher. Raises CorruptRecordError,
        DataDirectoryError.
        """

        return self._availability.reading(
            lambda: upload_sources(
                self._local.segments.sealed,
                max(from_offset, self._offsets.local_log_start_offset),
                min(self._offsets.last_stable_offset, self._offsets.recovery_point),
            )
        )

    def tail_candidates(self, from_offset: int) -> tuple[SegmentSource, ...]:
        """All that is fsynced at or above `from_offset`, to copy to the object store at once: also in the
        active segment, and records of open transactions. They tile as those of `upload_candidates`.

        Raises CorruptRecordError, DataDirectoryError.
        """

        def find() -> tuple[SegmentSource, ...]:
            # The end comes first: a later list of segments has everything below it.
            end_offset = self._offsets.recovery_point
            first_offset = max(from_offset, self._offsets.local_log_start_offset)
            return tail_sources(self._local.segments, first_offset, end_offset)

        return self._availability.reading(find)

    def prove_headers(self, source: SegmentSource, check: Callable[[], None]) -> None:
        """Compare the headers of all batches of the source's segment with its seal, the batches before the
        source included. Calls `check` before each read of the file.

        Raises the errors of `check`, CorruptRecordError if they differ, OffsetOutOfRangeError if the segment
        has been dropped, DataDirectoryError.
        """
        self._availability.reading(lambda: self._segment_of(source).prove_headers(check))

    def read_segment(self, source: SegmentSource, position: int, size: int) -> bytes:
        """Bytes [position, position + size) of the segment file, up to the end of the source.

        Raises OffsetOutOfRangeError if the segment has been dropped, DataDirectoryError.
        """
        end_position = source.first_position + source.size_bytes
        assert source.first_position <= position <= end_position

        def read() -> bytes:
            return self._segment_of(source).read_bytes(position, min(size, end_position - position))

        return self._availability.reading(read)

    def recent_batches(
        self, source: SegmentSource, offset: int, position: int, size: int
    ) -> memoryview | SplitBatch | None:
        """Whole batches of the source from memory, at most `size` bytes from `position` on, where the first
        batch lies that ends at or above `offset`. They were proved when they were appended. None if they are
        not in memory, or the log takes no changes."""
        if self._availability.refusal() is not None:
            return None
        segment = self._local.segments.with_base_offset(source.segment_base_offset)
        left_bytes = source.first_position + source.size_bytes - position
        if segment is None:
            return None
        return self._local.tail.batches_at(segment, offset, position, min(size, left_bytes))

    def _segment_of(self, source: SegmentSource) -> LogSegment:
        segment = self._local.segments.with_base_offset(source.segment_base_offset)
        if segment is None:
            raise self._offsets.out_of_range(source.base_offset)
        return segment
