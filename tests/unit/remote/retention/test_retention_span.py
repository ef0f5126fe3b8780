"""Retention holds to within the bound of a slice, whatever was uploaded, merged and compacted."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor
from stratalog.compaction.job_execution import CompactedShard
from stratalog.log.log_config import LogConfig
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.object_directory import read_slice_index
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.objects.slice_index import SliceIndex
from stratalog.remote.objects.slice_span import SliceSpan
from stratalog.remote.retention.remote_retention import (
    ExplainedPartition,
    RemoteRetention,
    RetentionReport,
)
from stratalog.remote.store_identity import StoreIdentity
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.sampling import examples_of, whole_only
from tests.support.tiered.tiered_site import TieredSite

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
MIB = 1 << 20


class World(TieredSite):
    """A server with one partition and a compactor. Local copies go as soon as they are uploaded."""

    def __init__(self, config: dict[str, str], *, max_object_bytes: int = 4 * MIB) -> None:
        super().__init__(max_object_bytes=max_object_bytes)
        self.logs = self.start()
        self.topic = self.logs.create_topic("t", 1, config)
        self.tip = TopicIdPartition(self.topic.topic_id, 0)
        self.log = self.logs.logs[TopicPartition("t", 0)]
        self.indexes_read = 0
        self.retention = RemoteRetention(self.logs.metadata, self._index)
        identity = StoreIdentity.find(self.store)
        assert identity is not None
        self.compactor = Compactor(
            MemoryFileSystem(),
            self.clock,
            self.ids,
            CompactedShard(self.store, identity.store_id, self.logs.metadata, self.logs.catalog),
            CompactionSettings(spool_directory="/compaction", merge_fanout=3),
        )

    def append(self, timestamp_ms: int, *, key: bytes = b"k", size_bytes: int = 100) -> None:
        self.logs.append(self.log, [Record(0, timestamp_ms, key, bytes(size_bytes))])

    def upload(self) -> None:
        self.logs.seal()
        self.logs.upload()
        self.log.retention.delete_local_segments(ignore_retention=True)

    def compact(self) -> None:
        assert [one.refused for one in self.compactor.run() if one.inputs and one.refused] == []

    def alter(self, config: dict[str, str]) -> None:
        """Give the topic this configuration."""
        self.topic = self.logs.catalog.alter(self.topic.topic_id, config=config)
        self.log.reconfigure(LogConfig.from_overrides(config))

    def retain(self) -> RetentionReport:
        catalog_seq = self.logs.catalog.confirm([self.topic]).catalog_seq
        return self.retention.run([self.log], epoch=self.logs.claimed.epoch, catalog_seq=catalog_seq)

    def explain(self) -> ExplainedPartition:
        [explained] = self.retention.explain([self.log])
        assert isinstance(explained, ExplainedPartition)
        return explained

    @property
    def slices(self) -> Sequence[LiveSlice]:
        return tuple(self.logs.metadata.refresh().partition(self.tip).slices)

    @property
    def start_offset(self) -> int:
        start_offset = self.logs.metadata.refresh().partition(self.tip).log_start_offset
        assert start_offset == self.log.offsets.log_start_offset
        self.logs.metadata.check()
        return start_offset

    def _index(self, name: str, entry: SliceEntry) -> SliceIndex:
        self.indexes_read += 1
        return read_slice_index(self.store, self.logs.metadata.layout, name, entry)


@pytest.mark.parametrize(
    ("cleanup_policy", "retains_daily"),
    [
        ("delete", True),
        ("compact,delete", False),
        pytest.param("delete", False, marks=whole_only),
        pytest.param("compact,delete", True, marks=whole_only),
    ],
)
def test_two_days_stay_of_fifteen(cleanup_policy: str, *, retains_daily: bool) -> None:
    """Uploads and merges 300 records in 15 days, of which all stayed once."""
    world = World({"retention.ms": str(2 * DAY_MS), "cleanup.policy": cleanup_policy})
    times_ms: list[int] = []
    for number in range(300):
        times_ms.append(world.clock.now_ms())
        world.append(times_ms[-1], key=b"%d" % number)
        world.clock.advance(DAY_MS // 20)
        if number % 2:
            world.upload()
        if number % 20 == 19:
            world.compact()
            if retains_daily:
                world.retain()
    assert len(world.slices) < 150, "uploads were merged"
    world.retain()
    kept_ms = [record.timestamp_ms for record in world.logs.tiered_records(world.log)]
    now_ms = world.clock.now_ms()
    span = SliceSpan.of(world.log.local_log.config)
    assert span.max_ms == 6 * HOUR_MS
    assert kept_ms == [time_ms for time_ms in times_ms if time_ms >= kept_ms[0]]
    assert all(time_ms in kept_ms for time_ms in times_ms if now_ms - time_ms <= 2 * DAY_MS)
    assert now_ms - kept_ms[0] <= 2 * DAY_MS + span.max_ms
    assert world.indexes_read == 0, "no slice is wider than the bound"


def test_a_partition_that_is_kept_does_not_keep_the_expired_bytes_beside_it() -> None:
    """Objects have nine parts of a topic that expires and one of a topic that stays."""
    world = World({"retention.ms": str(DAY_MS)})
    world.logs.create_topic("kept", 1, {"retention.ms": "-1"})
    kept = world.logs.logs[TopicPartition("kept", 0)]
    records: list[Record] = []
    for _ in range(12):
        for _ in range(9):
            world.append(world.clock.now_ms(), size_bytes=10_000)
        records += world.logs.append(kept, [Record(0, world.clock.now_ms(), b"k", bytes(10_000))])
        world.upload()
        kept.retention.delete_local_segments(ignore_retention=True)
        world.clock.advance(DAY_MS)
    world.retain()
    assert stored_and_live_bytes(world)[0] > 5 * stored_and_live_bytes(world)[1], "most of them are dead"
    for _ in range(4):
        world.compact()
    stored_bytes, live_bytes = stored_and_live_bytes(world)
    assert live_bytes >= 12 * 10_000
    assert stored_bytes < 2 * live_bytes
    assert world.logs.tiered_records(kept) == records


def stored_and_live_bytes(world: World) -> tuple[int, int]:
    """The sizes of the objects with live slices, and the data in these slices."""
    objects = world.logs.metadata.refresh().objects.values()
    return sum(one.ref.size_bytes for one in objects), sum(one.live_bytes for one in objects)


def test_the_size_that_stays_exceeds_the_limit_by_a_slice_at_most() -> None:
    world = World({"retention.ms": "-1", "retention.bytes": str(16 * MIB)})
    for number in range(100):
        world.append(world.clock.now_ms(), size_bytes=MIB // 4)
        if number % 2:
            world.upload()
        if number % 10 == 9:
            world.compact()
            world.retain()
    assert max(live.entry.data_bytes for live in world.slices) > MIB, "uploads were merged"
    kept_bytes = sum(len(record.value or b"") for record in world.logs.tiered_records(world.log))
    assert kept_bytes + MIB // 4 >= 16 * MIB, "at least the limit stays, but for the batches' own bytes"
    assert kept_bytes <= 18 * MIB


@settings(max_examples=examples_of(8))
@given(st.integers(0, 2**32))
def test_no_record_outlives_retention_by_more_than_a_slice_and_no_young_one_goes(seed: int) -> None:
    """Random times, late ones and ones of the future among them, random uploads, merges and retention."""
    chance = random.Random(seed)
    retention_ms = chance.choice([HOUR_MS, 8 * HOUR_MS, DAY_MS])
    policy = chance.choice(["delete", "compact,delete"])
    world = World({"retention.ms": str(retention_ms), "cleanup.policy": policy}, max_object_bytes=2_000)
    span_ms = SliceSpan.of(world.log.local_log.config).max_ms
    times_ms: list[int] = []
    newest_ms: list[int] = []
    for number in range(chance.randrange(20, 60)):
        late_ms = chance.choice([0, 0, 0, 0, retention_ms // 3, 3 * retention_ms, -MINUTE_MS])
        times_ms.append(world.clock.now_ms() - late_ms)
        newest_ms.append(max(times_ms))
        world.append(times_ms[-1], key=b"%d" % number)
        world.clock.advance(chance.randrange(retention_ms // 5))
        if chance.random() < 0.5:
            world.upload()
        if chance.random() < 0.2:
            world.compact()
        if chance.random() < 0.2:
            world.upload()
            world.retain()
            now_ms, start_offset = world.clock.now_ms(), world.start_offset
            assert all(now_ms - time_ms > retention_ms for time_ms in times_ms[:start_offset])
            # A record is as old as the newest one up to it: the log loses records from its front only.
            kept_ms = newest_ms[start_offset:]
            assert all(now_ms - time_ms <= retention_ms + span_ms for time_ms in kept_ms)


@settings(max_examples=examples_of(5))
@given(st.integers(0, 2**32))
def test_what_stays_exceeds_a_small_limit_by_one_segment_or_one_batch(seed: int) -> None:
    """Random limits and segments far below those of a large topic, batches up to a segment, random uploads,
    merges and retention."""
    chance = random.Random(seed)
    limit = chance.choice([0, 5_000, 100_000])
    segment_bytes = chance.choice([2_000, 10_000, 50_000])
    config = {
        "retention.bytes": str(limit),
        "segment.bytes": str(segment_bytes),
        "index.interval.bytes": "500",
    }
    world = World({**config, "retention.ms": "-1", "max.message.bytes": str(segment_bytes)})
    for number in range(chance.randrange(20, 60)):
        size_bytes = chance.choice([100, 100, segment_bytes // 20, segment_bytes // 2, segment_bytes - 200])
        world.append(world.clock.now_ms(), key=b"%d" % number, size_bytes=size_bytes)
        if chance.random() < 0.3:
            world.upload()
        if chance.random() < 0.1:
            world.compact()
        if chance.random() < 0.2:
            world.upload()
            world.retain()
            kept_bytes = sum(live.entry.data_bytes for live in world.slices)
            assert kept_bytes <= limit + segment_bytes
            assert kept_bytes >= limit or world.start_offset == 0


@settings(max_examples=examples_of(5))
@given(st.integers(0, 2**32))
def test_no_record_outlives_a_short_retention_by_more_than_a_segment(seed: int) -> None:
    chance = random.Random(seed)
    retention_ms = chance.choice([1_000, 30_000, 120_000])
    segment_ms = chance.choice([500, 5_000, 60_000])
    world = World({"retention.ms": str(retention_ms), "segment.ms": str(segment_ms)})
    times_ms: list[int] = []
    for number in range(chance.randrange(20, 60)):
        times_ms.append(world.clock.now_ms())
        world.append(times_ms[-1], key=b"%d" % number)
        world.clock.advance(chance.randrange(retention_ms // 4))
        if chance.random() < 0.3:
            world.upload()
        if chance.random() < 0.1:
            world.compact()
        if chance.random() < 0.2:
            world.upload()
            world.retain()
            now_ms, start_offset = world.clock.now_ms(), world.start_offset
            assert all(now_ms - time_ms > retention_ms for time_ms in times_ms[:start_offset])
            assert all(now_ms - time_ms <= retention_ms + segment_ms for time_ms in times_ms[start_offset:])


def test_a_shorter_retention_ends_inside_of_a_slice_of_before() -> None:
    world = World({"retention.ms": "-1"})
    for _ in range(400):
        # An index has an interval of 64 KiB: of a few records here.
        world.append(world.clock.now_ms(), size_bytes=20_000)
        world.clock.advance(HOUR_MS)
        if world.log.offsets.log_end_offset % 100 == 0:
            world.upload()
    world.compact()
    [wide] = world.slices
    config = {"retention.ms": str(4 * DAY_MS)}
    world.alter(config)
    explained = world.explain()
    assert explained.new_log_start_offset > 0
    [part] = explained.tiered.expired
    assert (part.base_offset, part.end_offset) == (0, explained.new_log_start_offset)
    assert 0 < part.size_bytes < wide.entry.data_bytes
    assert explained.tiered.next is not None
    assert explained.tiered.next.base_offset == explained.new_log_start_offset
    world.retain()
    assert world.start_offset == explained.new_log_start_offset
    assert world.slices == (wide,), "its bytes stay"
    # 12 hours are the bound, 96 hours the retention, and an hour has passed since the last record.
    assert 400 - 96 - 12 <= world.start_offset <= 400 - 96
    assert (world.retain().advanced, world.indexes_read) == ((), 1)
    world.clock.advance(DAY_MS)
    expected_ms = explained.tiered.next.time_ms
    assert expected_ms <= world.clock.now_ms()
    before = world.start_offset
    world.retain()
    assert 24 - 12 <= world.start_offset - before <= 24 + 12
    world.clock.advance(5 * DAY_MS)
    world.retain()
    assert (world.start_offset, len(world.slices)) == (400, 0)


def test_a_lower_size_ends_inside_of_a_slice_of_before() -> None:
    world = World({"retention.ms": "-1"}, max_object_bytes=16 * MIB)
    for _ in range(80):
        world.append(world.clock.now_ms(), size_bytes=MIB // 10)
    world.upload()
    [wide] = world.slices
    world.alter({"retention.ms": "-1", "retention.bytes": str(4 * MIB)})
    world.retain()
    assert world.slices == (wide,)
    kept_bytes = sum(len(record.value or b"") for record in world.logs.tiered_records(world.log))
    assert 4 * MIB - MIB // 10 <= kept_bytes <= 5 * MIB + MIB // 10
    assert world.retain().advanced == (), "what lies below the log start counts no more"


def test_an_index_that_is_lost_keeps_its_slice_and_is_reported() -> None:
    world = World({"retention.ms": "-1"})
    for _ in range(3):
        world.append(world.clock.now_ms())
        world.clock.advance(DAY_MS)
    world.upload()
    world.alter({"retention.ms": str(2 * DAY_MS)})
    [live] = world.slices
    world.bucket.delete_many([world.logs.metadata.layout.data_key(live.object_name)])
    [failed] = world.retain().failed
    assert failed.topic_partition == world.log.topic_partition
    assert world.start_offset == 0
    world.clock.advance(3 * DAY_MS)
    assert world.retain().failed == (), "the whole slice needs no index"
    assert world.start_offset == 3


@pytest.mark.parametrize("cleanup_policy", ["delete", "compact,delete"])
def test_slices_without_timestamps_age_by_their_upload_whatever_is_merged(cleanup_policy: str) -> None:
    world = World({"retention.ms": str(DAY_MS), "cleanup.policy": cleanup_policy})
    for number in range(6):
        world.append(-1, key=b"%d" % number)
        world.upload()
        world.clock.advance(HOUR_MS)
    uploaded_ms = {one.uploaded_ms for one in world.logs.metadata.refresh().objects.values()}
    assert len(uploaded_ms) == 6
    world.compact()
    objects = world.logs.metadata.refresh().objects.values()
    assert len(objects) == 6, "a merged slice would be as young as its youngest part"
    assert max(one.uploaded_ms for one in objects) == max(uploaded_ms)
    world.clock.advance(DAY_MS - 6 * HOUR_MS + 1)
    world.retain()
    assert world.start_offset == 1
    world.clock.advance(5 * HOUR_MS)
    world.retain()
    assert world.start_offset == 6


def test_records_of_the_future_are_counted_and_explained() -> None:
    world = World({"retention.ms": str(DAY_MS), "message.timestamp.after.max.ms": str(90 * DAY_MS)})
    now_ms = world.clock.now_ms()
    world.append(now_ms)
    world.upload()
    # Within the difference that clocks may have, nothing is wrong.
    world.append(now_ms + 4 * MINUTE_MS)
    world.upload()
    assert world.retain().future_count == 0
    world.append(now_ms + 30 * DAY_MS)
    world.upload()
    assert world.retain().future_count == 1
    following = world.explain().tiered.next
    assert following is not None
    assert "behind it records are in the future, up to " in following.reason
    world.clock.advance(2 * DAY_MS)
    assert world.retain().future_count == 1
    assert world.start_offset == 2
    following = world.explain().tiered.next
    assert following is not None
    assert following.reason.startswith("its newest record is in the future, ")
    assert following.time_ms == now_ms + 31 * DAY_MS + 1
    world.alter({"retention.ms": "-1"})
    assert world.retain().future_count == 0, "no rule asks for its age"


def test_an_upload_of_a_backlog_ends_its_slices_at_the_bound_of_bytes() -> None:
    world = World({"retention.ms": "-1", "retention.bytes": str(16 * MIB)})
    for _ in range(32):
        world.append(world.clock.now_ms(), size_bytes=MIB // 4)
    world.upload()
    sizes = [live.entry.data_bytes for live in world.slices]
    assert len(sizes) == 5
    assert all(MIB < size_bytes <= 2 * MIB for size_bytes in sizes[:-1])


def test_parts_without_times_are_as_old_as_the_upload_of_their_slice() -> None:
    """Not as old as the records behind them, which may be of long ago."""
    world = World({})
    for _ in range(30):
        world.append(-1, size_bytes=MIB // 10)
    world.upload()
    world.append(world.clock.now_ms() - 10 * DAY_MS)
    world.upload()
    [wide, _] = world.slices
    world.alter({"retention.ms": str(DAY_MS), "retention.bytes": str(2 * MIB)})
    world.retain()
    assert 0 < world.start_offset < wide.end_offset
    kept = world.logs.tiered_records(world.log)
    assert sum(len(one.value or b"") for one in kept) >= 2 * MIB


def test_a_divided_compaction_keeps_one_record_of_each_key_over_all_its_parts() -> None:
    """Keys come again in other parts, and one of them only in the first."""
    world = World({"retention.ms": str(16 * DAY_MS), "cleanup.policy": "compact,delete"})
    expected: dict[bytes | None, int] = {}
    for number in range(60):
        key = b"once" if number == 5 else b"%d" % (number % (7 if number < 40 else 3))
        expected[key] = number
        world.append(world.clock.now_ms(), key=key)
        world.upload()
        world.clock.advance(6 * HOUR_MS)
    world.compact()
    assert 5 < len(world.slices) < 12, "two days each"
    assert len({live.object_name for live in world.slices}) == len(world.slices)
    assert world.logs.metadata.refresh().partition(world.tip).compacted_upto == 60
    found = world.logs.tiered_records(world.log)
    assert {record.key: record.offset for record in found} == expected
    assert len(found) == len(expected)
