"""The headers of a segment's batches, for who asks nothing of their records: read within a clean's bounds."""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.log.cleaned_segment import OnRead
from stratalog.record.header import MAX_OFFSET, BatchHeader
from stratalog.segment.log_segment import LogSegment

_LOOK_BYTES = 16 * 1024
"""What is read for a header, at most."""
_STEP_BYTES = 1 << 20


def headers_of(segment: LogSegment, on_read: OnRead, end_offset: int = MAX_OFFSET) -> Iterator[BatchHeader]:
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
