"""A log's segments at one moment, against a scan of them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.log.log_segments import LogSegments
from stratalog.segment.indexes.transaction_index import AbortedInRange, AbortedTransaction
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_resources import SegmentResources
from stratalog.testing.memory_filesystem import MemoryFileSystem

END_OFFSET = 70
OFFSETS = st.integers(0, END_OFFSET)


def created(base_offsets: Iterable[int]) -> list[LogSegment]:
    """Segments that tile, up to `END_OFFSET`."""
    disk = MemoryFileSystem()
    disk.make_directories("/log")
    resources, segments = SegmentResources.over(disk), list[LogSegment]()
    for base_offset in sorted(base_offsets):
        segment = LogSegment.create(resources, "/log", base_offset, created_ms=0, index_interval_bytes=4096)
        segment.end_offset = END_OFFSET
        if segments:
            segments[-1].end_offset = base_offset
        segments.append(segment)
    return segments


def transactions_of(spans: Iterable[tuple[int, int]]) -> list[AbortedTransaction]:
    """Aborted, each with a producer of its own, in the order of their markers."""
    ends = {last: first for first, last in spans if first < last < END_OFFSET}
    return [
        AbortedTransaction(last, first, last, min([last + 1, *(f for m, f in ends.items() if f < last < m)]))
        for last, first in sorted(ends.items())
    ]


def enter(segments: Iterable[LogSegment], transactions: Iterable[AbortedTransaction]) -> None:
    for segment in segments:
        for transaction in transactions:
            if segment.base_offset <= transaction.last_offset < segment.end_offset:
                segment.add_aborted(transaction)


@given(st.sets(st.integers(0, 60), min_size=1), OFFSETS)
def test_look_ups_find_what_a_scan_finds(base_offsets: set[int], offset: int) -> None:
    segments = LogSegments(created(base_offsets))
    found = segments.with_base_offset(offset)
    assert (None if found is None else found.base_offset) == (offset if offset in base_offsets else None)
    if offset >= min(base_offsets):
        below = [base_offset for base_offset in base_offsets if base_offset <= offset]
        since = [segment.base_offset for segment in segments.since(offset)]
        assert since == sorted(base_offsets - set(below) | {max(below)})
    assert (segments.start_offset, segments.end_offset) == (min(base_offsets), END_OFFSET)
    assert (*segments.sealed, segments.active) == segments


@given(
    base_offsets=st.sets(st.integers(1, 60)),
    spans=st.lists(st.tuples(OFFSETS, OFFSETS), max_size=8),
    start_offset=OFFSETS,
    end_offset=OFFSETS,
)
def test_aborted_transactions_are_those_of_all_entries(
    base_offsets: set[int], spans: list[tuple[int, int]], start_offset: int, end_offset: int
) -> None:
    """Another segment that has none is not even asked, nor one that ends below, or lies behind the answer."""
    listed, transactions = created(base_offsets | {0}), transactions_of(spans)
    enter(listed[:-1], transactions)
    taken_before = LogSegments(listed)
    enter(listed[-1:], transactions)
    touching = [one for one in transactions if one.last_offset >= start_offset]
    last = next((one.last_offset for one in touching if one.last_stable_offset >= end_offset), END_OFFSET)
    for segments in (taken_before, LogSegments(listed)):
        found, asked = look_up(segments, start_offset, end_offset)
        if start_offset < end_offset:
            assert found == tuple(one for one in touching if one.first_offset < end_offset)
        assert asked == [
            segment
            for segment in listed
            if segment is listed[-1] or (segment.has_aborted and segment.end_offset > start_offset)
            if segment.base_offset <= last
        ]


def look_up(
    segments: LogSegments, start_offset: int, end_offset: int
) -> tuple[tuple[AbortedTransaction, ...], list[LogSegment]]:
    """The result of a look-up, and the segments that were asked."""
    asked: list[LogSegment] = []

    def collect(segment: LogSegment, fetch_offset: int, upper_bound_offset: int) -> AbortedInRange:
        asked.append(segment)
        return collect_aborted(segment, fetch_offset, upper_bound_offset)

    collect_aborted = LogSegment.collect_aborted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogSegment, "collect_aborted", collect)
        return segments.aborted_in(start_offset, end_offset), asked
