"""Small runs that one kernel call compacts: the objects are those of the long way, byte for byte.

The same random life is led twice, once with `compact_runs` and once without. Both stores hold the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.types import TopicIdPartition
from stratalog.compaction import small_runs
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.native import pure_batch_kernels
from stratalog.record.native.batch_filter import CompactedSlices
from stratalog.record.native.batch_kernels import compact_runs
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.kernels import needs_native
from tests.support.logs.sampling import examples_of
from tests.support.tiered.compaction_history import CompactionHistory
from tests.support.tiered.tiered_store import TieredStore

MOSTLY_PLAIN = (Codec.NONE,) * 9 + (Codec.LZ4,)


def contents(store: ObjectStore) -> dict[str, bytes]:
    """All objects, by key."""
    return {info.key: bytes(store.get(info.key).data) for info in store.list("")}


class Ways:
    """Counts the runs that were compacted at once, and those that were refused. Used by one thread."""

    def __init__(self, *, is_long: bool) -> None:
        self.taken_count = self.refused_count = 0
        self._is_long = is_long

    def compact(self, runs: Sequence[Any], *arguments: Any) -> tuple[bytes, CompactedSlices]:
        kernel = pure_batch_kernels.compact_runs if self._is_long else compact_runs
        taken, slices = kernel(runs, *arguments)
        self.refused_count += taken.count(0)
        self.taken_count += taken.count(1)
        return taken, slices


def life(seed: int, ways: Ways) -> dict[str, bytes]:
    """A random life with several compactions of mostly plain batches."""
    with mock.patch.object(small_runs, "compact_runs", ways.compact):
        history = CompactionHistory(seed, codecs=MOSTLY_PLAIN)
        for _ in range(15):
            history.step()
        history.settle()
        return contents(history.store)


@needs_native
@settings(max_examples=examples_of(20))
@given(st.integers(0, 2**32))
def test_objects_are_those_of_the_long_way(seed: int) -> None:
    assert life(seed, Ways(is_long=False)) == life(seed, Ways(is_long=True))


@needs_native
def test_both_ways_are_taken() -> None:
    ways = Ways(is_long=False)
    for seed in range(8):
        life(seed, ways)
    assert ways.taken_count > 5, ways.refused_count
    assert ways.refused_count > 5, ways.taken_count


@needs_native
def test_a_run_that_is_not_decided_at_once_is_decided_the_same() -> None:
    def undecided(runs: Sequence[Any], *_: object) -> list[bytearray | None]:
        return [None] * len(runs)

    with mock.patch.object(small_runs, "decide_runs", undecided):
        refused = life(1, Ways(is_long=False))
    assert refused == life(1, Ways(is_long=True))


@needs_native
@pytest.mark.parametrize("max_bytes", [1, 1000])
def test_runs_that_do_not_fit_one_call_are_the_same(max_bytes: int) -> None:
    with mock.patch.object(small_runs, "MAX_BYTES", max_bytes):
        divided = life(2, Ways(is_long=False))
    assert divided == life(2, Ways(is_long=False))


class World:
    """A compacted topic of many small partitions in a few objects. Used by one thread."""

    def __init__(self, partition_count: int = 20) -> None:
        clock = ManualClock()
        self.store = MemoryObjectStore(clock)
        self.tiered = TieredStore(MemoryFileSystem(), self.store, clock, SequentialIds(1))
        topic = self.tiered.catalog.create("t", partition_count, {"cleanup.policy": "compact"})
        self.tips = [TopicIdPartition(topic.topic_id, number) for number in range(partition_count)]
        self._random = Random(1)

    def upload(self) -> str:
        """A batch of each partition, with the keys a to e; returns the name of the object."""
        slices: dict[TopicIdPartition, list[bytes]] = {}
        for tip in self.tips:
            base_offset = self.tiered.partition(tip).tiered_end_offset
            records = [Record(0, 1000, self._random.choice("abcde").encode(), b"v" * 100) for _ in range(4)]
            slices[tip] = [encode_batch(records, base_offset=base_offset, leader_epoch=1)]
        return self.tiered.upload(slices)

    def flip(self, name: str, position: int) -> None:
        """Change a byte of an object."""
        key = self.tiered.layout.data_key(name)
        data = bytearray(self.store.get(key).data)
        data[position] ^= 1
        self.store.put(key, bytes(data))


@needs_native
def test_all_of_a_small_shard_is_compacted_at_once() -> None:
    world = World()
    for _ in range(3):
        world.upload()
    ways = Ways(is_long=False)
    with mock.patch.object(small_runs, "compact_runs", ways.compact):
        (report,) = world.tiered.compactor().run()
    assert report.refused is None
    assert (ways.taken_count, ways.refused_count) == (len(world.tips), 0)
    for tip in world.tips:
        keys = [record.key for record in world.tiered.records(tip)]
        assert len(keys) == len(set(keys))


@needs_native
@pytest.mark.parametrize("part", ["data", "keys", "index"])
def test_a_flipped_byte_is_named_and_the_others_go_on(part: str) -> None:
    world = World()
    names = [world.upload() for _ in range(3)]
    live = world.tiered.partition(world.tips[7]).slices[-1]
    assert live.object_name == names[-1]
    assert live.entry.key_stream is not None
    position = {
        "data": live.entry.data_position + 80,
        "keys": live.entry.key_stream.position + 20,
        "index": live.entry.index.position + 20,
    }[part]
    world.flip(names[-1], position)
    failed, done, *_ = world.tiered.compactor().run()
    assert failed.refused is not None
    assert {"data": "fails its checksum", "keys": "a block that fails", "index": "an index that fails"}[
        part
    ] in failed.refused
    assert done.refused is None
    assert done.partitions == len(world.tips) - 1
