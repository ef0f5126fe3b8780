"""A run whose output is too large for one slice or object becomes several, which together are one output."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_progress import CompactionProgress
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import INPUTS_GONE, Compactor, CompactorConfig
from stratalog.compaction.keys.survivor_bits import new_bitmap, survivor_count
from stratalog.compaction.output.output_division import OutputBounds, divided
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.shard_judge import INPUTS_CHANGED
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.compaction_history import CompactionHistory
from tests.support.tiered.tiered_store import TieredStore

UPLOADS = 8
RECORDS = 10


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 10), st.integers(0, 10)), min_size=1, max_size=9),
    st.integers(1, 250),
    st.integers(1, 25),
)
def test_pieces_are_consecutive_within_the_bounds_and_few(
    sizes: list[tuple[int, int, int]], data_bytes: int, record_count: int
) -> None:
    all_bytes = [size * count for size, count, _ in sizes]
    all_counts = [count for _, count, _ in sizes]
    survivors: list[bytearray] = []
    for _, count, kept in sizes:
        bits = new_bitmap(count)
        bits[:] = ((1 << min(kept, count)) - 1).to_bytes(len(bits), "little")
        survivors.append(bits)
    bounds = OutputBounds(data_bytes, record_count)
    for bitmaps in (None, survivors):
        kept_of = [min(kept, count) if bitmaps is not None else count for _, count, kept in sizes]
        weights = [(size * kept, kept) for (size, _, _), kept in zip(sizes, kept_of, strict=True)]
        pieces = list(divided(all_bytes, all_counts, bitmaps, bounds))
        assert [first for first, _ in pieces] == [0, *(end for _, end in pieces[:-1])]
        assert pieces[-1][1] == len(sizes)
        for first, end in pieces:
            assert first < end
            inside = weights[first:end]
            is_within = all(sum(w[i] for w in inside) <= bounds[i] for i in (0, 1))
            assert is_within or end == first + 1
        for (first, _), (begin, _) in itertools.pairwise(pieces):
            # One more slice would have been too much.
            assert any(sum(w[i] for w in weights[first : begin + 1]) > bounds[i] for i in (0, 1))


def test_survivors_are_counted() -> None:
    assert survivor_count(new_bitmap(13, survives=True)) == 13
    assert survivor_count(new_bitmap(13)) == 0


class World:
    """A compacted partition in a store in memory."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryObjectStore(self.clock)
        self.tiered = TieredStore(MemoryFileSystem(), self.store, self.clock, SequentialIds(1))
        topic = self.tiered.catalog.create("state", 1, {"cleanup.policy": "compact"})
        self.tip = TopicIdPartition(topic.topic_id, 0)

    def upload(self, numbers: range) -> None:
        """One object with a record for each number as its key."""
        base_offset = self.tiered.partition(self.tip).tiered_end_offset
        records = [Record(0, self.clock.now_ms(), b"key-%05d" % key, bytes(100)) for key in numbers]
        self.tiered.upload({self.tip: [encode_batch(records, base_offset=base_offset, leader_epoch=1)]})

    def compact(self, meanwhile: Callable[[], object] = lambda: None) -> CompactionReport:
        """Compact the whole partition in one job, whose outputs are bounded once it is planned; `meanwhile`
        happens then."""
        is_planned = False

        def note(progress: CompactionProgress, _reports: Sequence[CompactionReport]) -> None:
            nonlocal is_planned
            if progress.job_count > 0 and not is_planned:
                is_planned = True
                meanwhile()

        def renewed(settings: CompactionSettings) -> CompactionSettings:
            return bounded(settings) if is_planned else settings

        compactor = Compactor(
            MemoryFileSystem(),
            self.clock,
            SequentialIds(2),
            self.tiered.shard(self.store),
            CompactionSettings(spool_directory="/compaction"),
            CompactorConfig(renewed=renewed),
        )
        (report,) = compactor.run(["state"], on_progress=note)
        return report

    def keys(self) -> list[bytes | None]:
        return [record.key for record in self.tiered.records(self.tip)]


def bounded(settings: CompactionSettings) -> CompactionSettings:
    """Three uploads fit an output."""
    return dataclasses.replace(
        settings, max_job_bytes=4_000, target_object_bytes=4_000, output_part_bytes=1_000
    )


@pytest.mark.parametrize("is_shrinking", [False, True])
def test_a_covering_run_is_one_run_in_several_objects(is_shrinking: bool) -> None:
    world = World()
    for number in range(UPLOADS):
        # Each upload replaces most of the one before it, or nothing.
        first = number if is_shrinking else number * RECORDS
        world.upload(range(first, first + RECORDS))
    world.clock.advance(10_000)
    keys = set(world.keys())
    report = world.compact()
    assert report.refused is None
    partition = world.tiered.partition(world.tip)
    slices = list(partition.slices)
    assert report.inputs == UPLOADS
    assert report.outputs == len({live.object_name for live in slices}) == (1 if is_shrinking else 3)
    assert all(live.entry.data_bytes <= 4_000 for live in slices)
    assert partition.compacted_upto == partition.tiered_end_offset == UPLOADS * RECORDS
    assert sorted(filter(None, world.keys())) == sorted(filter(None, keys))
    # A later record replaces one in any of the slices.
    world.upload(range(5, 7))
    world.clock.advance(10_000)
    assert world.compact().outputs == report.outputs
    assert len(world.keys()) == len(keys)
    assert world.tiered.partition(world.tip).compacted_upto == UPLOADS * RECORDS + 2


def test_a_run_of_slices_whose_keys_are_hashed_is_divided_too() -> None:
    """The copies of their data are numbered by the whole run, and each piece has its own."""
    world = World()
    for number in range(UPLOADS):
        base_offset = number * RECORDS
        records = [
            Record(0, world.clock.now_ms(), b"key-%05d" % key, b"%d" % number * 100)
            for key in range(base_offset, base_offset + RECORDS)
        ]
        batch = encode_batch(records, base_offset=base_offset, leader_epoch=1)
        world.tiered.upload({world.tip: [batch]}, with_key_streams=False)
    before = world.tiered.records(world.tip)
    assert world.compact().outputs > 1
    assert world.tiered.records(world.tip) == before


def test_a_partition_that_is_refused_is_named_once() -> None:
    """Each of the objects of its outputs is refused."""
    world = World()
    for number in range(UPLOADS):
        world.upload(range(number * RECORDS, (number + 1) * RECORDS))
    world.clock.advance(10_000)
    report = world.compact(lambda: world.tiered.compactor().run(["state"]))
    assert report.refused == INPUTS_GONE
    assert report.refused_partitions == ((world.tip, INPUTS_CHANGED),)


@pytest.mark.parametrize("seed", range(3))
def test_lives_with_small_bounds_keep_their_promises_and_come_to_rest(seed: int) -> None:
    history = CompactionHistory(seed)
    history.bounds = {"max_job_bytes": 1_000, "target_object_bytes": 1_000}
    for _ in range(12):
        history.step()
    history.settle()
    history.clock.advance(10_000)
    history.settle()
