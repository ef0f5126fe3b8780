"""The ranges that a job asks the store for: no more than the survivors need, and no data without any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from stratalog.base.filesystem import Buffer
from stratalog.base.scheduler import RunBeside, run_here
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.input_streams import InputBuffers, InputStreams
from stratalog.compaction.plan.input_need import ByteRange, InputNeed
from stratalog.compaction.slice_at_work import SliceAtWork
from stratalog.objectstore.counted import CountedObjectStore, RequestKind
from stratalog.objectstore.resuming_reads import ResumingReads
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.objects.slice_entry import KeyStreamRef, SliceEntry
from stratalog.remote.objects.spool import Spool
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.service.hand_executor import HandExecutor
from tests.support.tiered.stores.ranged_store import RangedStore
from tests.support.tiered.tiered_store import TieredStore

PARTITIONS = 4


class World:
    """A compacted topic of a few partitions."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.store = RangedStore(clock)
        self.counted = CountedObjectStore(self.store, lambda key: "data" if "/data/" in key else "other")
        self.tiered = TieredStore(MemoryFileSystem(), self.store, clock, SequentialIds(1))
        topic = self.tiered.catalog.create("t", PARTITIONS, {"cleanup.policy": "compact"})
        self.tips = [TopicIdPartition(topic.topic_id, number) for number in range(PARTITIONS)]

    def upload(self, keys: Mapping[int, bytes], *, with_key_streams: bool = True) -> str:
        """One object; returns its name. `keys` has the letters that each partition writes, a record each."""
        slices: dict[TopicIdPartition, list[bytes]] = {}
        for number, letters in keys.items():
            base_offset = self.tiered.partition(self.tips[number]).tiered_end_offset
            records = [Record(0, 1000, bytes([letter]), b"x" * 500) for letter in letters]
            slices[self.tips[number]] = [encode_batch(records, base_offset=base_offset, leader_epoch=1)]
        return self.tiered.upload(slices, with_key_streams=with_key_streams)

    def compact(self) -> CompactionReport:
        compactor = self.tiered.compactor(self.counted)
        self.counted.reset()
        self.store.ranges.clear()
        (report,) = compactor.run()
        assert report.refused is None
        for tip in self.tips:
            keys = [record.key for record in self.tiered.records(tip)]
            assert len(keys) == len(set(keys))
        return report

    def data_bytes_read(self) -> int:
        """Bytes that the store has sent of objects."""
        return self.counted.counts()[RequestKind("GET", "data")].size_bytes


def test_the_data_of_an_object_without_survivors_is_not_asked_for() -> None:
    world = World()
    names = [world.upload(dict.fromkeys(range(PARTITIONS), b"ab")) for _ in range(3)]
    report = world.compact()
    assert {name: len(world.store.ranges[name]) for name in names} == dict(zip(names, (1, 1, 2), strict=True))
    assert report.get_requests == 4
    assert report.bytes_read == world.data_bytes_read()


def test_a_range_begins_and_ends_with_slices_that_have_survivors() -> None:
    world = World()
    name = world.upload({0: b"a", 1: b"a", 2: b"a", 3: b"a"})
    world.upload({0: b"a", 1: b"b", 2: b"b", 3: b"a"})
    entries = {
        live.entry.partition: live.entry
        for tip in world.tips
        for live in world.tiered.partition(tip).slices
        if live.object_name == name
    }
    report = world.compact()
    _, data = world.store.ranges[name]
    assert data == (entries[1].data_position, entries[2].data_end_position)
    assert report.bytes_read == world.data_bytes_read()


def test_an_object_is_not_asked_for_data_before_the_partition_that_reads_it() -> None:
    """Its stream would idle until then, and a stream that idles is reset."""
    world = World()
    old = world.upload({0: b"a", 1: b"a"})
    new = world.upload({0: b"a", 1: b"b"})
    world.store.opened.clear()
    world.compact()
    # The keys of both; then the data of partition 0, of which nothing is left in the old one.
    assert [name for name in world.store.opened if name in (old, new)] == [old, new, new, old]


def test_a_slice_whose_keys_are_in_its_data_alone_is_read() -> None:
    world = World()
    name = world.upload({0: b"a", 1: b"a"}, with_key_streams=False)
    world.upload({0: b"a", 1: b"a"})
    report = world.compact()
    assert len(world.store.ranges[name]) == 2
    assert report.records_out == 2


def test_an_empty_slice_does_not_pass_by_the_slice_at_its_position() -> None:
    world = World()
    first, second = world.tips[:2]
    batch = encode_batch(
        [Record(0, 1000, b"a", b"x"), Record(0, 1000, b"b", b"x")], base_offset=0, leader_epoch=1
    )
    world.tiered.upload({first: [], second: [batch]}, end_offsets={first: 5})
    world.upload({0: b"a", 1: b"a"})
    report = world.compact()
    assert report.records_out == 3
    assert [record.key for record in world.tiered.records(second)] == [b"b", b"a"]


def opened(
    world: World,
    name: str,
    entries: Sequence[SliceEntry],
    *,
    chunk_bytes: int,
    run_beside: RunBeside = run_here,
    scratch_type: type[Spool] = Spool,
    scratch_memory_bytes: int = 1 << 20,
) -> InputStreams:
    """The streams of an object."""
    whole_range = ByteRange(entries[0].data_position, entries[-1].data_end_position)
    last_index = entries[-1].index
    return InputStreams(
        ResumingReads(world.store, ManualClock(), world.tiered.layout.data_key(name)),
        world.tiered.metadata.refresh().objects[name].ref,
        InputNeed(
            index_end=last_index.position + last_index.size_bytes, data=whole_range, carried=whole_range
        ),
        lambda: scratch_type(MemoryFileSystem(), "/keys", scratch_memory_bytes),
        InputBuffers(chunk_bytes=chunk_bytes, small_bytes=0),
        SliceAtWork(),
        run_beside,
    )


def opened_for_data(
    world: World, name: str, entries: Sequence[SliceEntry], *, chunk_bytes: int
) -> InputStreams:
    """The streams of an object, whose keys were read; from now on the store notes the sizes of reads."""
    streams = opened(world, name, entries, chunk_bytes=chunk_bytes)
    streams.small_key_stream(entries[0].key_stream or KeyStreamRef(0, 0, 0, 0, 0))
    world.store.read_sizes.clear()
    return streams


def test_an_input_that_is_closed_asks_for_nothing_any_more() -> None:
    world, threads = World(), HandExecutor()
    name = world.upload({0: b"a"})
    (live,) = world.tiered.partition(world.tips[0]).slices
    world.store.ranges.clear()
    streams = opened(world, name, [live.entry], chunk_bytes=1 << 20, run_beside=threads.submit)
    streams.close()
    threads.run_all()
    assert name not in world.store.ranges
    assert streams.reads.is_given_up, "nor for the rest of a stream that breaks now"


def test_batches_that_lie_over_the_ends_of_reads_make_these_no_smaller() -> None:
    world = World()
    records = [Record(0, 1000, b"%d" % number, bytes(60_000)) for number in range(40)]
    batches = [encode_batch([one], base_offset=number) for number, one in enumerate(records)]
    name = world.tiered.upload({world.tips[0]: batches})
    (live,) = world.tiered.partition(world.tips[0]).slices
    chunk_bytes = len(batches[0]) * 7 + 5
    streams = opened_for_data(world, name, [live.entry], chunk_bytes=chunk_bytes)
    assert b"".join(streams.slice_reader(live.entry).rows()) == b"".join(batches)
    streams.close()
    # How large the slice is shows when the second block is asked for.
    first_bytes = 64 << 10
    whole, rest = divmod(live.entry.data_bytes - first_bytes, chunk_bytes)
    assert world.store.read_sizes == [first_bytes] + [chunk_bytes] * whole + [rest]


def test_an_input_that_waits_for_its_turn_has_little_on_its_way() -> None:
    """Others are read meanwhile, and there may be hundreds."""
    world = World()
    batches = [
        encode_batch([Record(0, 1000, b"%d" % number, bytes(60_000))], base_offset=number)
        for number in range(40)
    ]
    name = world.tiered.upload(dict.fromkeys(world.tips[:2], batches))
    entries = [world.tiered.partition(tip).slices[0].entry for tip in world.tips[:2]]
    streams = opened_for_data(world, name, entries, chunk_bytes=1 << 20)
    for number, entry in enumerate(entries):
        assert b"".join(streams.slice_reader(entry).rows()) == b"".join(batches)
        read_bytes = sum(world.store.read_sizes)
        assert max(world.store.read_sizes) == 1 << 20
        assert 0 <= read_bytes - (number + 1) * entry.data_bytes <= 2 * (64 << 10)
    streams.close()


def test_slices_that_are_smaller_than_a_read_share_reads_of_the_connection() -> None:
    world = World()
    store = world.store
    name = world.upload(dict.fromkeys(range(PARTITIONS), bytes(range(25))))
    key = world.tiered.layout.data_key(name)
    entries = [world.tiered.partition(tip).slices[0].entry for tip in world.tips]
    streams = opened_for_data(world, name, entries, chunk_bytes=1 << 20)
    # The second is passed over, and the last is read in rows.
    data = [bytes(streams.hold(one.data_position, one.data_end_position)) for one in (entries[0], entries[2])]
    assert b"".join(streams.slice_reader(entries[2]).rows()) == data[1], "they are held"
    streams.let_go()
    data.append(b"".join(streams.slice_reader(entries[3]).rows()))
    streams.close()
    whole = store.get(key).data
    taken = (entries[0], entries[2], entries[3])
    assert data == [whole[entry.data_position : entry.data_end_position] for entry in taken]
    assert min(map(len, data)) > 12_000
    # Never more than the range, which ends with the last slice.
    assert store.read_sizes == [entries[3].data_end_position - entries[0].data_position]


class NotedSpool(Spool):
    """Notes the sizes of its reads."""

    read_sizes: ClassVar[list[int]] = []

    def read_at(self, position: int, size: int) -> Buffer:
        self.read_sizes.append(size)
        return super().read_at(position, size)


def test_small_indexes_share_a_read_of_scratch() -> None:
    world = World()
    name = world.upload(dict.fromkeys(range(PARTITIONS), b"abc"))
    entries = [world.tiered.partition(tip).slices[0].entry for tip in world.tips]
    NotedSpool.read_sizes.clear()
    streams = opened(
        world, name, entries, chunk_bytes=1 << 20, scratch_type=NotedSpool, scratch_memory_bytes=0
    )
    assert all(streams.is_sound_plain_index(entry.index) for entry in entries)
    # The directory, and all indexes.
    assert len(NotedSpool.read_sizes) == 2
    index = entries[1].index
    for wrong in (index._replace(crc=index.crc ^ 1), index._replace(position=index.position + 1)):
        assert not streams.is_sound_plain_index(wrong)
    assert not streams.is_sound_plain_index(index._replace(size_bytes=1 << 20)), "it is cut off"
    assert streams.is_sound_plain_index(entries[0].index), "one that lies before the last read"
    streams.close()
