"""When a log is due for the sake of its tombstones and markers, found out from the headers of its batches.

For a log that was cleaned by a process which has not noted it: a broker, or one whose note was lost.
Headers say from when on something of a batch goes, but not whether it has gone already: one clean too many
may follow, which knows better.
"""

from __future__ import annotations

from stratalog.cleaner.header_walk import headers_of
from stratalog.cleaner.kept_horizons import KeptHorizons
from stratalog.log.cleaned_segment import OnRead
from stratalog.log.unified_log import UnifiedLog


def find_horizons(log: UnifiedLog, end_offset: int, now_ms: int, on_read: OnRead) -> KeptHorizons:
    """What is noted in the batches below `end_offset`. `on_read` is told how many bytes were read, about, and
    may raise.

    Raises CorruptRecordError, OSError (FileNotFoundError where a segment was dropped meanwhile).
    """
    found = KeptHorizons(now_ms)
    with_data: set[int] = set()
    for segment in log.local_segments:
        if segment.base_offset >= end_offset:
            break
        for header in headers_of(segment, on_read, end_offset):
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
