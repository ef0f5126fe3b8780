"""Reads the headers of batches for a clean, where records are not needed.

The time of the next clean is read from headers if its last clean did not record it, because a broker made the
clean or the checkpoint was lost. A header gives the horizon of a batch, but not whether its tombstones are
gone already. So one clean too many may follow, which then records the right horizon.

Some transactions begin in segments that are no longer cleaned, because their records are deleted. Their data
is there until retention drops these segments, so their markers further up must stay: a recovery rebuilds the
producers from the first batch on. Only a clean after that finds no data of them. No clean is made for such a
marker alone; it waits for the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from stratalog.cleaner.clean.kept_horizons import KeptHorizons
from stratalog.log.exchange.cleaned_segment import OnRead
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.header import MAX_OFFSET, BatchHeader
from stratalog.record.native.offset_map import OpenTransactions
from stratalog.segment.log_segment import LogSegment

_LOOK_BYTES = 16 * 1024
"""The most that is read for one header."""
_STEP_BYTES = 1 << 20


def find_horizons(log: UnifiedLog, end_offset: int, now_ms: int, on_read: OnRead) -> KeptHorizons:
    """Find the horizons in the batches below `end_offset`. `on_read` gets the approximate number of read
    bytes, and may raise.

    Raises CorruptRecordError, OSError (FileNotFoundError if a segment was dropped meanwhile).
    """
    found = KeptHorizons(now_ms)
    with_data: set[int] = set()
    for segment in log.local_log.segments:
        if segment.base_offset >= end_offset:
            break
        for header in _headers_of(segment, on_read, end_offset):
            horizon_ms = header.delete_horizon_ms
            has_data = header.producer_id in with_data
            if header.is_control:
                with_data.discard(header.producer_id)
            elif header.is_transactional:
                with_data.add(header.producer_id)
            if header.records_count == 0 or (header.is_control and has_data):
                continue
            if horizon_ms is not None:
                found.note(horizon_ms, horizon_ms)
            elif header.is_control:
                found.note_waiting_marker()
    return found


def transactions_open_behind(segments: Iterable[LogSegment], on_read: OnRead) -> OpenTransactions:
    """Find the transactions that have data in these segments, the log's first ones, but no marker there; all
    count as kept. Reads headers only. `on_read` gets the approximate number of read bytes, and may raise.

    Raises CorruptRecordError, OSError.
    """
    found = OpenTransactions()
    for segment in segments:
        # Retention may have dropped it: its data is gone then.
        with suppress(FileNotFoundError):
            for header in _headers_of(segment, on_read):
                if header.is_control:
                    found.on_marker(header.producer_id)
                elif header.is_transactional:
                    found.on_data(header.producer_id, is_kept=True)
    return found


def _headers_of(segment: LogSegment, on_read: OnRead, end_offset: int = MAX_OFFSET) -> Iterator[BatchHeader]:
    """Yield the headers of the batches that begin below `end_offset`. `on_read` gets the approximate number
    of read bytes, and may raise.

    Raises CorruptRecordError, OSError (FileNotFoundError if the segment was dropped meanwhile).
    """
    read_bytes = 0
    for _, header in segment.batches():
        if header.base_offset >= end_offset:
            break
        read_bytes += min(header.size_in_bytes, _LOOK_BYTES)
        if read_bytes >= _STEP_BYTES:
            on_read(read_bytes)
            read_bytes = 0
        yield header
    if read_bytes:
        on_read(read_bytes)
