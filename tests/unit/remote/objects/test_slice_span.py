"""The bound of a slice, and how rows of slices are divided by it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.log.log_config import LogConfig
from stratalog.remote.objects.slice_span import (
    UNBOUNDED,
    Extent,
    SliceSpan,
    effective_extents,
    slice_extent,
)
from tests.support.tiered.sample_entry import sample_entry

MIB = 1 << 20
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


@pytest.mark.parametrize(
    ("config", "max_ms", "max_bytes"),
    [
        ({"retention.ms": str(2 * DAY_MS)}, 6 * HOUR_MS, None),
        ({"retention.ms": str(16 * DAY_MS), "segment.ms": str(HOUR_MS)}, HOUR_MS, None),
        ({"retention.ms": "1000"}, 5 * MINUTE_MS, None),
        ({"retention.ms": "1000", "segment.ms": "7000"}, 7000, None),
        ({"retention.ms": str(DAY_MS), "segment.ms": "7000"}, 7000, None),
        ({"retention.ms": "-1"}, None, None),
        ({"retention.ms": "-1", "retention.bytes": str(80 * MIB)}, None, 10 * MIB),
        (
            {"retention.ms": "-1", "retention.bytes": str(80 * MIB), "segment.bytes": str(2 * MIB)},
            None,
            2 * MIB,
        ),
        ({"retention.ms": "-1", "retention.bytes": "0"}, None, MIB),
        ({"retention.ms": "-1", "retention.bytes": "100000", "segment.bytes": "50000"}, None, 50_000),
        ({"cleanup.policy": "compact", "retention.ms": "1000", "retention.bytes": "0"}, None, None),
        ({"cleanup.policy": "compact,delete", "retention.ms": str(8 * DAY_MS)}, DAY_MS, None),
    ],
)
def test_the_bound_of_a_topic(config: dict[str, str], max_ms: int | None, max_bytes: int | None) -> None:
    span = SliceSpan.of(LogConfig.from_overrides(config))
    assert span == SliceSpan(
        UNBOUNDED.max_ms if max_ms is None else max_ms,
        UNBOUNDED.max_bytes if max_bytes is None else max_bytes,
    )
    assert (span.is_bounded, span.has_time) == (span != UNBOUNDED, max_ms is not None)


def extents() -> st.SearchStrategy[list[Extent]]:
    one = st.tuples(st.integers(-1, 50), st.integers(0, 20), st.integers(0, 9))
    return st.lists(one.map(lambda row: Extent(row[0], row[0] + (row[1] if row[0] >= 0 else 0), row[2])))


@given(extents(), st.integers(0, 30), st.integers(0, 30), st.integers(-1, 20))
def test_parts_are_within_the_bound_and_as_long_as_that_allows(
    row: list[Extent], max_ms: int, max_bytes: int, before_ms: int
) -> None:
    span = SliceSpan(max_ms, max_bytes)
    effective = list(effective_extents(row, before_ms))
    counts = span.divide(effective)
    assert sum(counts) == len(row)
    ends = [0, *itertools.accumulate(counts)]
    for first, end in itertools.pairwise(ends):
        assert end - first == 1 or is_within(row, before_ms, first, end, span)
        assert end == len(row) or not is_within(row, before_ms, first, end + 1, span)


def is_within(row: list[Extent], before_ms: int, first: int, end: int, span: SliceSpan) -> bool:
    """By the definition: from the oldest effective time of a record to the newest one."""
    times_ms: list[int] = []
    newest_ms = max([before_ms, *(extent.newest_ms for extent in row[:first])])
    for extent in row[first:end]:
        times_ms.append(max(newest_ms, extent.oldest_ms))
        newest_ms = max(newest_ms, extent.newest_ms)
        times_ms.append(newest_ms)
    known_ms = [time_ms for time_ms in times_ms if time_ms >= 0] or [0]
    size_bytes = sum(extent.size_bytes for extent in row[first:end])
    return max(known_ms) - min(known_ms) <= span.max_ms and size_bytes <= span.max_bytes


def test_the_extent_of_a_slice() -> None:
    dated = sample_entry(0, 9, data_bytes=100, record_count=9, min_timestamp=5, max_timestamp=8)
    assert slice_extent(dated, 70) == Extent(5, 8, 100)
    partly = sample_entry(0, 9, data_bytes=100, record_count=9, min_timestamp=-1, max_timestamp=8)
    assert slice_extent(partly, 70) == Extent(8, 8, 100)
    undated = sample_entry(0, 9, data_bytes=100, record_count=9, min_timestamp=-1, max_timestamp=-1)
    assert slice_extent(undated, 70) == Extent(70, 70, 100)
    empty = sample_entry(0, 9, min_timestamp=-1, max_timestamp=-1)
    assert slice_extent(empty, 70) == Extent(-1, -1, 0)
