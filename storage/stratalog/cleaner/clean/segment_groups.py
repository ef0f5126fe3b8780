"""Groups the segments that a clean copies into one: neighbours that are small enough together.

A segment that is cleaned again and again would shrink to nothing, and a log would get thousands of such
segments. So as many as fit are copied into one. Their sizes before the clean decide: they are an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.segment.log_segment import LogSegment

SegmentGroup = tuple[LogSegment, ...]


def group_segments(
    segments: Iterable[LogSegment], max_bytes: int, max_index_bytes: int
) -> list[SegmentGroup]:
    """Groups of neighbours that fit into one segment: at most `max_bytes` of data and `max_index_bytes` of
    each index, and offsets that an index can hold as distances from the first. A larger segment is a group by
    itself.

    Each group ends with a segment that has a batch. Empty segments, which a broker's cleaner leaves, join the
    next segment that is not empty, or stay. Raises CorruptRecordError, OSError.
    """
    groups: list[list[LogSegment]] = []
    empty: list[LogSegment] = []
    size_bytes = offset_index_bytes = time_index_bytes = 0
    for segment in segments:
        if segment.size_bytes == 0:
            empty.append(segment)
            continue
        indexes = segment.indexes()
        size_bytes += segment.size_bytes
        offset_index_bytes += indexes.offset_index.size_bytes
        time_index_bytes += indexes.time_index.size_bytes
        if (
            not groups
            or max(offset_index_bytes, time_index_bytes) > max_index_bytes
            or size_bytes > max_bytes
            or not groups[-1][0].fits(segment.end_offset - 1)
        ):
            groups.append([])
            empty = [before for before in empty if before.fits(segment.end_offset - 1)]
            size_bytes = segment.size_bytes
            offset_index_bytes = indexes.offset_index.size_bytes
            time_index_bytes = indexes.time_index.size_bytes
        groups[-1] += [*empty, segment]
        empty = []
    return [tuple(group) for group in groups]
