"""Which segments are cleaned into one, how large that gets, and when its files are durable."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest

from stratalog.cleaner.clean.segment_groups import group_segments
from stratalog.cleaner.clean.segment_writer import MAX_POSITION, SegmentWriter
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.segment.file_names import (
    CLEANED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_path,
)
from stratalog.segment.indexes.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from stratalog.segment.indexes.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from stratalog.segment.indexes.time_index import TimeIndex
from stratalog.segment.log_segment import LogSegment
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import Kept, Survival
from tests.support.cleaner.cleaned_log import CONFIG, Cleaned
from tests.support.cleaner.cleaning_history import CleaningHistory
from tests.support.logs.crash_sweep import CrashSweep, Death

ANY = 1 << 40
EACH = dataclasses.replace(CONFIG, segment_bytes=1 << 20, index_interval_bytes=1)


def segments_of(ascending: bool, count: int = 4, batches: int = 5) -> Sequence[LogSegment]:
    """Alike, with an entry in the indexes for each batch but the first."""
    cleaned = Cleaned(EACH)
    for number in range(count):
        for delta in range(batches):
            timestamp_ms = 1000 * number + (delta if ascending else 0)
            cleaned.log.appender.append_as_leader(encode_batch([Record(0, timestamp_ms, b"k", b"v")]), 1)
        cleaned.log.roll()
    return cleaned.log.local_log.segments.sealed


def sizes(groups: Sequence[Sequence[LogSegment]]) -> list[int]:
    return [len(group) for group in groups]


def test_segments_are_together_up_to_the_size_of_one() -> None:
    segments = segments_of(True)
    [size_bytes] = {segment.size_bytes for segment in segments}
    assert sizes(group_segments(segments, 2 * size_bytes, ANY)) == [2, 2]
    assert sizes(group_segments(segments, 3 * size_bytes - 1, ANY)) == [2, 2]
    assert sizes(group_segments(segments, 3 * size_bytes, ANY)) == [3, 1]
    assert sizes(group_segments(segments, 1, ANY)) == [1, 1, 1, 1]


@pytest.mark.parametrize("ascending", [True, False])
def test_and_up_to_the_size_of_its_larger_index(*, ascending: bool) -> None:
    """Each counts: the time index is the larger one where timestamps ascend, the offset index where not."""
    segments = segments_of(ascending)
    offset_bytes = [segment.indexes().offset_index.size_bytes for segment in segments]
    time_bytes = [segment.indexes().time_index.size_bytes for segment in segments]
    assert set(offset_bytes) == {4 * OFFSET_ENTRY_SIZE}
    assert set(time_bytes) == {(4 if ascending else 1) * TIME_ENTRY_SIZE}
    larger_bytes = max(offset_bytes[0], time_bytes[0])
    assert sizes(group_segments(segments, ANY, 4 * larger_bytes)) == [4]
    assert sizes(group_segments(segments, ANY, 4 * larger_bytes - 1)) == [3, 1]
    assert sizes(group_segments(segments, ANY, 2 * larger_bytes)) == [2, 2]
    assert sizes(group_segments(segments, ANY, 1)) == [1, 1, 1, 1]


def writer_for(cleaned: Cleaned) -> SegmentWriter:
    log = cleaned.log
    return SegmentWriter(log.segment_exchange.resources, log.local_log.directory, 100, 1)


def test_a_segment_that_is_written_grows_up_to_what_its_indexes_can_say() -> None:
    writer = writer_for(Cleaned(EACH))
    assert writer.has_room(MAX_POSITION + 1, 0), "what fits into no segment has one to itself"
    for offset in range(100, 105):
        batch = encode_batch([Record(0, offset, b"k", b"v")], base_offset=offset, leader_epoch=1)
        assert writer.has_room(len(batch), 5 * TIME_ENTRY_SIZE)
        writer.write(batch)
    # Four entries each.
    assert not writer.has_room(1, 5 * TIME_ENTRY_SIZE - 1)
    assert not writer.has_room(1, 4 * TIME_ENTRY_SIZE)
    assert writer.has_room(MAX_POSITION - writer.size_bytes, ANY)
    assert not writer.has_room(MAX_POSITION - writer.size_bytes + 1, ANY)
    writer.discard()


def test_a_clean_begins_another_segment_where_the_indexes_are_full() -> None:
    """One segment has more entries than before: the interval was made shorter."""
    cleaned = Cleaned(dataclasses.replace(EACH, index_interval_bytes=4096))
    for number in range(40):
        # Each with a compressed record, which the cleaner deals with one by one.
        cleaned.put((b"k%d" % number, b"x" * 100), codec=Codec.ZSTD)
    cleaned.log.reconfigure(dataclasses.replace(EACH, segment_index_bytes=10 * TIME_ENTRY_SIZE))
    cleaned.clean()
    assert len(cleaned.log.local_log.segments.sealed) == 3
    for segment in cleaned.log.local_log.segments.sealed:
        assert segment.indexes().offset_index.size_bytes <= 10 * TIME_ENTRY_SIZE
        assert segment.indexes().time_index.size_bytes <= 10 * TIME_ENTRY_SIZE
    assert [offset for offset, _, _ in cleaned.left()] == list(range(40))


def test_the_last_entry_of_a_time_index_is_the_newest_record() -> None:
    """The file as it is written has it: a later opening would ask the data otherwise."""
    cleaned = Cleaned(EACH)
    log, disk = cleaned.log, cleaned.machine.disk
    writer = SegmentWriter(log.segment_exchange.resources, log.local_log.directory, 100, 4096)
    for offset, timestamp_ms in ((100, 1000), (101, 3000), (102, 2000)):
        record = Record(0, timestamp_ms, b"k", b"v")
        writer.write(encode_batch([record], base_offset=offset, leader_epoch=1))
    writer.finish(5)
    path = segment_path(log.local_log.directory, 100, TIME_INDEX_SUFFIX) + CLEANED_SUFFIX
    last = TimeIndex(100, disk.read_file(path)).last
    assert last is not None
    assert (last.timestamp_ms, last.offset) == (3000, 101)
    writer.discard()
    assert cleaned.unfinished() == []


class Clean:
    """A clean of a log with transactions."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.history = CleaningHistory(random.Random(5), self.disk)
        for number in range(30):
            self.history.write()
            self.history.write_as(1)
            self.history.end_transaction(1, committed=number % 3 == 0)
        self.history.log.roll()
        self.history.write()

    def run(self) -> None:
        assert self.history.clean(1000) is not None


def is_swap(operation: str) -> bool:
    return operation.startswith("rename") and operation.endswith(LOG_SUFFIX + SWAP_SUFFIX)


def test_every_file_is_durable_before_it_takes_the_place_of_another() -> None:
    suffixes: set[str] = set()

    def verify(death: Death[Clean]) -> None:
        disk = death.subject.disk
        if not is_swap(disk.trace[-1]):
            return
        written = disk.inner.contents()
        left = disk.reopened(Survival(Kept.NONE, Kept.ALL)).inner.contents()
        for path in written:
            if path.endswith(CLEANED_SUFFIX):
                assert left[path] == written[path], path
                suffixes.add("." + path.removesuffix(CLEANED_SUFFIX).rpartition(".")[2])

    sweep = CrashSweep(Clean, Clean.run, count=0)
    assert len(list(filter(is_swap, sweep.trace))) > 2
    sweep.at_deaths(verify, always=is_swap)
    assert suffixes >= {LOG_SUFFIX, *INDEX_SUFFIXES}
