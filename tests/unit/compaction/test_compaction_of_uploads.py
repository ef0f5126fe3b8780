"""Compaction of what an uploader wrote: producers stay known, and what was aborted displaces nothing."""

from __future__ import annotations

from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor
from stratalog.compaction.job_execution import CompactedShard
from stratalog.log.isolation import Isolation
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.objects.object_directory import read_slice_index
from stratalog.remote.store_identity import StoreIdentity
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.compaction.carried_slices import carry
from tests.support.decoded_records import decode_all
from tests.support.tiered.tiered_site import TieredSite

T0 = TopicPartition("t", 0)


class World(TieredSite):
    """A server with one compacted partition, and a compactor beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = self.start()
        topic = self.logs.create_topic("t", 1, {"cleanup.policy": "compact"})
        self.tip = TopicIdPartition(topic.topic_id, 0)

    def append(self, key: bytes, value: bytes, producer: BatchProducer) -> int:
        record = Record(0, self.clock.now_ms(), key, value)
        data = encode_batch([record], producer=producer)
        return self.logs.logs[T0].appender.append_as_leader(data, self.logs.claimed.epoch).base_offset

    def end(self, producer_id: int, *, committed: bool) -> None:
        self.logs.logs[T0].appender.append_end_transaction_marker(
            producer_id, 0, 0, committed=committed, leader_epoch=self.logs.claimed.epoch
        )

    def roll(self) -> None:
        self.logs.logs[T0].roll()

    def upload(self) -> None:
        """Each segment in an object of its own."""
        self.logs.seal()
        self.logs.upload()

    def compact(self) -> tuple[CompactionReport, ...]:
        identity = StoreIdentity.find(self.store)
        assert identity is not None
        compactor = Compactor(
            MemoryFileSystem(),
            self.clock,
            self.ids,
            CompactedShard(self.store, identity.store_id, self.logs.metadata, self.logs.catalog),
            CompactionSettings(spool_directory="/compaction"),
        )
        return compactor.run(("t",))

    def committed(self) -> dict[bytes | None, bytes | None]:
        """The last committed value of each key, from the object store."""
        offset, end_offset = 0, self.logs.metadata.state().partition(self.tip).tiered_end_offset
        aborted: set[int] = set()
        records: dict[bytes | None, bytes | None] = {}
        while offset < end_offset:
            found = self.logs.reader.read(self.tip, offset, 1 << 20, Isolation.TXN_COMMITTED)
            assert found.next_offset > offset, "a read goes on, though it may return less than is there"
            offset = found.next_offset
            aborted |= {one.producer_id for one in found.aborted_transactions}
            for record in decode_all(found.batches):
                if record.value != b"aborted":
                    records[record.key] = record.value
        assert aborted <= {8}, "which aborts all it does"
        return records


def test_the_producers_of_the_last_slice_are_those_of_the_output() -> None:
    world = World()
    for sequence in range(3):
        world.append(b"k", b"%d" % sequence, BatchProducer(7, 0, sequence))
        world.append(b"k", b"other", BatchProducer(9, 0, sequence))
        world.upload()
    assert [report.refused for report in world.compact()] == [None]
    state = world.logs.metadata.state().partition(world.tip)
    assert len(state.slices) == 1
    world.logs = world.start(MemoryFileSystem())
    assert world.append(b"k", b"2", BatchProducer(7, 0, 2)) == 4, "it was stored there before"
    assert world.append(b"k", b"3", BatchProducer(7, 0, 3)) == 6


def test_what_was_aborted_displaces_nothing_in_whichever_slice_the_marker_lies() -> None:
    world = World()
    world.append(b"a", b"1", BatchProducer(7, 0, 0))
    world.append(b"a", b"2", BatchProducer(7, 0, 1))
    world.upload()
    for sequence in range(2):
        world.append(b"a", b"aborted", BatchProducer(8, 0, sequence, is_transactional=True))
        world.roll()
    world.end(8, committed=False)
    world.roll()
    world.append(b"b", b"1", BatchProducer(7, 0, 2))
    world.upload()
    world.append(b"b", b"2", BatchProducer(7, 0, 3))
    world.upload()
    assert world.committed() == {b"a": b"2", b"b": b"2"}
    (report,) = world.compact()
    assert report.refused is None
    assert report.refused_partitions == ()
    after = world.logs.metadata.state().partition(world.tip)
    assert after.compacted_upto == after.tiered_end_offset
    (live,) = after.slices
    # Two records and the marker: the one that was aborted is gone.
    assert (live.entry.record_count, live.entry.marker_count) == (3, 1)
    assert live.entry.key_stream is not None
    world.logs.logs[T0].retention.delete_local_segments(ignore_retention=True)
    assert world.committed() == {b"a": b"2", b"b": b"2"}


class ManyProducers(World):
    """A partition whose tails are uploaded, with 100 producers in the first of them."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences: dict[int, int] = {}
        self.tail(range(100))

    def tail(self, producer_ids: range) -> None:
        for producer_id in producer_ids:
            sequence = self.sequences.get(producer_id, 0)
            self.sequences[producer_id] = sequence + 1
            self.append(b"k%d" % producer_id, b"%d" % sequence, BatchProducer(producer_id, 0, sequence))
        self.logs.logs[T0].flusher.flush()
        assert self.logs.upload_tails().slice_count == 1

    def since(self) -> list[int | None]:
        """Since when the producers of each live slice have changed."""
        layout = self.logs.metadata.layout
        slices = self.logs.metadata.state().partition(self.tip).slices
        return [
            read_slice_index(self.store, layout, live.object_name, live.entry).producers_since
            for live in slices
        ]

    def compact_all(self) -> None:
        assert [report.refused for report in self.compact()] == [None]
        assert len(self.since()) == 1

    def merge(self, first: int) -> None:
        """Merge the live slices from that one on, as they are."""
        slices = tuple(self.logs.metadata.state().partition(self.tip).slices)[first:]
        carry(self.logs, self.tip, slices, self.ids)

    def check_restored(self) -> None:
        self.logs = self.start(MemoryFileSystem())
        found = {entry.producer_id: entry.last_sequence + 1 for entry in self.logs.logs[T0].producers()}
        assert found == self.sequences


def test_an_output_has_all_producers_where_the_slice_with_a_whole_snapshot_goes() -> None:
    world = ManyProducers()
    world.tail(range(10))
    world.tail(range(5, 15))
    assert world.since() == [None, 100, 100]
    world.compact_all()
    assert world.since() == [None]
    world.check_restored()


def test_a_later_slice_finds_all_producers_in_what_compaction_made_of_the_earlier_ones() -> None:
    world = ManyProducers()
    world.tail(range(10))
    world.compact_all()
    world.tail(range(20, 30))
    assert world.since() == [None, 100], "an offset, and no object, which may go"
    world.check_restored()


def test_an_output_without_the_slice_with_a_whole_snapshot_still_refers_to_it() -> None:
    world = ManyProducers()
    for number in range(3):
        world.tail(range(number, number + 10))
    world.merge(1)
    assert world.since() == [None, 100]
    world.check_restored()


def test_an_output_without_anything_to_refer_to_has_the_producers_with_records() -> None:
    world = ManyProducers()
    world.tail(range(10))
    world.tail(range(5, 15))
    world.logs.metadata.advance_log_start({world.tip: 105}, epoch=world.logs.claimed.epoch, catalog_seq=None)
    world.merge(0)
    assert world.since() == [100]
    world.sequences = {one: count for one, count in world.sequences.items() if one < 15}
    world.check_restored()
