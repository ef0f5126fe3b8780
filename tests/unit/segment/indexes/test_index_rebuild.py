"""Indexes that are made again from the data: the next look-up finds what was there before."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stratalog.record.builder import NO_LEADER_EPOCH, encode_batch
from stratalog.record.native.batch_row import AppendedBatch
from stratalog.record.record import Record
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_extent import SegmentExtent
from stratalog.segment.segment_resources import SegmentResources
from stratalog.testing.memory_filesystem import MemoryFileSystem

INDEX_PATH = "/d/00000000000000000100.index"
TIME_INDEX_PATH = "/d/00000000000000000100.timeindex"


def sealed(disk: MemoryFileSystem, times_ms: list[int], interval_bytes: int) -> LogSegment:
    """A segment with a batch of two records for each time."""
    disk.make_directories("/d")
    resources = SegmentResources.over(disk)
    segment = LogSegment.create(resources, "/d", 100, created_ms=0, index_interval_bytes=interval_bytes)
    for time_ms in times_ms:
        offset = segment.end_offset
        data = encode_batch([Record(0, time_ms, None, b"v")] * 2, base_offset=offset)
        segment.append([data], [AppendedBatch(len(data), offset, offset + 1, time_ms, NO_LEADER_EPOCH)])
    segment.save_indexes()
    segment.seal()
    return segment


@pytest.mark.parametrize("interval_bytes", [0, 200, 10**6])
@pytest.mark.parametrize(
    ("times_ms", "newest"),
    [
        (range(50, 80), (79, 159)),
        # The newest one has an entry of its own, or none, as the interval has it.
        ([*range(50, 70), *range(50, 60)], (69, 139)),
        ([*range(50, 79), 79, 79], (79, 159)),
        ([7], (7, 101)),
        ([-1, -1], (-1, -1)),
    ],
)
@pytest.mark.parametrize("lost", [[INDEX_PATH], [TIME_INDEX_PATH], [INDEX_PATH, TIME_INDEX_PATH]])
def test_the_highest_time_is_known_right_after_it(
    times_ms: list[int], newest: tuple[int, int], interval_bytes: int, lost: list[str]
) -> None:
    disk = MemoryFileSystem()
    segment = sealed(disk, list(times_ms), interval_bytes)
    before = {path: disk.read_file(path) for path in (INDEX_PATH, TIME_INDEX_PATH)}
    found = LogSegment(
        SegmentResources.over(disk),
        "/d",
        SegmentExtent(segment.base_offset, segment.end_offset, segment.size_bytes),
        created_ms=0,
        index_interval_bytes=interval_bytes,
        indexes=None,
    )
    for path in lost:
        disk.unlink(path)
    assert found.max_timestamp() == segment.max_timestamp() == newest
    assert {path: disk.read_file(path) for path in before} == before
    entries = list(found.indexes().time_index)
    assert all(first.timestamp_ms < second.timestamp_ms for first, second in pairwise(entries))
    found.check()
