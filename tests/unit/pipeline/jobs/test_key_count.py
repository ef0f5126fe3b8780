"""A count of keys stays within its bounds, uses all lanes for one partition, and loses no key unnoticed."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from random import Random

import pytest

from stratalog.base.errors import StoreCorruptError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.pipeline.jobs.count_unit import CountBounds, CountedPartition, CountPlan, CountUnit
from stratalog.pipeline.jobs.key_count import CountedKeys, KeyCount, KeyTally, count_keys
from stratalog.pipeline.jobs.slice_means import proof_means
from stratalog.pipeline.jobs.unit_keys import UnitKeys
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.inline_cluster import InlineCluster, InlinePlace
from tests.support.spark.plain_store import START_MS, PlainStore

MAX_KEYS = 300
KEYS_A_SLICE = 100


class ManySlices:
    """A compacted topic with many small slices. Not thread-safe: one test uses it."""

    def __init__(self, slice_count: int, key_count: int) -> None:
        random = Random(slice_count)
        inner = MemoryObjectStore(ManualClock(START_MS))
        self.found = PlainStore(inner)
        self.found.create("t", cleanup_policy="compact")
        (tip,) = self.found.tips["t"]
        self.last: dict[bytes, int] = {}
        """The number of the slice that has the last record, by key."""
        for number in range(slice_count):
            keys = random.sample(range(key_count), KEYS_A_SLICE)
            first = number * KEYS_A_SLICE
            records = [
                Record(first + index, START_MS, b"key-%d" % key, b"") for index, key in enumerate(keys)
            ]
            self.found.tiered.upload({tip: [encode_batch(records, base_offset=first)]})
            self.last |= {b"key-%d" % key: number for key in keys}
        partition = self.found.tiered.partition(tip)
        topic = self.found.tiered.topic(tip)
        self.counted = CountedPartition(
            shard=0,
            hashing=KeyHashing(topic.hash_key),
            log_start_offset=0,
            slices=tuple(partition.slices),
            open_transactions=(),
        )
        # The other store keeps a count for each object that is read.
        self.place = InlinePlace(MemoryFileSystem(), self.found.clock, SequentialIds(5), inner)

    def unit(self) -> CountUnit:
        """All slices as one unit."""
        return CountUnit(
            partition=self.counted, number=0, first_slice=0, cost_bytes=0, first_bucket=0, range_count=1
        )


@pytest.mark.parametrize("key_count", [KEYS_A_SLICE, 50_000])
def test_memory_of_a_unit_grows_neither_with_slices_nor_with_keys(key_count: int) -> None:
    peaks: list[int] = []
    for slice_count in (20, 200):
        many = ManySlices(slice_count, key_count)
        unit = many.unit()
        with many.place() as means:
            keys = UnitKeys(proof_means(means, 0), unit, MAX_KEYS)
            tracemalloc.start()
            try:
                for entries in keys.newest():
                    assert len(entries) <= MAX_KEYS + KEYS_A_SLICE
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_a_bucket_has_few_keys_and_each_lane_reads() -> None:
    many = ManySlices(60, 50_000)
    plan = CountPlan.of([many.counted], 4, CountBounds(MAX_KEYS, 1))
    assert len(plan.groups) == 60
    by_keys = CountPlan.of([many.counted], 4, CountBounds(MAX_KEYS)).groups
    assert sum(map(len, by_keys)) == 60 * KEYS_A_SLICE // MAX_KEYS
    assert len(by_keys) == 4
    count = KeyCount(many.place, MAX_KEYS, 1)
    sizes: Counter[int] = Counter()
    for number, message in count.read(iter(plan.groups)):
        if isinstance(message, CountedKeys):
            sizes[number] += len(message.columns[3])
    assert len(sizes) == plan.bucket_count == 60 * KEYS_A_SLICE // MAX_KEYS
    assert max(sizes.values()) < 1.3 * MAX_KEYS


def test_small_partitions_share_buckets_and_need_none_alone() -> None:
    few = ManySlices(2, KEYS_A_SLICE).counted
    alone = CountPlan.of([few] * 5, 1, CountBounds(MAX_KEYS))
    assert (alone.bucket_count, len(alone.groups)) == (0, 1)
    divided = CountPlan.of([few] * 5, 1, CountBounds(2 * MAX_KEYS, 1))
    units = [unit for group in divided.groups for unit in group]
    assert [(unit.number, unit.first_slice, unit.first_bucket) for unit in units] == [
        (number, 2 * number + index, number // 3) for number in range(5) for index in range(2)
    ]
    assert divided.bucket_count == 2


def test_each_slice_has_its_newest_keys() -> None:
    many = ManySlices(30, 400)
    cluster = InlineCluster(Random(1))
    expected = Counter(many.last.values())
    for bounds in (CountBounds(), CountBounds(MAX_KEYS), CountBounds(7, 1)):
        tally = count_keys(cluster, many.place, [many.counted, many.counted], bounds)
        assert +tally.newest == expected + Counter({30 + number: one for number, one in expected.items()})
    assert cluster.task_count > 3


@pytest.mark.parametrize("copies", [0, 2])
def test_an_output_of_a_task_that_is_lost_or_doubled_fails_the_count(copies: int) -> None:
    """Whichever it is: keys of a unit, its tally, the parts of the tally of a bucket, or a sum."""
    many = ManySlices(4, 400)

    def outputs(place: int = -1) -> list[object]:
        """Count where the output at this place has another number of copies. Returns all outputs."""
        found: list[object] = []

        def copies_of(value: object) -> int:
            found.append(value)
            return copies if len(found) - 1 == place else 1

        cluster = InlineCluster(Random(4))
        cluster.copies = copies_of
        count_keys(cluster, many.place, [many.counted] * 2, CountBounds(MAX_KEYS, 1))
        return found

    every = outputs()
    assert sum(isinstance(one, KeyTally) for one in every) > 3 * 4, "units, buckets, and sums"
    for place, value in enumerate(every):
        if value == KeyTally(Counter(), Counter()):
            outputs(place)
            continue
        with pytest.raises(StoreCorruptError) as caught:
            outputs(place)
        assert {"found_count", "expected_count"} <= caught.value.fields.keys()


def test_an_error_of_a_task_is_that_of_the_count() -> None:
    many = ManySlices(5, 400)
    store = many.found.tiered.store
    live = many.counted.slices[3]
    stream = live.entry.key_stream
    assert stream is not None
    key = many.found.tiered.layout.data_key(live.object_name)
    data = bytearray(store.get(key).data)
    data[stream.position + 40] ^= 1
    store.put(key, bytes(data))
    for bounds in (CountBounds(), CountBounds(MAX_KEYS)):
        with pytest.raises(StoreCorruptError):
            count_keys(InlineCluster(Random(1)), many.place, [many.counted], bounds)
