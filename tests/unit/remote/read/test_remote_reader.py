"""Reads of the tiered part against a plain list of records: over many objects, with holes, with a log start
inside a slice, with timestamps in any order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import OffsetOutOfRangeError, StoreCorruptError, StoreUnavailableError
from stratalog.base.types import TopicIdPartition
from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.batch import records_payload
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch, rebuild_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import parse_header
from stratalog.record.native.kernels import copy_records
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind
from stratalog.remote.objects.object_writer import ObjectWriter, ObjectWriterSettings
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.objects.slice_index import DEFAULT_INDEX_INTERVAL_BYTES
from stratalog.remote.read.object_reads import ObjectReads, ReadThreads, RemoteReaderSettings
from stratalog.remote.read.remote_reader import RemoteReader
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Operation
from tests.support.decoded_records import decode_all
from tests.support.tiered.counting_object_store import CountingObjectStore, RequestCount
from tests.support.tiered.inline_reads import inline_reads
from tests.support.tiered.tiered_logs import TieredLogs
from tests.support.tiered.tiered_store import TieredStore

SMALL = RemoteReaderSettings(
    first_bytes=32, chunk_bytes=64, read_ahead_bytes=256, data_cache_bytes=3000, index_cache_bytes=4096
)
ROOMY = RemoteReaderSettings()


class World(NamedTuple):
    tiered: TieredStore
    store: MemoryObjectStore
    filesystem: MemoryFileSystem
    tips: tuple[TopicIdPartition, ...]

    def reader(self, reader_settings: RemoteReaderSettings = ROOMY) -> RemoteReader:
        return RemoteReader(inline_reads(self.store, reader_settings), self.tiered.metadata)


def world(partition_count: int) -> World:
    clock = ManualClock()
    store = MemoryObjectStore(clock)
    filesystem = MemoryFileSystem()
    tiered = TieredStore(filesystem, store, clock, SequentialIds(1))
    topic = tiered.catalog.create("t", partition_count, {})
    tips = tuple(TopicIdPartition(topic.topic_id, partition) for partition in range(partition_count))
    return World(tiered, store, filesystem, tips)


def without_last(batch: bytes, dropped_count: int) -> bytes:
    """The batch as a compaction leaves it that takes its last records: its last offset stays."""
    header = parse_header(batch)
    kept = header.records_count - dropped_count
    copied = copy_records(
        records_payload(batch, 0, header),
        header.records_count,
        bytes([0xFF] * 8),
        0,
        first_offset_delta=0,
        end_offset_delta=kept,
        drop_tombstones=False,
        timestamp_shift=0,
    )
    latest = header.base_timestamp + copied.max_timestamp_delta
    return rebuild_batch(header, copied.payload, records_count=copied.count, max_timestamp=latest)


class Piece(NamedTuple):
    """A slice to be: its batches and where it ends."""

    batches: tuple[bytes, ...]
    end_offset: int


@st.composite
def pieces(draw: st.DrawFn) -> list[Piece]:
    """Successive slices of one partition; everything about a batch comes from a few bytes."""
    offset = 0
    found: list[Piece] = []
    for slice_seeds in draw(
        st.lists(st.lists(st.binary(min_size=2, max_size=5), max_size=4), min_size=1, max_size=4)
    ):
        run: list[bytes] = []
        for seeds in slice_seeds:
            offset += seeds[0] % 4
            records = [Record(0, seed % 31, b"k", b"v" * (seed % 9)) for seed in seeds[1:]]
            codec = Codec.ZSTD if seeds[0] & 4 else Codec.NONE
            batch = encode_batch(records, codec=codec, base_offset=offset)
            dropped_count = seeds[0] // 16 % (len(records) + 1) if seeds[0] & 8 else 0
            run.append(without_last(batch, dropped_count))
            offset += len(records)
        offset += draw(st.integers(0 if run else 1, 3))
        found.append(Piece(tuple(run), offset))
    return found


def upload_all(found: World, histories: Sequence[list[Piece]]) -> list[list[Record]]:
    """Upload the pieces of all partitions side by side; returns what each partition holds then."""
    for number in range(max(map(len, histories))):
        parts = {
            tip: history[number]
            for tip, history in zip(found.tips, histories, strict=True)
            if number < len(history)
        }
        found.tiered.upload(
            {tip: piece.batches for tip, piece in parts.items()},
            end_offsets={tip: piece.end_offset for tip, piece in parts.items()},
        )
    return [
        [record for piece in history for record in decode_all(b"".join(piece.batches))]
        for history in histories
    ]


def check_reads(
    reader: RemoteReader,
    tip: TopicIdPartition,
    expected: Sequence[Record],
    start: int,
    end: int,
    max_bytes: int,
) -> None:
    """Read from every offset: the records are those that the list has, and nothing is passed over."""
    for offset in range(start, end + 1):
        data = reader.read(tip, offset, max_bytes)
        got = [record for record in decode_all(data.batches) if record.offset >= offset]
        assert got == [record for record in expected if offset <= record.offset < data.next_offset]
        assert offset < data.next_offset <= end or offset == data.next_offset == end


@given(st.lists(pieces(), min_size=1, max_size=3), st.data())
def test_reads_give_what_a_list_of_records_gives(histories: list[list[Piece]], data: st.DataObject) -> None:
    found = world(len(histories))
    contents = upload_all(found, histories)
    reader = found.reader(data.draw(st.sampled_from([SMALL, ROOMY])))
    for tip, history, records in zip(found.tips, histories, contents, strict=True):
        end = history[-1].end_offset
        start = data.draw(st.integers(0, end))
        found.tiered.advance_log_start(tip, start)
        expected = [record for record in records if record.offset >= start]
        check_reads(reader, tip, expected, start, end, data.draw(st.sampled_from([0, 100, 1 << 20])))
        check_times(reader, tip, expected)
        for offset in (start - 1, end + 1):
            with pytest.raises(OffsetOutOfRangeError):
                reader.read(tip, offset, 1)


def check_times(reader: RemoteReader, tip: TopicIdPartition, expected: Sequence[Record]) -> None:
    for timestamp_ms in range(-1, 32):
        first = next((record for record in expected if record.timestamp_ms >= timestamp_ms), None)
        found = reader.offset_for_timestamp(tip, timestamp_ms)
        assert found == (None if first is None else (first.timestamp_ms, first.offset))
    for end_offset in {expected[len(expected) // 2].offset, expected[-1].offset + 1} if expected else {9}:
        seen = [record for record in expected if record.offset < end_offset]
        newest = max(seen, key=lambda record: (record.timestamp_ms, -record.offset), default=None)
        found = reader.max_timestamp(tip, end_offset)
        assert found == (None if newest is None else (newest.timestamp_ms, newest.offset))


def test_a_batch_that_is_larger_than_asked_for_comes_only_where_one_must_come() -> None:
    found = world(1)
    (tip,) = found.tips
    found.tiered.upload({tip: [encode_batch([Record(0, 1, b"k", b"v" * 1000)])]})
    reader = found.reader()
    assert reader.read(tip, 0, 10, min_one_message=False) == FetchData((), 0)
    assert reader.read(tip, 0, 10).next_offset == 1


def test_an_unknown_partition_is_empty_from_0_to_0() -> None:
    found = world(1)
    other = TopicIdPartition(found.tips[0].topic_id, 7)
    reader = found.reader()
    assert reader.read(other, 0, 100) == FetchData((), 0)
    assert reader.offset_for_timestamp(other, 0) is None
    assert reader.max_timestamp(other, 9) is None


def test_a_clipped_slice_is_read_from_where_it_counts() -> None:
    found = world(1)
    (tip,) = found.tips
    first = [encode_batch([Record(0, 90, b"a", b"old"), Record(0, 80, b"b", b"old")], base_offset=0)]
    second = [encode_batch([Record(0, 50, b"c", b"new"), Record(0, 60, b"d", b"new")], base_offset=2)]
    names = (found.tiered.upload({tip: first}), found.tiered.upload({tip: second}))
    inputs = found.tiered.partition(tip).slices
    # A merge of both is under way when the first one goes below log start.
    name = found.tiered.metadata.next_object_name()
    header = ObjectHeader(
        store_id=found.tiered.store_id, shard=0, epoch=1, kind=ObjectKind.REPLACEMENT, name=name, inputs=names
    )
    with ObjectWriter(
        found.filesystem, header, ObjectWriterSettings(spool_directory="/tiered/uploads")
    ) as writer:
        writer.begin_slice(tip.topic_id, "t", 0, base_offset=0)
        writer.append(first[0] + second[0])
        writer.end_slice(SliceEnd(4))
        finished = writer.finish()
        finished.store(found.store, found.tiered.layout)
    found.tiered.advance_log_start(tip, 3)
    outcome = found.tiered.metadata.replace(
        {tip: SliceRanges.of(inputs)},
        names,
        [(finished.ref, finished.entries)],
        covers={tip: False},
        catalog_seq=1,
        drops_records=False,
    )
    assert [offset for _, offset in outcome.clipped] == [2]
    reader = found.reader()
    assert [record.offset for record in decode_all(reader.read(tip, 3, 100).batches)] == [2, 3]
    assert reader.offset_for_timestamp(tip, 1) == (60, 3)
    assert reader.offset_for_timestamp(tip, 61) is None
    assert reader.max_timestamp(tip, 4) == (60, 3)
    assert reader.max_timestamp(tip, 3) is None


def test_an_object_that_is_gone_means_an_old_head_once() -> None:
    found = world(1)
    (tip,) = found.tips
    name = found.tiered.upload({tip: [encode_batch([Record(0, 1, b"k", b"old")])]})
    stale = RemoteReader(inline_reads(found.store), found.tiered.open_metadata(found.store, "reader"))
    found.tiered.advance_log_start(tip, 1)
    live = found.tiered.upload({tip: [encode_batch([Record(0, 1, b"k", b"new")], base_offset=1)]})
    found.store.delete_many([found.tiered.layout.data_key(name)])
    with pytest.raises(OffsetOutOfRangeError):
        stale.read(tip, 0, 100)
    assert stale.read(tip, 1, 100).next_offset == 2
    key = found.tiered.layout.data_key(live)
    found.store.delete_many([key])
    with pytest.raises(StoreCorruptError) as caught:
        found.reader().read(tip, 1, 100)
    assert caught.value.fields["key"] == key, "missing under a fresh head"


@pytest.mark.parametrize(("garbled_gets", "is_readable"), [(1, True), (2, False)])
@pytest.mark.parametrize("place", [7, -100], ids=["base offset, without a checksum", "records"])
def test_a_garbled_answer_is_asked_for_again_once(place: int, garbled_gets: int, is_readable: bool) -> None:
    """A base offset behind its slice once was the end of the slice, and the record was passed by."""
    found = world(1)
    (tip,) = found.tips
    batch = encode_batch([Record(0, 1, b"k", b"v" * 1000)])
    key = found.tiered.layout.data_key(found.tiered.upload({tip: [batch]}))
    sound = found.store.get(key).data
    entry = found.tiered.partition(tip).slices[0].entry
    position = place + (entry.data_end_position if place < 0 else entry.data_position)
    found.store.put(key, sound[:position] + b"?" + sound[position + 1 :])
    gets: list[Operation] = []

    def after(operation: Operation) -> None:
        gets.append(operation)
        if len(gets) == garbled_gets:
            found.store.put(key, sound)

    reader = RemoteReader(
        inline_reads(FaultyObjectStore(found.store, Random(0), after=after)), found.tiered.metadata
    )
    with nullcontext() if is_readable else pytest.raises(StoreCorruptError):
        assert reader.read(tip, 0, 100).batches == batch
    assert len(gets) == 2


class Counted(NamedTuple):
    """Partitions of 1,000 batches of one record and about 1 KiB each, in one object or in several."""

    found: World
    store: CountingObjectStore

    @staticmethod
    def of_objects(object_count: int, partition_count: int = 1, batch_count: int = 1000) -> Counted:
        found = world(partition_count)
        batches = [
            encode_batch([Record(0, 1, b"k", b"v" * 960)], base_offset=offset)
            for offset in range(batch_count)
        ]
        size = len(batches) // object_count
        for number in range(object_count):
            found.tiered.upload(dict.fromkeys(found.tips, batches[number * size : (number + 1) * size]))
        return Counted(found, CountingObjectStore(found.store))

    def reader(self, **settings: int) -> RemoteReader:
        reads = inline_reads(self.store, RemoteReaderSettings(**settings))
        return RemoteReader(reads, self.found.tiered.metadata)

    @property
    def gets(self) -> RequestCount:
        return self.store.total("GET", self.found.tiered.layout.data_key(""))


def read_on(reader: RemoteReader, tip: TopicIdPartition, offset: int, max_bytes: int) -> list[int]:
    """Read to the end; returns the offsets at which reads ended."""
    ends: list[int] = []
    while True:
        data = reader.read(tip, offset, max_bytes)
        if data.next_offset == offset:
            return ends
        offset = data.next_offset
        ends.append(offset)


def test_one_record_costs_an_index_and_an_interval() -> None:
    counted = Counted.of_objects(2)
    (tip,) = counted.found.tips
    data = counted.reader().read(tip, 777, 1 << 20)
    assert decode_all(data.batches)[-1].offset >= 777
    assert counted.gets.requests == 2
    index_bytes = counted.found.tiered.partition(tip).slices[1].entry.index.size_bytes
    assert counted.gets.size_bytes - index_bytes < DEFAULT_INDEX_INTERVAL_BYTES + 1100
    counted.reader().read(tip, 500, 1 << 20)
    assert counted.gets.requests == 3, "at the begin of a slice no index is needed"


def test_a_reader_that_goes_on_gets_larger_requests_up_to_a_chunk() -> None:
    """The first wants 10,000 bytes, the second a chunk: four times as much."""
    counted = Counted.of_objects(1)
    (tip,) = counted.found.tips
    size_bytes = counted.found.tiered.partition(tip).tiered_bytes
    reader = counted.reader(first_bytes=10_000, chunk_bytes=40_000, read_ahead_bytes=0)
    ends = read_on(reader, tip, 0, 1 << 20)
    assert 0 <= counted.gets.requests - (1 + (size_bytes - 10_000) // 40_000) <= 1
    assert counted.gets.requests == len(ends)
    assert counted.gets.size_bytes == size_bytes, "no byte twice, and no index"


@pytest.mark.parametrize("object_count", [1, 4])
def test_reading_ahead_goes_over_slices_and_objects(object_count: int) -> None:
    """After the second read, each read finds in memory what it wants."""
    counted = Counted.of_objects(object_count)
    (tip,) = counted.found.tips
    reader = counted.reader(first_bytes=10_000, chunk_bytes=40_000, read_ahead_bytes=1 << 20)
    offset = reader.read(tip, 0, 1).next_offset
    offset = reader.read(tip, offset, 1).next_offset
    assert counted.gets.requests >= 2, "the window of the second read is ahead of it"
    read_on(reader, tip, offset, 20_000)
    assert counted.gets.size_bytes == counted.found.tiered.partition(tip).tiered_bytes
    stats = reader.reads.read_ahead_stats
    assert stats.wasted_bytes == stats.waiting_bytes == 0
    assert stats.used_bytes >= 0.9 * counted.gets.size_bytes
    assert reader.reads.cache_stats.data.miss_count == 1, "all but the first read found what it needed"


def test_data_is_a_view_of_the_cache_unless_that_holds_much_more() -> None:
    """An answer that waits for its reader must not keep what the cache has given up."""
    counted = Counted.of_objects(1)
    (tip,) = counted.found.tips
    reader = counted.reader(first_bytes=40_000)
    reader.read(tip, 0, 1)
    (much,) = reader.read(tip, 0, 20_000).chunks
    assert isinstance(much, memoryview)
    assert len(much) > 15_000
    (little,) = reader.read(tip, 0, 5_000).chunks
    assert isinstance(little, bytes)
    assert little == bytes(much[: len(little)])


@pytest.mark.parametrize(("window_chunks", "request_chunks"), [(3, 4), (5, 4), (6, 2)])
def test_requests_of_read_ahead_have_several_chunks_where_the_window_has_three(
    window_chunks: int, request_chunks: int
) -> None:
    """A larger window is that of a reader with few beside it, which needs several connections."""
    chunk_bytes = 20_000
    counted = Counted.of_objects(1)
    (tip,) = counted.found.tips
    size_bytes = counted.found.tiered.partition(tip).tiered_bytes
    reader = counted.reader(
        first_bytes=5000, chunk_bytes=chunk_bytes, read_ahead_bytes=window_chunks * chunk_bytes
    )
    most_ahead_bytes, offset = 0, 0
    while offset < 1000:
        offset = reader.read(tip, offset, chunk_bytes).next_offset
        most_ahead_bytes = max(most_ahead_bytes, reader.reads.read_ahead_stats.waiting_bytes)
    assert counted.gets.size_bytes == size_bytes, "no byte twice, and no index"
    # The first ones are smaller. With requests of one chunk there are 52.
    assert 1 <= counted.gets.requests * request_chunks * chunk_bytes / size_bytes < 1.4
    assert most_ahead_bytes < (window_chunks + request_chunks) * chunk_bytes


def test_a_slice_that_cannot_be_looked_up_ends_the_reading_ahead_and_not_the_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted.of_objects(4)
    (tip,) = counted.found.tips
    reader = counted.reader(first_bytes=10_000, chunk_bytes=40_000, read_ahead_bytes=1 << 20)
    look_up = TieredPartition.slices_from
    refused: list[int] = []

    def look_up_two(partition: TieredPartition, offset: int) -> Iterator[LiveSlice]:
        yield from itertools.islice(look_up(partition, offset), 2)
        refused.append(offset)
        raise StoreUnavailableError("no page")

    monkeypatch.setattr(TieredPartition, "slices_from", look_up_two)
    offset = reader.read(tip, 0, 1).next_offset
    for _ in range(20):
        offset = reader.read(tip, offset, 4000).next_offset
    assert refused, "the window reaches the third slice"
    assert offset >= 60
    monkeypatch.undo()
    assert read_on(reader, tip, offset, 1 << 20)[-1] == 1000


def queueing_reader(counted: Counted, queued: list[Callable[[], None]]) -> RemoteReader:
    """A reader whose read-ahead waits until the test runs it."""
    settings = RemoteReaderSettings(first_bytes=10_000, chunk_bytes=40_000, read_ahead_bytes=160_000)
    threads = ReadThreads(queued.append, ReadThreads.none().requests)
    reads = ObjectReads(counted.store, ManualClock(), threads, settings)
    return RemoteReader(reads, counted.found.tiered.metadata)


def test_nothing_more_is_loaded_ahead_of_a_reader_that_has_left() -> None:
    counted = Counted.of_objects(1)
    (tip,) = counted.found.tips
    queued: list[Callable[[], None]] = []
    reader = queueing_reader(counted, queued)
    offset = 0
    for _ in range(3):
        offset = reader.read(tip, offset, 10_000).next_offset
    requests = counted.gets.requests
    assert len(queued) >= 2
    reader.leave(tip, offset)
    for load in queued:
        load()
    assert counted.gets.requests == requests
    assert reader.reads.read_ahead_stats == (0, 0, 0)
    reader.reads.ranges.check()
    queued.clear()
    # A reader may go on all the same, and is read ahead of again.
    offset = reader.read(tip, offset, 10_000).next_offset
    assert queued
    for load in queued:
        load()
    assert counted.gets.requests > requests
    assert read_on(reader, tip, offset, 1 << 20)[-1] == 1000


@pytest.mark.parametrize("request_number", [1, 2, 3])
def test_a_reader_that_leaves_during_its_read_reads_nothing_ahead(
    monkeypatch: pytest.MonkeyPatch, request_number: int
) -> None:
    """It leaves before its own request, or while read-ahead reserves ranges."""
    counted = Counted.of_objects(1)
    (tip,) = counted.found.tips
    queued: list[Callable[[], None]] = []
    reader = queueing_reader(counted, queued)
    offset = reader.read(tip, 0, 10_000).next_offset
    calls = itertools.count(1)
    request_end = ObjectReads.request_end

    def leave_meanwhile(reads: ObjectReads, position: int, wanted_bytes: int, limit: int) -> int:
        if next(calls) == request_number:
            reader.leave(tip, offset)
        return request_end(reads, position, wanted_bytes, limit)

    monkeypatch.setattr(ObjectReads, "request_end", leave_meanwhile)
    assert reader.read(tip, offset, 10_000).next_offset > offset
    assert next(calls) > request_number
    for load in queued:
        load()
    assert counted.gets.requests == 2
    assert reader.reads.read_ahead_stats == (0, 0, 0)


def test_reading_ahead_begins_where_the_reader_is() -> None:
    counted = Counted.of_objects(1)
    (tip,) = counted.found.tips
    reader = counted.reader(first_bytes=10_000, chunk_bytes=40_000, read_ahead_bytes=1 << 20)
    offset = reader.read(tip, 500, 1 << 20).next_offset
    before = counted.gets
    reader.read(tip, offset, 1 << 20)
    assert counted.gets.requests - before.requests >= 2, "its own request, and what lies ahead"
    read_on(reader, tip, offset, 1 << 20)
    # What lies before an interval of the index is never fetched.
    assert counted.gets.size_bytes < counted.found.tiered.partition(tip).tiered_bytes * 0.6


def test_a_reader_that_seeks_begins_anew() -> None:
    counted = Counted.of_objects(1)
    (tip,) = counted.found.tips
    reader = counted.reader(first_bytes=10_000, chunk_bytes=40_000, read_ahead_bytes=1 << 20)
    offset = reader.read(tip, 0, 1).next_offset
    reader.read(tip, offset, 1)
    counted.store.reset()
    reader.read(tip, 900, 1)
    assert counted.gets.requests == 2, "an index and an interval, and nothing ahead"


def test_two_readers_of_a_partition_do_not_disturb_each_other() -> None:
    counted = Counted.of_objects(1)
    (tip,) = counted.found.tips
    reader = counted.reader(first_bytes=10_000, chunk_bytes=40_000, read_ahead_bytes=0)
    low, high = 0, 500
    for _ in range(6):
        low = reader.read(tip, low, 1 << 20).next_offset
        high = reader.read(tip, high, 1 << 20).next_offset
    assert counted.gets.requests == 13, "one request a read, and one for the index of the second reader"
    assert counted.gets.size_bytes > 12 * 20_000, "both have come to large requests"


def test_slices_of_one_object_are_read_together() -> None:
    """A reader of a topic reads each partition in turn."""
    counted = Counted.of_objects(1, partition_count=30, batch_count=20)
    reader = counted.reader(read_ahead_bytes=0)
    for tip in counted.found.tips:
        reader.read(tip, 0, 1 << 20)
    assert counted.gets.requests <= 6, "twice as much each time"


def test_many_readers_leave_each_other_what_they_read_ahead() -> None:
    """Twenty readers in turn, with windows that would be five times the cache."""
    counted = Counted.of_objects(1, partition_count=20, batch_count=200)
    tips = counted.found.tips
    reader = counted.reader(
        first_bytes=2000, chunk_bytes=50_000, read_ahead_bytes=100_000, data_cache_bytes=400_000
    )
    positions = dict.fromkeys(tips, 0)
    while any(offset < 200 for offset in positions.values()):
        for tip, offset in positions.items():
            positions[tip] = reader.read(tip, offset, 5000).next_offset
    size_bytes = sum(counted.found.tiered.partition(tip).tiered_bytes for tip in tips)
    assert counted.gets.size_bytes < 1.05 * size_bytes, "hardly a byte twice"
    assert reader.reads.read_ahead_stats.wasted_bytes == 0


def test_a_reader_that_has_left_takes_no_share_of_the_cache() -> None:
    """Windows of one reader beside nineteen that have ended are as large as if it were alone."""
    counted = Counted.of_objects(1, partition_count=20, batch_count=200)
    tip, *others = counted.found.tips
    requests: list[int] = []
    for leaves in (True, False):
        reader = counted.reader(
            first_bytes=2000, chunk_bytes=10_000, read_ahead_bytes=20_000, data_cache_bytes=100_000
        )
        for other in others:
            offset = reader.read(other, reader.read(other, 0, 1000).next_offset, 1000).next_offset
            if leaves:
                reader.leave(other, offset)
        before = counted.gets.requests
        assert read_on(reader, tip, 0, 1000)[-1] == 200
        requests.append(counted.gets.requests - before)
    with_shares, crowded = requests
    assert with_shares < crowded / 2


def test_a_cache_without_room_only_costs_requests() -> None:
    counted = Counted.of_objects(2)
    (tip,) = counted.found.tips
    reader = counted.reader(first_bytes=10_000, chunk_bytes=40_000, data_cache_bytes=0)
    assert read_on(reader, tip, 0, 1 << 20)[-1] == 1000


def test_committed_reads_ask_only_the_slices_that_may_hold_a_marker() -> None:
    """A slice at whose end nothing is open ends the search, and one without an abort costs no request."""
    clock = ManualClock()
    store = CountingObjectStore(MemoryObjectStore(clock))
    logs = TieredLogs(MemoryFileSystem(), store, clock, SequentialIds(1), max_object_bytes=1)
    topic = logs.create_topic("t", 1)
    (log,) = logs.logs.values()

    def append(producer: BatchProducer) -> None:
        log.appender.append_as_leader(encode_batch([Record(0, 1, b"k", b"v")], producer=producer), 1)
        log.roll()

    for sequence in range(3):
        append(BatchProducer(7, 0, sequence, is_transactional=True))
        append(BatchProducer(9, 0, sequence))
    log.appender.append_end_transaction_marker(7, 0, 0, committed=False, leader_epoch=1)
    append(BatchProducer(9, 0, 3))
    logs.seal()
    logs.upload()
    tip = TopicIdPartition(topic.topic_id, 0)
    slices = logs.metadata.state().partition(tip).slices
    assert [live.entry.has_aborted for live in slices] == [False] * 6 + [True, False]
    store.reset()
    data = RemoteReader(inline_reads(store), logs.metadata).read(tip, 0, 1, Isolation.TXN_COMMITTED)
    assert data.aborted_transactions == ((7, 0, 6, 7),)
    asked = {kind.kind for kind in store.counts() if kind.verb == "GET"}
    assert len(asked) == 2, "what was read, and the slice with the marker"
