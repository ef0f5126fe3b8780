"""What the headers of batches say, for who asks nothing of their records: read within a clean's bounds.

When a log is due for the sake of its tombstones and markers is asked of one that was cleaned by a process
which has not noted it: a broker, or one whose note was lost. Headers say from when on something of a batch
goes, but not whether it has gone already: one clean too many may follow, which knows better.

Transactions may have begun in segments which are not cleaned any more, because their records are deleted.
Until retention drops these segments their data is there, so the markers further up have to stay: whoever
opens the log makes its producers anew from the first batch on. Retention drops them when it comes by, and no
clean before that finds anything else: so none is made for the sake of such a marker, which waits for one that
is made anyway.
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
"""What is read for a header, at most."""
_STEP_BYTES = 1 << 20


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
    """Those that have data in the segments, which are the log's first ones, and no marker; as such of which
    something stays. Only headers are looked at. `on_read` is told how many bytes were read, about, and may
    raise.

    Raises CorruptRecordError, OSError.
    """
    found = OpenTransactions()
    for segment in segments:
        # Where retention was quicker, nothing of it is left.
        with suppress(FileNotFoundError):
            for header in _headers_of(segment, on_read):
                if header.is_control:
                    found.on_marker(header.producer_id)
                elif header.is_transactional:
                    found.on_data(header.producer_id, is_kept=True)
    return found


def _headers_of(segment: LogSegment, on_read: OnRead, end_offset: int = MAX_OFFSET) -> Iterator[BatchHeader]:
    """Those of the batches that begin below `end_offset`. `on_read` is told how many bytes were read, about,
    and may raise.

    Raises CorruptRecordError, OSError (FileNotFoundError where the segment was dropped meanwhile).
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
