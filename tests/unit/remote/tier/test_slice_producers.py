"""The producers in the slices of waiting tails: only what has changed, and all of it again for a restored
log."""

from __future__ import annotations

import random

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import MAGIC_POSITION
from stratalog.record.record import Record
from stratalog.remote.objects.object_directory import read_slice_index
from stratalog.remote.objects.slice_index import SliceIndex
from stratalog.remote.tier import followed_producers, slice_producers
from stratalog.remote.tier.slice_producers import (
    LARGE_BATCH_BYTES,
    MAX_PART_COUNT,
    SMALL_PRODUCER_COUNT,
    note_batches,
)
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.overwriting import flip
from tests.support.tiered.counting_object_store import CountingObjectStore
from tests.support.tiered.tiered_site import TieredSite

T0 = TopicPartition("t", 0)
COUNT = 10_000
RECORD_BYTES = 100


class Tails(TieredSite):
    """A partition with many producers, whose tails are uploaded."""

    def __init__(self, count: int = COUNT) -> None:
        super().__init__(max_object_bytes=8 << 20)
        self.store = self.counting = CountingObjectStore(self.bucket)
        self.logs = self.start()
        self.tip = TopicIdPartition(self.logs.create_topic("t", 1).topic_id, 0)
        self.sequences: dict[int, int] = {}
        self.tail(range(count))

    def append(self, producer_id: int) -> int:
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + 1
        return self.send(producer_id, sequence)

    def send(self, producer_id: int, sequence: int) -> int:
        record = Record(0, self.clock.now_ms(), b"k", b"v" * RECORD_BYTES)
        data = encode_batch([record], producer=BatchProducer(producer_id, 0, sequence))
        return self.logs.logs[T0].appender.append_as_leader(data, self.logs.claimed.epoch).base_offset

    def tail(self, producer_ids: range) -> SliceIndex:
        """Each appends one record, and all of them are committed; returns the index of the slice."""
        for producer_id in producer_ids:
            self.append(producer_id)
        self.logs.logs[T0].flusher.flush()
        report = self.logs.upload_tails()
        assert (report.slice_count, report.failed, report.refused) == (1, [], [])
        return self.index(-1)

    def index(self, number: int) -> SliceIndex:
        live = self.logs.metadata.state().partition(self.tip).slices[number]
        return read_slice_index(self.bucket, self.logs.metadata.layout, live.object_name, live.entry)

    def move_log_start(self, offset: int) -> None:
        starts = {self.tip: offset}
        self.logs.metadata.advance_log_start(starts, epoch=self.logs.claimed.epoch, catalog_seq=None)
        self.logs.logs[T0].increment_log_start_offset(offset)

    def lose(self) -> dict[int, int]:
        """Go on with an empty disk; returns the last sequence of each producer that is known there."""
        self.logs = self.start(MemoryFileSystem())
        return {entry.producer_id: entry.last_sequence for entry in self.logs.logs[T0].producers()}

    @property
    def last_sequences(self) -> dict[int, int]:
        return {producer_id: following - 1 for producer_id, following in self.sequences.items()}


def test_a_small_tail_of_a_partition_with_many_producers_is_small() -> None:
    tails = Tails()
    assert tails.index(-1).producers_since is None
    before = set(tails.logs.metadata.state().objects)
    index = tails.tail(range(100, 200))
    assert index.producers_since == COUNT
    sizes = [
        found.ref.size_bytes
        for name, found in tails.logs.metadata.state().objects.items()
        if name not in before
    ]
    assert len(sizes) == 1
    assert sizes[0] < 100 * (RECORD_BYTES + 150), "a whole snapshot has 460 kB"


def test_a_restored_log_knows_all_producers_with_two_indexes() -> None:
    tails = Tails()
    for number in range(10):
        tails.tail(range(100 * number, 100 * number + 150))
    tails.counting.reset()
    assert tails.lose() == tails.last_sequences
    directories = len(tails.logs.metadata.state().objects)
    layout = tails.logs.metadata.layout
    gets = sum(
        tails.counting.total("GET", layout.data_key(name)).requests
        for name in tails.logs.metadata.state().objects
    )
    assert gets == directories + 2
    # A batch that comes again gets the offset of the first time, also one from before the last whole
    # snapshot.
    assert tails.send(9_999, 0) == 9_999
    assert tails.send(120, tails.last_sequences[120]) == COUNT + 170
    assert tails.append(9_999) == COUNT + 1500


def test_a_whole_snapshot_comes_again_after_a_number_of_slices() -> None:
    tails = Tails(400)
    kinds = [tails.tail(range(10)).producers_since for _ in range(MAX_PART_COUNT + 2)]
    assert kinds[:MAX_PART_COUNT] == [400] * MAX_PART_COUNT
    assert kinds[MAX_PART_COUNT:] == [None, 400 + 10 * (MAX_PART_COUNT + 1)]
    assert tails.lose() == tails.last_sequences


def test_the_snapshot_is_whole_where_many_producers_have_changed_or_there_are_few() -> None:
    tails = Tails(400)
    assert tails.tail(range(100)).producers_since == 400
    assert tails.tail(range(100, 101)).producers_since is None, "more than a quarter by now"
    few = Tails(SMALL_PRODUCER_COUNT)
    assert few.tail(range(1)).producers_since is None


def test_the_snapshot_is_whole_where_the_last_whole_one_was_dropped() -> None:
    tails = Tails(400)
    tails.tail(range(10))
    tails.move_log_start(399)
    assert tails.tail(range(10)).producers_since == 400, "the slice with the last record is there"
    tails.move_log_start(400)
    assert tails.tail(range(10)).producers_since is None
    assert tails.lose() == tails.last_sequences


def test_without_the_slice_of_the_whole_snapshot_only_producers_without_records_are_forgotten() -> None:
    tails = Tails(400)
    tails.tail(range(10))
    tails.tail(range(5, 15))
    tails.move_log_start(405)
    assert tails.lose() == {one: tails.last_sequences[one] for one in range(15)}
    tails = Tails(400)
    tails.tail(range(10))
    tails.tail(range(5, 15))
    tails.move_log_start(415)
    assert tails.lose() == {one: tails.last_sequences[one] for one in range(15)}, (
        "those of the last slice too"
    )


def test_the_snapshot_is_whole_first_after_a_start() -> None:
    tails = Tails(400)
    tails.tail(range(10))
    tails.logs.close()
    tails.logs = tails.start()
    assert tails.tail(range(10)).producers_since is None
    assert tails.tail(range(10)).producers_since == 420


def test_a_segment_of_the_other_uploader_between_two_tails_is_no_base() -> None:
    tails = Tails(400)
    for producer_id in range(100, 110):
        tails.append(producer_id)
    tails.logs.seal()
    tails.logs.upload()
    assert tails.index(-1).producers_since is None
    assert tails.tail(range(10)).producers_since is None
    assert tails.lose() == tails.last_sequences


def test_producers_that_the_log_has_forgotten_leave_the_snapshots() -> None:
    tails = Tails(400)
    tails.tail(range(10))
    tails.clock.advance(25 * 3600 * 1000)
    tails.append(399)
    tails.logs.logs[T0].remove_expired_producers()
    for _ in range(MAX_PART_COUNT):
        tails.tail(range(390, 391))
    assert tails.lose() == {one: tails.last_sequences[one] for one in (390, 399)}


def test_kept_producers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_producers, "MAX_PRODUCER_COUNT", 300)
    tails = Tails(400)
    assert tails.tail(range(10)).producers_since is None, "they are read anew"
    assert tails.lose() == tails.last_sequences


def test_of_too_many_producers_the_idle_ones_are_left_out_of_a_whole_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slice_producers, "MAX_PRODUCER_COUNT", 390)
    tails = Tails(400)
    assert tails.lose().keys() == set(range(10, 400))


@pytest.mark.parametrize("damaged_at", [None, 5_000, 100_000])
def test_large_batches_are_noted_by_their_headers(damaged_at: int | None) -> None:
    """The walk that compares checksums finds the same, and the upload proves the batches later."""
    sizes = [100, LARGE_BATCH_BYTES, 200, 2 * LARGE_BATCH_BYTES, LARGE_BATCH_BYTES]
    data = bytearray()
    for number, size in enumerate(sizes):
        record = Record(0, 1_000 + number, b"k", b"v" * size)
        data += encode_batch([record], base_offset=number, producer=BatchProducer(7, 0, number))
    if damaged_at is not None:
        data[damaged_at] ^= 1
    noted = note_batches(bytes(data))
    assert (noted.end_position, noted.error) == (len(data), None)
    assert [batch.header.base_sequence for _, batch in noted.batches] == [0, 1, 2, 3, 4]
    assert [position for position, _ in noted.batches] == [row.end_position for row in noted.rows]
    assert [row.max_timestamp_ms for row in noted.rows] == [1_000, 1_001, 1_002, 1_003, 1_004]
    data[noted.rows[2].end_position + MAGIC_POSITION] = 9
    assert note_batches(bytes(data)).end_position == noted.rows[2].end_position


@pytest.mark.parametrize(("tail_bytes", "end_offset"), [(0, 1), (4 << 20, 3)])
def test_a_damaged_file_ends_the_upload_unless_memory_has_its_batches(
    tail_bytes: int, end_offset: int
) -> None:
    """The proof of an upload does not rest on what was noted."""
    site = TieredSite(max_object_bytes=8 << 20, tail_bytes=tail_bytes)
    logs = site.start()
    topic = logs.create_topic("t", 1)
    for number in range(3):
        record = Record(0, site.clock.now_ms(), b"k", b"v" * 2 * LARGE_BATCH_BYTES)
        data = encode_batch([record], producer=BatchProducer(7, 0, number))
        logs.logs[T0].appender.append_as_leader(data, logs.claimed.epoch)
    logs.logs[T0].flusher.flush()
    segment = logs.logs[T0].local_log.segments.active
    flip(site.disk, segment.path, segment.size_bytes // 2)
    report = logs.upload_tails()
    assert [type(one.error) for one in report.failed] == [CorruptRecordError] * (end_offset < 3)
    tip = TopicIdPartition(topic.topic_id, 0)
    assert logs.metadata.state().partition(tip).tiered_end_offset == end_offset


def test_large_batches_make_the_same_object_from_memory_as_from_the_file() -> None:
    objects: list[dict[str, bytes]] = []
    for tail_bytes in (0, 4 << 20):
        site = TieredSite(max_object_bytes=8 << 20, tail_bytes=tail_bytes)
        logs = site.start()
        logs.create_topic("t", 1)
        for number, (codec, key) in enumerate([(Codec.NONE, b"k"), (Codec.ZSTD, b"k"), (Codec.NONE, None)]):
            value = random.Random(number).randbytes(2 * LARGE_BATCH_BYTES)
            data = encode_batch([Record(0, site.clock.now_ms(), key, value)] * 2, codec=codec)
            logs.logs[T0].appender.append_as_leader(data, logs.claimed.epoch)
        logs.logs[T0].flusher.flush()
        assert not logs.upload_tails().failed
        keys = [one.key for one in site.bucket.list("") if one.size > 4 * LARGE_BATCH_BYTES]
        objects.append({key: bytes(site.bucket.get(key).data) for key in keys})
    assert len(objects[0]) == 1
    assert objects[0] == objects[1]
