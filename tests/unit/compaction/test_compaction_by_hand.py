"""`compaction run TOPIC` of a partition that is larger than a job: what a job by hand writes again."""

from __future__ import annotations

import dataclasses
import itertools

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_store import TieredStore

MAX_INPUTS = 4
RECORD_BYTES = 1000


class World:
    """A compacted partition. Used by one thread."""

    def __init__(self) -> None:
        clock = ManualClock()
        store = MemoryObjectStore(clock)
        self.tiered = TieredStore(MemoryFileSystem(), store, clock, SequentialIds(1))
        topic = self.tiered.catalog.create("t", 1, {"cleanup.policy": "compact"})
        self.tip = TopicIdPartition(topic.topic_id, 0)
        self.max_job_bytes = 5 * RECORD_BYTES
        self._keys = itertools.count()

    def upload(self, record_count: int, key: int | None = None) -> None:
        """A slice of about so many times `RECORD_BYTES`. Each record has a key of its own, unless there is a
        `key`."""
        base_offset = self.tiered.partition(self.tip).tiered_end_offset
        records = (
            Record(0, 0, b"%d" % (next(self._keys) if key is None else key), bytes(RECORD_BYTES - 100))
            for _ in range(record_count)
        )
        batches = [
            encode_batch([one], base_offset=base_offset + number, leader_epoch=1)
            for number, one in enumerate(records)
        ]
        self.tiered.upload({self.tip: batches})

    def run(self) -> list[list[int]]:
        """Compact the topic by hand until nothing is left. Returns the base offsets of what each job read."""
        jobs: list[list[int]] = []
        while True:
            compactor = self.tiered.compactor(change=self._small)
            planned = compactor.plan(["t"]).jobs
            if not planned:
                return jobs
            runs = [run for job in planned for run in job.runs]
            jobs += (list(run.slices.column("base_offset")) for run in runs)
            assert all(report.refused is None for report in compactor.run(["t"]))
            assert len(jobs) < 50, "it comes to no end"

    def _small(self, settings: CompactionSettings) -> CompactionSettings:
        return dataclasses.replace(
            settings,
            max_inputs_per_job=MAX_INPUTS,
            max_job_bytes=self.max_job_bytes,
            target_object_bytes=self.max_job_bytes,
        )

    @property
    def bases(self) -> list[int]:
        return [live.base_offset for live in self.tiered.partition(self.tip).slices]


def test_a_job_by_hand_compares_dirty_slices_with_all_before_them() -> None:
    """A head of as many full slices as a job reads, and dirty slices behind it: `compacted_upto` once stood
    still for ever, and a key stayed in both."""
    world = World()
    for record_count in (4, 4, 3, 3):
        world.upload(record_count)
    world.run()
    assert world.run() == [], "nothing is dirty"
    head = world.bases
    assert len(head) == MAX_INPUTS
    for _ in range(5):
        world.upload(1, key=0)
        before = world.bases
        assert world.run()[0] == before
        partition = world.tiered.partition(world.tip)
        assert partition.compacted_upto == partition.tiered_end_offset
        assert [record.key for record in world.tiered.records(world.tip)].count(b"0") == 1
    assert len(world.bases) <= len(head) + 1, "what it writes fits the bytes of a job, too"
    assert world.run() == []


def test_slices_of_a_clean_head_that_fit_together_by_now_become_one_and_the_others_stay() -> None:
    """All of the head was written again for each pair of them."""
    world = World()
    for record_count in (4, 4, 3, 3):
        world.upload(record_count)
    world.run()
    *large, third, fourth = world.bases
    world.max_job_bytes = 13 * RECORD_BYTES // 2
    world.upload(1, key=0)
    first, second, *others = world.run()
    assert first == [third, fourth], "these make room for the dirty slice"
    assert second == [*large, third, 14], "it is compared with all of the head"
    assert others == []
    assert world.run() == []
