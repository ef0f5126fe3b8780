"""Transactions that began in segments which are not cleaned any more, because their records are deleted.

Until retention drops these segments their data is there, so the markers further up have to stay: whoever
opens the log makes its producers anew from the first batch on. Retention drops them when it comes by, and no
clean before that finds anything else: so none is made for the sake of such a marker, which waits for one that
is made anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from stratalog.cleaner.header_walk import headers_of
from stratalog.log.cleaned_segment import OnRead
from stratalog.record.offset_map import OpenTransactions
from stratalog.segment.log_segment import LogSegment


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
            for header in headers_of(segment, on_read):
                if header.is_control:
                    found.on_marker(header.producer_id)
                elif header.is_transactional:
                    found.on_data(header.producer_id, is_kept=True)
    return found
