"""Look-ups by time: what a scan finds, asking few segments, and beside damage that does not concern them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.base.types import Durability
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import HEADER_SIZE, MAX_TIMESTAMP_POSITION, parse_header
from stratalog.record.native.batch_row import BatchRow
from stratalog.record.record import Record
from stratalog.segment.file_names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_path
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.timestamp_offset import TimestampOffset
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine
from tests.support.logs.overwriting import flip, overwrite
from tests.support.logs.plain_batches import timed_batch, with_header

CONFIG = LogConfig(
    index_interval_bytes=1, min_durability=Durability.DISK, remote_storage_enable=False, retention_ms=-1
)


def claiming(times_ms: Sequence[int], claimed_ms: int = 0) -> bytes:
    """`claimed_ms`: the highest timestamp that its header tells, as that of a batch does whose newest record
    a clean took."""
    return with_header(timed_batch(times_ms, value_bytes=1), max_timestamp=max(*times_ms, claimed_ms))


def append(log: UnifiedLog, segments: Sequence[Sequence[bytes]], *, goes_on: bool = False) -> None:
    """Each list of batches becomes a segment of its own; `goes_on`: the first one becomes the end of what is
    there."""
    for number, batches in enumerate(segments):
        if number or not goes_on:
            log.roll()
        for one in batches:
            moved = parse_header(one)._replace(base_offset=log.offsets.log_end_offset, leader_epoch=1)
            log.appender.append_as_follower(moved.pack() + one[HEADER_SIZE:])


TIMES = st.lists(st.integers(0, 9), min_size=1, max_size=3)
BATCHES = st.builds(claiming, TIMES, st.sampled_from([0, 0, 0, 8, 11]))


@given(
    segments=st.lists(st.lists(BATCHES, min_size=1, max_size=4), min_size=1, max_size=5),
    start_share=st.floats(0, 1),
    flushed_count=st.integers(0, 5),
    goes_on=st.booleans(),
)
def test_what_is_found_is_what_a_scan_finds(
    segments: list[list[bytes]], start_share: float, flushed_count: int, *, goes_on: bool
) -> None:
    """Times go back and forth, many are equal, headers claim more than there is, and the range begins and
    ends in the middle of batches and segments."""
    log = LogMachine(config=CONFIG).start()
    append(log, segments[:flushed_count])
    log.flusher.flush()
    append(log, segments[flushed_count:], goes_on=goes_on)
    assert (log.offsets.high_watermark < log.offsets.log_end_offset) == (flushed_count < len(segments))
    log.increment_log_start_offset(int(start_share * log.offsets.high_watermark))
    for isolation in (Isolation.HIGH_WATERMARK, Isolation.LOG_END):
        end_offset = (
            log.offsets.high_watermark
            if isolation is Isolation.HIGH_WATERMARK
            else log.offsets.log_end_offset
        )
        there = [record for record in read_local(log) if record.offset < end_offset]
        newest = max(there, key=lambda one: (one.timestamp_ms, -one.offset), default=None)
        found = log.reader.max_timestamp(isolation)
        assert found == (None if newest is None else (newest.timestamp_ms, newest.offset))
        for wanted_ms in range(13):
            first = next((one for one in there if one.timestamp_ms >= wanted_ms), None)
            found = log.reader.offset_for_timestamp(wanted_ms, isolation)
            assert found == (None if first is None else (first.timestamp_ms, first.offset))
    log.check()


def damaged(times_ms: Sequence[int], position: int, *ordinals: int) -> UnifiedLog:
    """A log with two batches in each segment, the second one of that time, opened when a byte of that one was
    damaged in some."""
    machine = LogMachine(config=CONFIG)
    log = machine.start()
    append(log, [[claiming([time_ms - 5]), claiming([time_ms, time_ms - 1])] for time_ms in times_ms])
    segments = log.local_log.segments
    machine.stop()
    for ordinal in ordinals:
        *_, last = segments[ordinal].batches()
        flip(machine.disk, segments[ordinal].path, last.position + position)
    return machine.start()


def test_the_earliest_time_of_all_finds_the_first_record() -> None:
    log = LogMachine(config=CONFIG).start()
    append(log, [[claiming([3]), claiming([0])], [claiming([5])]])
    for time_ms in (-(2**63), -1, 0):
        assert log.reader.offset_for_timestamp(time_ms, Isolation.LOG_END) == TimestampOffset(3, 0)


@pytest.mark.parametrize("newest", range(6))
def test_the_newest_record_is_found_beside_damage(newest: int) -> None:
    """The damage is in segments that have older records only."""
    times_ms = [*range(10, 10 * newest + 10, 10), 90, *range(10 * newest, 50, 10)]
    others = [ordinal for ordinal in range(6) if ordinal != newest]
    log = damaged(times_ms, HEADER_SIZE, *others)
    assert log.reader.max_timestamp() == (90, 3 * newest + 1)
    log = damaged(times_ms, HEADER_SIZE, newest)
    with pytest.raises(CorruptRecordError):
        log.reader.max_timestamp()


@pytest.mark.parametrize("ordinal", range(5))
@pytest.mark.parametrize("byte", range(8))
def test_where_the_age_of_a_segment_is_unknown_there_is_no_newest_record(ordinal: int, byte: int) -> None:
    """The time in a header was damaged, downward or upward, that the index bears out."""
    log = damaged([10, 20, 30, 40, 50, 60], MAX_TIMESTAMP_POSITION + byte, ordinal)
    with pytest.raises(CorruptRecordError):
        log.reader.max_timestamp()


def test_one_segment_is_read_for_the_newest_record(monkeypatch: pytest.MonkeyPatch) -> None:
    log = damaged([*range(10, 300, 10), 290, 290], HEADER_SIZE)
    assert log.reader.max_timestamp() == (290, 85)
    read, rows_since = list[int](), LogSegment.rows_since

    def noted(segment: LogSegment, timestamp_ms: int) -> Iterator[BatchRow]:
        read.append(segment.base_offset)
        return rows_since(segment, timestamp_ms)

    monkeypatch.setattr(LogSegment, "rows_since", noted)
    assert log.reader.max_timestamp() == (290, 85)
    assert read == [84]


def test_a_look_up_asks_few_segments_for_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    log = damaged(range(10, 2010, 10), HEADER_SIZE)
    asked, max_timestamp = list[LogSegment](), LogSegment.max_timestamp

    def noted(segment: LogSegment) -> TimestampOffset:
        asked.append(segment)
        return max_timestamp(segment)

    monkeypatch.setattr(LogSegment, "max_timestamp", noted)
    # What lies behind the answer is not asked at all: nor need it be sound.
    assert log.reader.offset_for_timestamp(1000) == (1000, 3 * 99 + 1)
    assert set(asked) == set(log.local_log.segments[:100])
    assert log.reader.offset_for_timestamp(1995) == (1995, 3 * 199)
    for time_ms in (5, 995, 1000, 1990):
        asked.clear()
        assert log.reader.offset_for_timestamp(time_ms) is not None
        assert len(asked) == 1
    # A segment that was sealed meanwhile is known as well, one that was cut off is forgotten.
    append(log, [[claiming([2005, 2010])]])
    log.flusher.flush()
    assert log.reader.offset_for_timestamp(2010) == (2010, 601)
    log.truncation.truncate_to(300)
    assert log.reader.offset_for_timestamp(1005) is None
    append(log, [[claiming([3000])]])
    log.flusher.flush()
    assert log.reader.offset_for_timestamp(1005) == (3000, 300)


def test_deleted_records_need_not_be_sound_for_a_look_up() -> None:
    """Their segments were not dropped yet."""
    log = damaged([10, 20, 30, 40], MAX_TIMESTAMP_POSITION + 7, 0)
    with pytest.raises(CorruptRecordError):
        log.reader.offset_for_timestamp(35)
    log.increment_log_start_offset(4)
    assert len(log.local_log.segments) == 4
    assert log.reader.offset_for_timestamp(35) == (35, 9)
    assert log.reader.max_timestamp() == (40, 10)


def test_below_a_high_watermark_not_all_of_a_segment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest time of the active segment lies above it."""
    log = LogMachine(config=CONFIG).start()
    append(log, [[claiming([time_ms]) for time_ms in range(200)]])
    log.flusher.flush()
    append(log, [[claiming([time_ms]) for time_ms in range(200, 400)]], goes_on=True)
    asked, rows_since = list[int](), LogSegment.rows_since

    def noted(segment: LogSegment, timestamp_ms: int) -> Iterator[BatchRow]:
        asked.append(timestamp_ms)
        return rows_since(segment, timestamp_ms)

    monkeypatch.setattr(LogSegment, "rows_since", noted)
    assert log.reader.max_timestamp() == (199, 199)
    assert asked == [399, 199]


def test_a_batch_of_many_records_is_looked_through_in_little_memory() -> None:
    count = 150_000
    log = LogMachine(config=CONFIG).start()
    log.appender.append_as_leader(
        encode_batch([Record(0, time_ms, None, None) for time_ms in range(count)], codec=Codec.ZSTD), 1
    )
    log.flusher.flush()
    newest = TimestampOffset(count - 1, count - 1)
    tracemalloc.start()
    try:
        assert log.reader.offset_for_timestamp(count - 1) == newest
        assert log.reader.max_timestamp() == newest
        assert tracemalloc.get_traced_memory()[1] < 16 << 20, "as objects they are twice as much"
    finally:
        tracemalloc.stop()


def test_a_batch_that_is_being_appended_is_not_found_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are published before its offsets are: a look-up in between finds what was there before."""
    log = LogMachine(config=replace(CONFIG, min_durability=Durability.OS)).start()
    append(log, [[claiming([1, 3]), claiming([2])]])
    segment, found = log.local_log.segments.active, list[object]()
    slot = LogSegment.__dict__["end_offset"]

    def publish(published: LogSegment, end_offset: int) -> None:
        if published is segment:
            assert published.size_bytes > size_before, "the bytes come first"
            found.append(
                (
                    log.reader.max_timestamp(),
                    *(log.reader.offset_for_timestamp(time_ms) for time_ms in (4, 9)),
                )
            )
        slot.__set__(published, end_offset)

    size_before = segment.size_bytes
    monkeypatch.setattr(LogSegment, "end_offset", property(slot.__get__, publish))
    append(log, [[claiming([7, 9])]], goes_on=True)
    monkeypatch.undo()
    assert found == [(TimestampOffset(3, 1), None, None)]
    assert log.reader.max_timestamp() == log.reader.offset_for_timestamp(9) == TimestampOffset(9, 4)
    assert log.reader.offset_for_timestamp(4) == TimestampOffset(7, 3)


@pytest.mark.parametrize("position", [0, MAX_TIMESTAMP_POSITION])
def test_a_damaged_header_behind_the_newest_record_is_no_fault_of_an_index(position: int) -> None:
    """It claims to be newer than the time index knows, or contradicts its neighbours: the log is served up
    to there, and behind it."""
    machine = LogMachine(config=CONFIG)
    log = machine.start()
    append(log, [[claiming([time_ms]) for time_ms in (90, 10, 20, 30)]])
    [segment] = log.local_log.segments
    damaged_position = [located.position for located in segment.batches()][2]
    machine.stop()
    flip(machine.disk, segment.path, damaged_position + position)
    log = machine.start()
    assert log.reader.offset_for_timestamp(80) == (90, 0)
    assert [len(log.reader.read(offset, 1).batches) > 0 for offset in (0, 1, 3)] == [True] * 3
    with pytest.raises(CorruptRecordError):
        log.reader.read(2, 1)


@pytest.mark.parametrize(
    "times_ms", [(90, 10, 20, 30, 40, 5), (10, 60, 20, 80, 70, 90), (5, 10, 20, 30, 40, 90)]
)
@pytest.mark.parametrize("suffix", [TIME_INDEX_SUFFIX, OFFSET_INDEX_SUFFIX])
@pytest.mark.parametrize("interval_bytes", [1, 100, 200])
def test_an_index_that_lost_its_last_entries_hides_no_record(
    times_ms: Sequence[int], suffix: str, interval_bytes: int
) -> None:
    """The index of the active segment lost them, with all others whole, while no process had the log open."""
    config = replace(CONFIG, index_interval_bytes=interval_bytes)
    disk = MemoryFileSystem()
    machine = LogMachine(disk, config)
    append(machine.start(), [[claiming([time_ms]) for time_ms in times_ms]])
    machine.stop()
    path = segment_path(PARTITION_DIR, 0, suffix)
    for size_bytes in range(0, disk.file_size(path), 12 if suffix == TIME_INDEX_SUFFIX else 8):
        copy = disk.after_crash(Survival(Kept.ALL, Kept.ALL))
        overwrite(copy, path, copy.read_file(path)[:size_bytes])
        log = LogMachine(copy, config).start()
        for wanted_ms in range(100):
            first = next((found for found in enumerate(times_ms) if found[1] >= wanted_ms), None)
            assert log.reader.offset_for_timestamp(wanted_ms) == (
                None if first is None else (first[1], first[0])
            )
        highest_ms = max(times_ms)
        assert log.reader.max_timestamp() == (highest_ms, times_ms.index(highest_ms))
        log.check()
