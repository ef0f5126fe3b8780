"""The indexes of an active segment, most of which are in files: damaged, cut, unwritable, read meanwhile."""

from __future__ import annotations

import errno

import pytest

from stratalog.record.builder import NO_LEADER_EPOCH, encode_batch
from stratalog.record.native.batch_row import AppendedBatch
from stratalog.record.record import Record
from stratalog.segment.indexes.index_page_cache import PAGE_BYTES
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_resources import SegmentResources
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.logs.crash_sweep import CrashSweep, Failure

BATCH_COUNT = 1200
INDEX_PATH = "/d/00000000000000000000.index"
TIME_INDEX_PATH = "/d/00000000000000000000.timeindex"


def append(segment: LogSegment, count: int) -> None:
    """Batches of one record each, all of them indexed, each a millisecond newer."""
    for offset in range(segment.end_offset, segment.end_offset + count):
        data = encode_batch([Record(0, 1000 + offset, None, b"v")], base_offset=offset)
        segment.append([data], [AppendedBatch(len(data), offset, offset, 1000 + offset, NO_LEADER_EPOCH)])


def filled(disk: FaultyFileSystem | None = None) -> tuple[FaultyFileSystem, LogSegment]:
    disk = FaultyFileSystem() if disk is None else disk
    disk.make_directories("/d")
    resources = SegmentResources.over(disk, index_cache_bytes=1)
    segment = LogSegment.create(resources, "/d", 0, created_ms=0, index_interval_bytes=0)
    append(segment, BATCH_COUNT)
    return disk, segment


def verify_look_ups(segment: LogSegment) -> None:
    batch_bytes = segment.size_bytes // segment.end_offset
    for offset in range(0, segment.end_offset, 97):
        assert segment.position_of(offset) == offset * batch_bytes
        assert next(iter(segment.rows_since(1000 + offset))).last_offset <= offset
    assert segment.max_timestamp().timestamp_ms == 1000 + segment.end_offset - 1


@pytest.mark.parametrize("path", [INDEX_PATH, TIME_INDEX_PATH])
@pytest.mark.parametrize("damage", ["missing", "shortened", "noise"])
def test_a_file_that_is_damaged_hides_nothing_and_is_made_again_once_sealed(path: str, damage: str) -> None:
    disk, segment = filled()
    assert disk.file_size(INDEX_PATH) == 2 * PAGE_BYTES
    verify_look_ups(segment)
    size_bytes = disk.file_size(path)
    file = disk.open_append(path)
    if damage == "missing":
        disk.unlink(path)
        segment.close()
    else:
        file.truncate(100)
    if damage == "noise":
        file.append([bytes(index * 7 % 128 for index in range(size_bytes - 100))])
    verify_look_ups(segment)
    append(segment, BATCH_COUNT)
    segment.save_indexes()
    segment.seal()
    verify_look_ups(segment)
    segment.check()
    _, whole = filled()
    append(whole, BATCH_COUNT)
    assert list(segment.indexes().offset_index) == list(whole.indexes().offset_index)


def test_truncation_cuts_the_files_and_later_batches_take_the_place() -> None:
    disk, segment = filled()
    kept = segment.before(700)
    kept.trim(durable=True)
    kept.cut_indexes()
    assert disk.file_size(INDEX_PATH) == PAGE_BYTES
    verify_look_ups(kept)
    append(kept, BATCH_COUNT - 700)
    kept.check()
    kept.save_indexes()
    saved = disk.inner.contents()
    other_disk, other = filled()
    other.save_indexes()
    assert saved == other_disk.inner.contents()


class Filling:
    """A segment that gets its batches on a disk that may be full for a moment."""

    segment: LogSegment

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()

    def fill(self) -> None:
        _, self.segment = filled(self.disk)


def test_an_index_that_cannot_be_written_fails_no_append() -> None:
    sweep = CrashSweep(Filling, Filling.fill)
    sweep.whole.segment.save_indexes()

    def verify(failure: Failure[Filling]) -> None:
        segment = failure.subject.segment
        assert failure.error is None
        assert segment.end_offset == BATCH_COUNT
        verify_look_ups(segment)
        segment.save_indexes()
        assert failure.subject.disk.inner.contents() == sweep.whole.disk.inner.contents()

    sweep.at_failures(
        verify, errors=[errno.ENOSPC], only=lambda name: name.split(" ")[1] in (INDEX_PATH, TIME_INDEX_PATH)
    )


def test_of_two_that_find_the_same_damage_one_makes_the_indexes_again() -> None:
    disk, segment = filled()
    segment.save_indexes()
    segment.seal()
    damaged = segment.indexes()
    first = segment.rebuild_indexes(damaged)
    before = disk.operation_count
    assert segment.rebuild_indexes(damaged) is first
    assert disk.operation_count == before


def test_a_reader_of_a_dropped_segment_leaves_no_file() -> None:
    disk, segment = filled()
    segment.save_indexes()
    segment.seal()
    reader = segment.batches()
    next(reader)
    segment.mark_deleted()
    segment.unlink_deleted()
    with pytest.raises(FileNotFoundError):
        segment.position_of(5)
    assert disk.list_directory("/d") == []
