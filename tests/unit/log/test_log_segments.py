"""A log's segments at one moment, against a scan of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.log.log_segments import LogSegments
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_resources import SegmentResources
from stratalog.testing.memory_filesystem import MemoryFileSystem


@given(st.sets(st.integers(0, 60), min_size=1), st.integers(0, 70))
def test_look_ups_find_what_a_scan_finds(base_offsets: set[int], offset: int) -> None:
    disk = MemoryFileSystem()
    disk.make_directories("/log")
    resources = SegmentResources.over(disk)
    segments = LogSegments(
        LogSegment.create(resources, "/log", base_offset, created_ms=0, index_interval_bytes=4096)
        for base_offset in sorted(base_offsets)
    )
    found = segments.with_base_offset(offset)
    assert (None if found is None else found.base_offset) == (offset if offset in base_offsets else None)
    if offset >= min(base_offsets):
        below = [base_offset for base_offset in base_offsets if base_offset <= offset]
        since = [segment.base_offset for segment in segments.since(offset)]
        assert since == sorted(base_offsets - set(below) | {max(below)})
    assert (segments.start_offset, segments.end_offset) == (min(base_offsets), max(base_offsets))
    assert (*segments.sealed, segments.active) == segments
