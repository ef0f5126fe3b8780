"""A partition is due from the first plan over which a job pays until a job has made progress."""

from __future__ import annotations

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compactor import Compactor
from stratalog.compaction.plan.due_partitions import CompactionBacklog
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_store import TieredStore

HOUR_MS = 3_600_000


class World:
    """A shard with one compacted partition."""

    def __init__(self, **config: str) -> None:
        self.clock = ManualClock()
        self.store = MemoryObjectStore(self.clock)
        self.tiered = TieredStore(MemoryFileSystem(), self.store, self.clock, SequentialIds(1))
        overrides = {"cleanup.policy": "compact"} | {name.replace("_", "."): x for name, x in config.items()}
        self.tip = TopicIdPartition(self.tiered.catalog.create("state", 1, overrides).topic_id, 0)

    def upload(self) -> None:
        base_offset = self.tiered.partition(self.tip).tiered_end_offset
        records = [Record(0, self.clock.now_ms(), b"key", b"%d" % number) for number in range(2)]
        self.tiered.upload({self.tip: [encode_batch(records, base_offset=base_offset, leader_epoch=1)]})

    def measured(self, compactor: Compactor) -> CompactionBacklog:
        compactor.measure()
        return compactor.backlog


def test_a_partition_waits_from_the_first_look_until_a_job_has_had_it() -> None:
    world = World()
    compactor = world.tiered.compactor()
    assert world.measured(compactor) == CompactionBacklog()
    world.upload()
    begin_ms = world.clock.now_ms()
    first = world.measured(compactor)
    assert (first.due_count, first.due_since_ms, first.overdue_since_ms) == (1, begin_ms, -1)
    world.clock.advance(HOUR_MS)
    world.upload()
    second = world.measured(compactor)
    assert second.due_since_ms == begin_ms
    assert second.dirty_bytes > first.dirty_bytes > 0
    # Another process has compacted it, and it is due once more: it does not wait since the first look.
    world.tiered.compactor().run()
    world.clock.advance(HOUR_MS)
    for _ in range(4):
        world.upload()
    assert world.measured(compactor).due_since_ms == world.clock.now_ms()
    world.tiered.compactor().run()
    assert world.measured(compactor) == CompactionBacklog()


def test_a_partition_that_fails_stays_due_while_it_is_left_alone() -> None:
    world = World()
    world.upload()
    live = world.tiered.partition(world.tip).slices[0]
    key = world.tiered.layout.data_key(live.object_name)
    data = bytearray(world.store.get(key).data)
    data[live.entry.data_end_position - 2] ^= 1
    world.store.put(key, data)
    begin_ms = world.clock.now_ms()
    compactor = world.tiered.compactor()
    for _ in range(4):
        compactor.run()
        assert (compactor.backlog.due_count, compactor.backlog.due_since_ms) == (1, begin_ms)
        world.clock.advance(100_000)
    world.tiered.advance_log_start(world.tip, 2)
    assert world.measured(compactor) == CompactionBacklog()


def test_records_are_overdue_from_the_end_of_their_longest_lag() -> None:
    world = World(max_compaction_lag_ms=str(HOUR_MS), min_cleanable_dirty_ratio="1.0")
    world.upload()
    end_ms = world.clock.now_ms() + HOUR_MS
    compactor = world.tiered.compactor()
    world.clock.advance(HOUR_MS - 1)
    assert world.measured(compactor).overdue_since_ms == -1
    world.upload()
    world.clock.advance(5 * HOUR_MS)
    assert world.measured(compactor).overdue_since_ms == end_ms
    compactor.run()
    assert world.measured(compactor).overdue_since_ms == -1


def test_a_run_over_named_topics_is_no_look_at_what_is_due() -> None:
    world = World(min_cleanable_dirty_ratio="1.0")
    world.upload()
    compactor = world.tiered.compactor()
    compactor.run(["state"])
    assert compactor.backlog == CompactionBacklog()
