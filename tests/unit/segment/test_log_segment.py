"""One segment: reads by offset and by time whatever the indexes say, and appends that fail."""

from __future__ import annotations

import errno
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.record.builder import NO_LEADER_EPOCH, encode_batch
from stratalog.record.header import HEADER_SIZE, parse_header
from stratalog.record.native.batch_row import AppendedBatch
from stratalog.record.record import Record
from stratalog.segment.batch_read import EpochSpan, ReadBounds
from stratalog.segment.file_names import segment_path
from stratalog.segment.indexes.offset_index import OffsetIndex
from stratalog.segment.indexes.time_index import TimeIndex
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_extent import SegmentExtent
from stratalog.segment.segment_resources import SegmentResources
from stratalog.segment.segment_seal import SegmentSeal
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.crash_sweep import CrashSweep, Failure
from tests.support.logs.overwriting import overwrite

NO_LIMIT = 2**62


def bounds(end_offset: int = NO_LIMIT) -> ReadBounds:
    def any_epoch(offset: int) -> EpochSpan:
        return EpochSpan(-1, NO_LIMIT)

    return ReadBounds(0, end_offset, NO_LIMIT, any_epoch)


def new_segment(
    disk: FaultyFileSystem | MemoryFileSystem, base_offset: int = 0, interval_bytes: int = 100
) -> LogSegment:
    disk.make_directories("/d")
    resources = SegmentResources.over(disk)
    return LogSegment.create(resources, "/d", base_offset, created_ms=0, index_interval_bytes=interval_bytes)


def loaded(disk: MemoryFileSystem, segment: LogSegment) -> LogSegment:
    """The same segment, sealed, as another process finds it."""
    return LogSegment(
        SegmentResources.over(disk),
        "/d",
        SegmentExtent(segment.base_offset, segment.end_offset, segment.size_bytes),
        created_ms=0,
        index_interval_bytes=segment.index_interval_bytes,
        seal=SegmentSeal.read(disk, "/d", segment.base_offset),
    )


def append(segment: LogSegment, timestamps: list[int], base_offset: int | None = None) -> bytes:
    offset = segment.end_offset if base_offset is None else base_offset
    data = encode_batch([Record(0, time, b"k", b"v%d" % time) for time in timestamps], base_offset=offset)
    last_offset = offset + len(timestamps) - 1
    batch = AppendedBatch(len(data), offset, last_offset, max(timestamps), NO_LEADER_EPOCH)
    segment.append([data], [batch])
    return data


def test_reads_begin_with_the_batch_that_holds_the_offset() -> None:
    segment = new_segment(MemoryFileSystem(), 100)
    written = [append(segment, [10 + number] * 3) for number in range(20)]
    for offset in range(100, 160):
        position = segment.position_of(offset)
        assert position is not None
        assert position == sum(map(len, written[: (offset - 100) // 3]))
        data, next_offset, _ = segment.read(position, len(written[0]), bounds(), min_one=False)
        assert (data, next_offset) == (written[(offset - 100) // 3], offset - (offset - 100) % 3 + 3)
    assert segment.position_of(160) is None
    segment.check()


def test_a_first_batch_that_is_larger_than_the_limit_comes_alone_or_not_at_all() -> None:
    segment = new_segment(MemoryFileSystem())
    first, second = append(segment, [1] * 50), append(segment, [2])
    assert segment.read(0, 10, bounds(), min_one=True) == (first, 50, True)
    assert segment.read(0, 10, bounds(), min_one=False) == (b"", -1, False)
    assert segment.read(0, 10, bounds(49), min_one=True) == (b"", -1, False)
    assert segment.read(0, NO_LIMIT, bounds(), min_one=True) == (first + second, 51, False)


def test_a_cached_read_is_the_same_or_none() -> None:
    disk = MemoryFileSystem()
    segment = new_segment(disk)
    written = [append(segment, [10 + number] * 3000) for number in range(3)]
    size_bytes = len(written[0])
    segment.close()
    assert segment.read_cached(0, NO_LIMIT, bounds(), min_one=True) is None, "the file is not open"
    assert segment.read(0, NO_LIMIT, bounds(), min_one=True).next_offset == 9000
    for position in (0, size_bytes):
        for max_bytes in (10, size_bytes, size_bytes + 100, 2 * size_bytes, NO_LIMIT):
            for end_offset in (3000, 4000, 6000, NO_LIMIT):
                for min_one in (True, False):
                    arguments = position, max_bytes, bounds(end_offset)
                    cached = segment.read_cached(*arguments, min_one=min_one)
                    read = segment.read(*arguments, min_one=min_one)
                    if cached is None:
                        assert max_bytes == 10, "the first batch is larger than asked for"
                        assert min_one
                    else:
                        assert cached[:2] == read[:2]
    disk.has_cache = False
    assert segment.read_cached(0, NO_LIMIT, bounds(), min_one=True) is None


def test_a_read_says_whether_the_next_batch_had_no_room() -> None:
    disk = MemoryFileSystem()
    segment = new_segment(disk, interval_bytes=1_000_000)
    size_bytes = len(append(segment, [10] * 3000))
    for _ in range(2):
        append(segment, [10] * 3000)
    for max_bytes, end_offset, lacks_room in [
        (size_bytes + 100, NO_LIMIT, True),
        (2 * size_bytes - 1, NO_LIMIT, True),
        (2 * size_bytes + 100, NO_LIMIT, True),
        (3 * size_bytes, NO_LIMIT, False),
        # The reader may not see the next one, whatever room there is.
        (size_bytes + 100, 3000, False),
        (3 * size_bytes, 6000, False),
    ]:
        found = segment.read(0, max_bytes, bounds(end_offset), min_one=True)
        assert (found.lacks_room, max_bytes) == (lacks_room, max_bytes)
        assert len(found.data) == min(max_bytes // size_bytes, end_offset // 3000) * size_bytes


def test_a_view_of_a_read_holds_at_most_twice_its_bytes() -> None:
    segment = new_segment(MemoryFileSystem())
    small = append(segment, [10])
    append(segment, [10] * 3000)
    data = segment.read(0, len(small) + 20_000, bounds(), min_one=True).data
    assert data == small
    assert isinstance(data, bytes)


def test_holes_in_the_offsets_are_skipped() -> None:
    segment = new_segment(MemoryFileSystem())
    append(segment, [1, 1])
    second = append(segment, [1, 1], base_offset=50)
    assert segment.position_of(2) == segment.size_bytes - len(second)
    assert segment.position_of(51) == segment.size_bytes - len(second)


@given(
    timestamps=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=3), min_size=1, max_size=30),
    wanted=st.integers(0, 41),
)
def test_no_batch_that_is_new_enough_is_left_out_of_a_search_by_time(
    timestamps: list[list[int]], wanted: int
) -> None:
    segment = new_segment(MemoryFileSystem())
    for times in timestamps:
        append(segment, times)
    expected = [number for number, times in enumerate(timestamps) if max(times) >= wanted]
    for _ in range(2):
        found = [row.max_timestamp_ms for row in segment.rows_since(wanted)]
        assert found == [max(times) for times in timestamps[len(timestamps) - len(found) :]]
        assert not expected or expected[0] >= len(timestamps) - len(found)
        newest = max(map(max, timestamps))
        first = next(number for number, times in enumerate(timestamps) if max(times) == newest)
        assert segment.max_timestamp() == (newest, sum(map(len, timestamps[: first + 1])) - 1)
        if segment.is_active:
            segment.save_indexes()
            segment.seal()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    "damage", ["missing", "empty", "torn", "zeros", "noise", "shifted", "shortened", "of another segment"]
)
def test_an_index_that_is_wrong_is_made_again(suffix: str, damage: str) -> None:
    disk = MemoryFileSystem()
    segment = new_segment(disk, 1000)
    # The newest record is in the middle, so a shortened time index does not know of it.
    for number in range(30):
        append(segment, [number if number < 20 else 50 - number] * 2)
    segment.save_indexes()
    path = f"/d/{1000:020d}{suffix}"
    right = disk.read_file(path)
    size = 8 if suffix == ".index" else 12
    wrong = {
        "missing": None,
        "empty": b"",
        "torn": right[:-3],
        "zeros": bytes(len(right)),
        "noise": bytes((7 * number + 3) % 251 for number in range(len(right))),
        "shifted": right[:4] + right[: len(right) - 4],
        "shortened": right[: 3 * size],
        "of another segment": b"".join(
            bytes(size - 1) + bytes([entry + 1]) if size == 8 else bytes(7) + bytes([entry + 1]) + bytes(4)
            for entry in range(5)
        ),
    }[damage]
    disk.unlink(path)
    if wrong is not None:
        overwrite(disk, path, wrong)
    found = loaded(disk, segment)
    assert found.max_timestamp() == segment.max_timestamp()
    for offset in range(1000, 1060):
        assert found.position_of(offset) == segment.position_of(offset)
    for time in range(35):
        since = [row.position for row in found.rows_since(time) if row.max_timestamp_ms >= time]
        right_since = [row.position for row in segment.rows_since(0) if row.max_timestamp_ms >= time]
        assert since == right_since
    found.check()


def test_a_time_entry_that_is_slightly_wrong_hides_no_batch() -> None:
    disk = MemoryFileSystem()
    segment = new_segment(disk, interval_bytes=400)
    for number in range(30):
        append(segment, [100 + number])
    segment.save_indexes()
    path = f"/d/{0:020d}.timeindex"
    entries = list(segment.indexes().time_index)
    for ordinal, entry in enumerate(entries[:-1]):
        # Still in order, and claiming that the batches up to it are two milliseconds older than they are.
        wrong = TimeIndex(0)
        for number, other in enumerate(entries):
            wrong.maybe_append(
                other._replace(timestamp_ms=other.timestamp_ms - 2) if number == ordinal else other
            )
        overwrite(disk, path, wrong.to_bytes())
        found = loaded(disk, segment)
        since = [row.last_offset for row in found.rows_since(entry.timestamp_ms - 1)]
        assert since[0] <= entry.timestamp_ms - 101


def test_an_offset_entry_that_leads_to_a_later_batch_skips_nothing() -> None:
    disk = MemoryFileSystem()
    segment = new_segment(disk, interval_bytes=400)
    for number in range(30):
        append(segment, [100 + number])
    segment.save_indexes()
    entries = list(segment.indexes().offset_index)
    wrong = OffsetIndex(0)
    for entry, following in pairwise(entries):
        wrong.append(entry.offset, following.position)
    overwrite(disk, f"/d/{0:020d}.index", wrong.to_bytes())
    for offset in range(30):
        assert loaded(disk, segment).position_of(offset) == segment.position_of(offset)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    entries=st.sets(st.integers(1, 5000), max_size=20),
    max_bytes=st.integers(0, 4000),
)
def test_a_read_gives_whole_batches_whatever_the_index_says(
    sizes: list[int], entries: set[int], max_bytes: int
) -> None:
    disk = MemoryFileSystem()
    segment = new_segment(disk, interval_bytes=0)
    written = [append(segment, [1] * size) for size in sizes]
    segment.save_indexes()
    wrong = OffsetIndex(0)
    for position in sorted(entries):
        if position < segment.size_bytes and len(wrong) < segment.end_offset:
            wrong.append(len(wrong), position)
    overwrite(disk, f"/d/{0:020d}.index", wrong.to_bytes())
    for found in (segment, loaded(disk, segment)):
        position = 0
        for ordinal, one in enumerate(written):
            for min_one in (True, False):
                data, _, _ = found.read(position, max_bytes, bounds(), min_one=min_one)
                count = next(
                    n for n in range(len(written) + 1) if len(b"".join(written[ordinal:][:n])) == len(data)
                )
                assert data == b"".join(written[ordinal:][:count])
                assert len(data) <= max_bytes or (min_one and count == 1)
                # There is progress where there is room for it.
                assert count > 0 or len(one) > max_bytes
                assert count > 0 or not min_one
            position += len(one)


class Segments:
    """A directory of segments, with one that has a batch. Used by one thread."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.first = new_segment(self.disk)
        self.data = append(self.first, [1])

    def append(self) -> None:
        append(self.first, [2, 3])

    def begin_another(self) -> None:
        new_segment(self.disk, 5)


@pytest.mark.parametrize("part", [0.0, 0.4, 1.0])
def test_a_failed_append_leaves_nothing(part: float) -> None:
    def verify(failure: Failure[Segments]) -> None:
        (disk, segment), data = (failure.subject.disk, failure.subject.first), failure.subject.data
        assert isinstance(failure.error, OSError)
        assert disk.read_file(segment.path) == data
        # Not even after a crash that forgets the truncation if it may.
        assert disk.reopened(Survival(Kept.NONE, Kept.ALL)).read_file(segment.path) == data
        second = append(segment, [4])
        assert disk.read_file(segment.path) == data + second
        segment.check()

    sweep = CrashSweep(Segments, Segments.append)
    writes = [name for name in sweep.trace if name.startswith("append")]
    sweep.at_failures(
        verify, expected=(OSError,), errors=(errno.ENOSPC,), only=writes.__contains__, part=part
    )


def test_an_append_that_cannot_be_taken_back_is_the_end() -> None:
    disk = FaultyFileSystem()
    segment = new_segment(disk)
    append(segment, [1])
    disk.fail_at(disk.operation_count + 2, part=0.5)
    disk.fail_at(disk.operation_count + 3)
    with pytest.raises(DataDirectoryError) as refused:
        append(segment, [2])
    assert refused.value.fields.keys() == {"path", "reason"}
    assert refused.value.fields["path"] == segment.path


def test_bytes_that_an_interrupted_write_left_are_cut_off() -> None:
    disk = MemoryFileSystem()
    segment = new_segment(disk)
    first = append(segment, [1])
    stranger = disk.open_append(segment.path)
    stranger.append([b"left over"])
    second = append(segment, [2])
    assert disk.read_file(segment.path) == first + second
    stranger.truncate(5)
    with pytest.raises(DataDirectoryError):
        append(segment, [3])


@pytest.mark.parametrize("index", ["whole", "gone"])
@pytest.mark.parametrize("max_bytes", [1, 150, 10_000])
# The checksum, the length upward and downward, the magic, the base offset.
@pytest.mark.parametrize("position", [HEADER_SIZE, 8, 11, 16, 7])
def test_what_is_sound_before_damage_is_read_whatever_there_is_of_an_index(
    position: int, max_bytes: int, index: str
) -> None:
    disk = MemoryFileSystem()
    segment = new_segment(disk)
    written = b"".join(append(segment, [number]) for number in range(10))
    segment.save_indexes()
    damaged_position = 6 * len(written) // 10
    overwrite(disk, segment.path, damage(written, damaged_position + position))
    if index == "gone":
        for suffix in (".index", ".timeindex"):
            disk.unlink(f"/d/{0:020d}{suffix}")
    for offset in range(6):
        found = loaded(disk, segment)
        read = read_until_damage(found, offset, max_bytes)
        # A base offset that is wrong may be that of either of two.
        count = 5 if position == 7 else 6
        assert read == written[offset * len(written) // 10 : count * len(written) // 10]
        assert [found.position_of(one) is None for one in range(count)] == [False] * count


def read_until_damage(segment: LogSegment, offset: int, max_bytes: int) -> bytes:
    read = b""
    try:
        while (position := segment.position_of(offset)) is not None:
            batches, offset, _ = segment.read(position, max_bytes, bounds(), min_one=True)
            read += batches
    except CorruptRecordError:
        return read
    raise AssertionError("the damage was passed over")


def damage(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 7
    return bytes(changed)


def test_a_dropped_segment_is_gone_for_newcomers_and_unlinked_later() -> None:
    disk = MemoryFileSystem()
    segment = new_segment(disk)
    append(segment, [1])
    segment.save_indexes()
    reader = segment.batches()
    assert next(reader).header.base_offset == 0
    segment.mark_deleted()
    assert all(name.endswith(".deleted") for name in disk.list_directory("/d"))
    assert len(disk.list_directory("/d")) == 4
    with pytest.raises(FileNotFoundError):
        segment.position_of(0)
    assert list(reader) == []
    segment.unlink_deleted()
    segment.unlink_deleted()
    assert disk.list_directory("/d") == []


@pytest.mark.parametrize("room_bytes", [0, 1, 5000])
def test_where_a_full_disk_has_no_room_for_names_a_dropped_segment_is_unlinked_at_once(
    room_bytes: int,
) -> None:
    disk = FullFileSystem()
    segment = new_segment(disk)
    append(segment, [1])
    segment.add_aborted(AbortedTransaction(7, 0, 1, 0))
    segment.save_indexes()
    reader = segment.batches()
    disk.fill("/d")
    disk.names_are_full, disk.room_bytes = True, room_bytes
    assert next(reader).header.base_offset == 0
    segment.mark_deleted()
    assert all(name.endswith(".deleted") for name in disk.inner.list_directory("/d"))
    assert 0 < len(disk.inner.list_directory("/d")) < 4
    with pytest.raises(FileNotFoundError):
        segment.position_of(0)
    assert list(reader) == []
    segment.unlink_deleted()
    assert disk.inner.list_directory("/d") == []


def test_a_segment_whose_data_must_stay_is_as_it_was_and_one_without_data_is_gone() -> None:
    for refused, left in ((1, 4), (2, 1)):
        disk = FaultyFileSystem()
        segment = new_segment(disk)
        append(segment, [1])
        segment.save_indexes()
        # The look whether the file is there, and its rename; for each.
        disk.fail_at(disk.operation_count + 2 * refused, number=errno.EPERM)
        with pytest.raises(PermissionError):
            segment.mark_deleted()
        names = disk.inner.list_directory("/d")
        assert len([name for name in names if not name.endswith(".deleted")]) == left
        assert segment.is_dropped == (refused == 2)
        if segment.is_dropped:
            with pytest.raises(FileNotFoundError):
                segment.position_of(0)
        else:
            assert segment.position_of(0) == 0
            segment.check()
            segment.mark_deleted()


def test_a_segment_that_cannot_be_begun_leaves_no_file() -> None:
    def verify(failure: Failure[Segments]) -> None:
        assert isinstance(failure.error, OSError)
        assert segment_path("/d", 5, ".log") not in failure.subject.disk.inner.contents()

    sweep = CrashSweep(Segments, Segments.begin_another)
    sweep.at_failures(verify, expected=(OSError,), errors=(errno.EIO,))


def test_a_segment_whose_beginning_cannot_be_taken_back_is_an_error_of_the_disk() -> None:
    disk = FaultyFileSystem()
    disk.make_directories("/d")
    resources = SegmentResources.over(disk)
    disk.fail_at(disk.operation_count + 3)
    disk.fail_at(disk.operation_count + 5)
    with pytest.raises(DataDirectoryError) as refused:
        LogSegment.create(resources, "/d", 5, created_ms=0, index_interval_bytes=1)
    assert refused.value.fields.keys() == {"path", "reason"}
    assert refused.value.fields["path"] == segment_path("/d", 5, ".log")


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_tail_that_is_dropped_leaves_the_segment_that_there_was_before_it(is_sealed: bool) -> None:
    timestamps = [[30, 10], [20], [50, 50], [40], [60]]
    for offset in range(108):
        disk, other_disk = MemoryFileSystem(), MemoryFileSystem()
        segment, expected = new_segment(disk, 100), new_segment(other_disk, 100)
        for times in timestamps:
            append(segment, times)
            if segment.end_offset <= offset:
                append(expected, times)
            if segment.end_offset in (103, 107):
                segment.add_aborted(AbortedTransaction(1, 100, segment.end_offset - 1, segment.end_offset))
                if segment.end_offset <= offset:
                    expected.add_aborted(
                        AbortedTransaction(1, 100, segment.end_offset - 1, segment.end_offset)
                    )
        if is_sealed:
            segment.save_indexes()
            segment.seal()
        kept = segment.before(offset)
        kept.trim(durable=True)
        kept.check()
        assert (kept.end_offset, kept.first_timestamp_ms) == (
            expected.end_offset,
            expected.first_timestamp_ms,
        )
        # Both go on, and their files are the same in the end.
        for each in (kept, expected):
            append(each, [70])
            each.save_indexes()
        assert disk.contents() == other_disk.contents()


def test_aborted_transactions_are_found_in_active_sealed_and_loaded_segments() -> None:
    disk = MemoryFileSystem()
    segment = new_segment(disk)
    append(segment, [1] * 10)
    assert segment.collect_aborted(0, 10) == ((), False)
    aborted = AbortedTransaction(5, 2, 9, 10)
    segment.add_aborted(aborted)
    assert segment.collect_aborted(0, 10) == ((aborted,), True)
    segment.save_indexes()
    segment.seal()
    found = loaded(disk, segment)
    # The files of the other two indexes may be made again; this one stays.
    disk.unlink("/d/00000000000000000000.index")
    for each in (segment, found):
        assert each.collect_aborted(0, 10) == ((aborted,), True)


def test_a_reader_that_sees_the_new_end_finds_the_bytes_below_it() -> None:
    """A reader between any two steps of an append reads what it sees of the log."""
    seen: list[tuple[int, int]] = []

    class Watched(LogSegment):
        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            position = self.position_of(self.end_offset - 1)
            assert position is not None, (name, value)
            header = parse_header(self.read_bytes(position, HEADER_SIZE))
            assert header.last_offset >= self.end_offset - 1
            seen.append((self.size_bytes, self.end_offset))

    segment = new_segment(MemoryFileSystem(), interval_bytes=100)
    append(segment, [1])
    segment.__class__ = Watched
    for number in range(20):
        append(segment, [number, number])
    assert len(set(seen)) > 20
    assert seen[-1] == (segment.size_bytes, 41)
