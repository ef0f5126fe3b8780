"""How many of the oldest segments a rule lets go. Pure functions over a log's segments, oldest first.

Every rule speaks of a run from the beginning: a segment that must stay keeps all behind it. The guards are
Kafka's: nothing at or above the high watermark goes, and neither does an empty active segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from stratalog.log.log_config import UNLIMITED
from stratalog.segment.log_segment import LogSegment


def run_length(segments: Sequence[LogSegment], is_dropped: Callable[[LogSegment], bool]) -> int:
    """How many segments from the beginning on are dropped."""
    return sum(1 for _ in takewhile(is_dropped, segments))


def below_offset(segments: Sequence[LogSegment], end_offset: int) -> int:
    """Segments all of whose offsets are below `end_offset`; an empty active one never is."""
    return run_length(segments, lambda segment: segment.size_bytes > 0 and segment.end_offset <= end_offset)


def beyond_size(segments: Sequence[LogSegment], retention_bytes: int) -> int:
    """Segments without which the log still has at least `retention_bytes`."""
    if retention_bytes == UNLIMITED:
        return 0
    excess_bytes = sum(segment.size_bytes for segment in segments) - retention_bytes
    count = 0
    for segment in segments:
        excess_bytes -= segment.size_bytes
        if excess_bytes < 0:
            break
        count += 1
    return count


def beyond_age(
    segments: Sequence[LogSegment], retention_ms: int, newest_ms: Callable[[LogSegment], int], now_ms: int
) -> int:
    """Segments whose newest record is older than `retention_ms`. One that claims to be of the future
    stays."""
    if retention_ms == UNLIMITED:
        return 0
    return run_length(segments, lambda segment: now_ms - newest_ms(segment) > retention_ms)
