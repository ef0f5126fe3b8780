"""A year of traffic on one shard, as objects and slices without bytes, compacted as a server would.

Each turn uploads objects with a slice of each partition, of random size. Then a plan is made, and its jobs
are carried out on the state. Each day retention drops the slices that have expired. A compacted partition
overwrites random keys: of `n` records of `k` keys, `k * (1 - exp(-n / k))` keys are left.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.plan.compaction_job import PartitionRun, RunMode
from stratalog.compaction.plan.planner import plan
from stratalog.compaction.plan.shard_survey import data_bytes_of
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.slice_span import SliceSpan
from tests.support.simulation.planned_shard import Shard, entry_of, slices_of, topic

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
MIB = 1 << 20
FOR_EVER, WEEK, COMPACTED = (
    topic(1, is_compacted=False),
    topic(2, is_compacted=False, span=SliceSpan(max_ms=7 * DAY_MS // 8), retention_ms=7 * DAY_MS),
    topic(3, is_compacted=True),
)
POLICIES = {policy.topic_id: policy for policy in (FOR_EVER, WEEK, COMPACTED)}
RETENTION_MS = {WEEK.topic_id: 7 * DAY_MS}


class Amplification(NamedTuple):
    """The measurements of a simulation."""

    uploaded_bytes: int
    written_bytes: int
    """Data of uploads and of jobs."""
    mean_slices: dict[TopicPolicy, float]
    """The objects that a full scan of a partition touches, on average over all turns, by topic."""
    most_slices: dict[TopicPolicy, int]
    most_dirty: float
    """The largest part of a compacted partition's bytes that was not compacted after a plan."""
    space: float
    """Bytes in the store for each live byte, on average over all days."""
    last_plans: int
    """Plans at the end, without more traffic, until there is nothing to do."""
    widest_ms: int
    """The most time that a slice of the topic with retention spans."""

    @property
    def write(self) -> float:
        return self.written_bytes / self.uploaded_bytes


class CompactionYear:
    """The simulation. Not thread-safe: one test uses it."""

    def __init__(
        self,
        seed: int,
        settings: CompactionSettings,
        *,
        partition_count: int = 2,
        policies: Iterable[TopicPolicy] = POLICIES.values(),
        key_bytes: int = 64 * MIB,
    ) -> None:
        """`key_bytes`: the last values of all keys of a compacted partition."""
        self._random = Random(seed)
        self._settings = settings
        self._shard = Shard(self._output_bytes, settings.max_job_bytes)
        self._key_bytes = key_bytes
        self._now_ms = 400 * DAY_MS
        self._ends: Counter[TopicIdPartition] = Counter()
        self._tips = [
            TopicIdPartition(policy.topic_id, number)
            for policy in policies
            for number in range(partition_count)
        ]
        self._uploaded_bytes = 0
        self._slices: Counter[TopicPolicy] = Counter()
        self._most_slices: Counter[TopicPolicy] = Counter()
        self._most_dirty = 0.0
        self._space: list[float] = []
        self._turns = 0
        self._partition_count = partition_count

    def run(self, days: int, *, plans_of_day: int, uploads_of_plan: int, slice_bytes: int) -> Amplification:
        """Let so many days pass."""
        for turn in range(plans_of_day * days):
            for _ in range(uploads_of_plan):
                self._now_ms += DAY_MS // (plans_of_day * uploads_of_plan)
                self._upload(slice_bytes)
            if turn % plans_of_day == 0:
                self._retain()
                self._measure_space()
            self._compact()
            self._measure_slices()
        return Amplification(
            uploaded_bytes=self._uploaded_bytes,
            written_bytes=self._uploaded_bytes + self._shard.written_bytes,
            mean_slices={
                policy: count / self._turns / self._partition_count for policy, count in self._slices.items()
            },
            most_slices=dict(self._most_slices),
            most_dirty=self._most_dirty,
            space=sum(self._space) / len(self._space),
            last_plans=sum(1 for _ in iter(self._compact, 0)),
            widest_ms=max(
                (
                    live.entry.max_timestamp - live.entry.min_timestamp
                    for tip, row in self._shard.partitions.items()
                    if tip.topic_id == WEEK.topic_id
                    for live in slices_of(row)
                ),
                default=0,
            ),
        )

    def _upload(self, slice_bytes: int) -> None:
        sizes = [self._random.randrange(slice_bytes // 2, slice_bytes * 3 // 2) for _ in self._tips]
        self._uploaded_bytes += sum(sizes)
        name = self._shard.new_object(sum(sizes))
        position = 0
        for tip, size_bytes in zip(self._tips, sizes, strict=True):
            base, end = self._ends[tip], self._ends[tip] + 1
            self._ends[tip] = end
            entry = entry_of(
                POLICIES[tip.topic_id],
                tip.partition,
                base,
                end,
                size_bytes,
                position=position,
                min_timestamp=self._now_ms - 5 * MINUTE_MS,
                max_timestamp=self._now_ms,
            )
            position += size_bytes
            before = self._shard.partitions.get(tip, PartitionRow())
            self._shard.partitions[tip] = before.with_slice(LiveSlice(name, base, end, entry))

    def _output_bytes(self, run: PartitionRun) -> int:
        total_bytes = sum(live.entry.data_bytes for live in run.slices)
        if run.mode is RunMode.CARRY:
            return total_bytes
        return round(self._key_bytes * -math.expm1(-total_bytes / self._key_bytes))

    def _retain(self) -> None:
        for tip, row in self._shard.partitions.items():
            retention_ms = RETENTION_MS.get(tip.topic_id)
            if retention_ms is None:
                continue
            expired = [
                live.end_offset
                for live in slices_of(row)
                if live.entry.max_timestamp < self._now_ms - retention_ms
            ]
            if expired:
                self._shard.partitions[tip] = TieredPartition(tip, row).with_log_start(expired[-1]).row

    def _compact(self) -> int:
        """Carry out all jobs of one plan; returns their number."""
        jobs = plan(self._shard.state(), POLICIES, self._now_ms, self._settings).jobs
        for job in jobs:
            self._shard.commit(job)
        return len(jobs)

    def _measure_slices(self) -> None:
        self._turns += 1
        for tip, row in self._shard.partitions.items():
            policy = POLICIES[tip.topic_id]
            self._slices[policy] += row.slice_count
            self._most_slices[policy] = max(self._most_slices[policy], row.slice_count)
            if policy.is_compacted:
                self._most_dirty = max(self._most_dirty, dirty_part(row))

    def _measure_space(self) -> None:
        objects = self._shard.state().objects.values()
        stored_bytes = sum(map(data_bytes_of, objects))
        self._space.append(stored_bytes / sum(live.live_bytes for live in objects))


def dirty_part(row: PartitionRow) -> float:
    """The part of a partition's bytes that lies above `compacted_upto`."""
    sizes = {live.end_offset: live.entry.data_bytes for live in slices_of(row)}
    dirty_bytes = sum(size_bytes for end, size_bytes in sizes.items() if end > row.compacted_upto)
    return dirty_bytes / max(sum(sizes.values()), 1)


def year_settings(target_object_bytes: int) -> CompactionSettings:
    """The defaults, with smaller objects."""
    return dataclasses.replace(
        CompactionSettings(spool_directory="/spool"), target_object_bytes=target_object_bytes
    )
