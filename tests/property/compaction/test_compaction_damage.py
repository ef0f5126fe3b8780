"""Compaction of objects with damage in every part of them: whatever byte is another one, or missing, the job
names the slice, the damaged partition stays as it is, the others are compacted, and once the object is whole
again its partitions are, too.

`make simulate` damages each byte, `make test` some.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compactor import Compactor
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Fault, Operation
from tests.support.logs.sampling import SEED, Sampling
from tests.support.tiered.tiered_store import TieredStore

OBJECTS = 3
BACKOFF_MS = 10 * 60_000
KINDS = pytest.mark.parametrize(
    ("codec", "with_key_streams"),
    [(Codec.NONE, True), (Codec.ZSTD, True), (Codec.NONE, False)],
    ids=["plain", "zstd", "hashed"],
)


class Damage(NamedTuple):
    """A part of an object, and the partitions that cannot be compacted without it."""

    part: str
    begin: int
    end: int
    slices: tuple[LiveSlice, ...] = ()
    is_read: bool = True
    """Whether each job reads it."""


class World:
    """Two partitions in three objects, of each of which some records survive. Not thread-safe."""

    def __init__(self, codec: Codec, *, with_key_streams: bool) -> None:
        self.clock = ManualClock()
        self.store = MemoryObjectStore(self.clock)
        self.tiered = TieredStore(MemoryFileSystem(), self.store, self.clock, SequentialIds(1))
        topic = self.tiered.catalog.create("state", 2, {"cleanup.policy": "compact"})
        self.tips = [TopicIdPartition(topic.topic_id, number) for number in range(2)]
        self.expected: dict[TopicIdPartition, list[Record]] = {}
        written: list[Record] = []
        for number in range(OBJECTS):
            keys = (b"a", b"b", b"only-%d" % number, b"c", b"also-%d" % number)
            records = [
                Record(5 * number + index, self.clock.now_ms(), key, b"%d" % number, (("h", b"x"),))
                for index, key in enumerate(keys)
            ]
            written += records
            batches = [
                encode_batch(part, codec=codec, base_offset=part[0].offset, leader_epoch=1)
                for part in (records[:2], records[2:])
            ]
            self.tiered.upload(dict.fromkeys(self.tips, batches), with_key_streams=with_key_streams)
        last = {record.key: record.offset for record in written}
        for tip in self.tips:
            self.expected[tip] = [record for record in written if last[record.key] == record.offset]
        self.names = sorted(self.tiered.metadata.refresh().objects)

    def data(self, name: str) -> bytes:
        return self.store.get(self.tiered.layout.data_key(name)).data

    def put(self, name: str, data: bytes) -> None:
        self.store.put(self.tiered.layout.data_key(name), data)

    def slices(self) -> dict[TopicIdPartition, tuple[LiveSlice, ...]]:
        state = self.tiered.metadata.refresh()
        return {tip: tuple(state.partition(tip).slices) for tip in self.tips}

    def damages(self) -> dict[str, list[Damage]]:
        """The parts of each object."""
        state = self.tiered.metadata.refresh()
        found: dict[str, list[Damage]] = {}
        for name in self.names:
            ref = state.objects[name].ref
            slices = [
                live for of_tip in self.slices().values() for live in of_tip if live.object_name == name
            ]
            parts = [
                Damage("header", 0, ref.data_position, is_read=False),
                Damage(
                    "directory",
                    ref.directory_position,
                    ref.directory_position + ref.directory_bytes,
                    tuple(slices),
                ),
            ]
            for live in slices:
                entry = live.entry
                parts.append(Damage("data", entry.data_position, entry.data_end_position, (live,)))
                # Producers at the end of the output are those of the last slice.
                index_end = entry.index.position + entry.index.size_bytes
                is_last = name == self.names[-1]
                parts.append(Damage("index", entry.index.position, index_end, (live,), is_last))
                if entry.key_stream is not None:
                    end = entry.key_stream.position + entry.key_stream.size_bytes
                    parts.append(Damage("keys", entry.key_stream.position, end, (live,)))
            end = max(part.end for part in parts)
            found[name] = [*parts, Damage("footer", end, ref.size_bytes, is_read=False)]
        return found

    def tip_of(self, live: LiveSlice) -> TopicIdPartition:
        return self.tips[live.entry.partition]

    def require_left_alone(self, compactor: Compactor, name: str, damage: Damage) -> None:
        """Run the compactor over the damaged object `name`. Partitions are left alone and named, or done."""
        before = self.slices()
        others = {other: self.data(other) for other in self.names}
        compactor.run()
        reasons = compactor.excluded()
        needed = damage.slices if damage.is_read else ()
        blamed = {self.tip_of(live) for live in needed}
        assert reasons.keys() == blamed
        for live in needed:
            reason = reasons[self.tip_of(live)]
            assert name in reason
            if damage.part != "directory":
                assert "topic=`state`" in reason
                assert f"partition=`{live.entry.partition}`" in reason
                assert (
                    f"slice_base_offset=`{live.base_offset}` slice_end_offset=`{live.end_offset}`" in reason
                )
        for tip in self.tips:
            if tip in blamed:
                assert self.slices()[tip] == before[tip]
            else:
                assert self.tiered.records(tip) == self.expected[tip]
        assert {other: self.data(other) for other in self.names} == others

    def require_mended(self, compactor: Compactor, name: str, data: bytes) -> None:
        """Put the whole object back: the next compaction after a while takes what was left alone."""
        self.put(name, data)
        self.clock.advance(BACKOFF_MS)
        compactor.run()
        assert not compactor.excluded()
        for tip in self.tips:
            assert self.tiered.records(tip) == self.expected[tip]


def places(codec: Codec, count: int, *, with_key_streams: bool) -> list[tuple[str, Damage, int]]:
    """So many places of each part of an object amid the others, and of the last."""
    sampling = Sampling()
    world = World(codec, with_key_streams=with_key_streams)
    return [
        (name, damage, position)
        for name, damages in world.damages().items()
        if name != world.names[0]
        for damage in damages
        for position in sampling.at_most(range(damage.begin, damage.end), count)
    ]


@KINDS
def test_a_changed_byte_is_named_and_changes_nothing(codec: Codec, with_key_streams: bool) -> None:
    random = Random(SEED)
    found = places(codec, 2, with_key_streams=with_key_streams)
    parts = {damage.part for _, damage, _ in found}
    assert parts == {"header", "directory", "data", "index", "footer"} | (
        {"keys"} if with_key_streams else set()
    )
    for name, damage, position in found:
        world = World(codec, with_key_streams=with_key_streams)
        whole = world.data(name)
        compactor = world.tiered.compactor()
        bit = random.randrange(8)
        world.put(name, whole[:position] + bytes([whole[position] ^ 1 << bit]) + whole[position + 1 :])
        try:
            world.require_left_alone(compactor, name, damage)
            world.require_mended(compactor, name, whole)
        except AssertionError as error:
            error.add_note(f"{damage.part}, bit {bit} of byte {position}, seed {SEED}")
            raise


@KINDS
def test_an_object_that_is_cut_off_changes_nothing(codec: Codec, with_key_streams: bool) -> None:
    for name, damage, position in places(codec, 1, with_key_streams=with_key_streams):
        if damage.part == "footer":
            continue
        world = World(codec, with_key_streams=with_key_streams)
        whole = world.data(name)
        compactor = world.tiered.compactor()
        before = world.slices()
        world.put(name, whole[:position])
        reports = compactor.run()
        assert any(report.refused is not None and name in report.refused for report in reports), damage
        assert world.slices() == before
        world.require_mended(compactor, name, whole)


@pytest.mark.parametrize("number", range(2 * OBJECTS))
def test_a_byte_that_changes_on_its_way_costs_a_job_and_no_record(number: int) -> None:
    """A byte of each stream in turn."""
    world = World(Codec.NONE, with_key_streams=True)
    streams: list[Operation] = []
    is_open = False

    def plan(operation: Operation) -> Fault:
        if not is_open or operation.verb != "GET" or "/data/" not in operation.key:
            return Fault.NONE
        streams.append(operation)
        return Fault.IS_FLIPPED if len(streams) == number + 1 else Fault.NONE

    compactor = world.tiered.compactor(FaultyObjectStore(world.store, Random(number), plan))
    is_open = True
    compactor.run()
    is_open = False
    damaged = streams[number].key.rpartition("/")[2]
    reasons = compactor.excluded()
    assert reasons
    assert all(damaged in reason for reason in reasons.values())
    for tip in world.tips:
        left = {record.offset for record in world.expected[tip]}
        assert {record.offset for record in world.tiered.records(tip)} >= left
    world.clock.advance(BACKOFF_MS)
    compactor.run()
    for tip in world.tips:
        assert world.tiered.records(tip) == world.expected[tip]
