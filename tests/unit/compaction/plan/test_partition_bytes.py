"""A partition may be planned whole where many processes share a job, and small ones stay in small jobs."""

from __future__ import annotations

import dataclasses

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_store import TieredStore

SLICE_COUNT = 8


def planned_slices(max_partition_bytes: int) -> list[list[int]]:
    """For each job of the plan the number of slices of each run: a large partition, and six small ones."""
    clock = ManualClock()
    tiered = TieredStore(MemoryFileSystem(), MemoryObjectStore(clock), clock, SequentialIds(1))
    for name, size_bytes in (("large", 1_000), *((f"small{number}", 400) for number in range(6))):
        topic = tiered.catalog.create(name, 1, {"cleanup.policy": "compact"})
        tip = TopicIdPartition(topic.topic_id, 0)
        for offset in range(SLICE_COUNT if name == "large" else 2):
            batch = encode_batch(
                [Record(0, 0, b"key", bytes(size_bytes))], base_offset=offset, leader_epoch=1
            )
            tiered.upload({tip: [batch]})

    def change(settings: CompactionSettings) -> CompactionSettings:
        return dataclasses.replace(
            settings, max_job_bytes=2_000, max_partition_bytes=max_partition_bytes, max_inputs_per_job=500
        )

    jobs = tiered.compactor(change=change).plan(list(tiered.catalog.topics())).jobs
    return sorted(([len(run.slices) for run in job.runs] for job in jobs), key=max)


def test_a_large_partition_is_one_job_and_small_ones_are_not_gathered_by_its_bound() -> None:
    *small, large = planned_slices(max_partition_bytes=1 << 30)
    assert large == [SLICE_COUNT]
    assert small == [[2, 2]] * 3


def test_without_the_bound_a_job_has_the_bytes_of_a_job() -> None:
    assert max(max(job) for job in planned_slices(max_partition_bytes=0)) < SLICE_COUNT
