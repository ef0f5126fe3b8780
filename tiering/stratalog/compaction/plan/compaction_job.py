"""The planner's decisions: the objects that one job reads, and the mode of each partition's slices in
them."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import operator
from collections.abc import Collection, Sequence
from typing import NamedTuple
from uuid import UUID

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan.job_needs import JobNeeds
from stratalog.compaction.plan.run_slices import RunSlices
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.shard_state import LiveObject
from stratalog.remote.objects.slice_builder import SliceStart


class RunMode(enum.Enum):
    """The fate of the records of a run."""

    COMPACT = "compact"
    """Only the last record of each key in the run stays, or that with the highest version."""
    CARRY = "carry"
    """Every record stays: the slices only move into another object."""


class JobReason(enum.Enum):
    """The gain of a job."""

    DIRTY = "dirty"
    """Enough of a partition is not compacted yet."""
    TOMBSTONES = "tombstones"
    """The horizon of tombstones or markers has passed."""
    SPACE = "space"
    """Objects hold more dead bytes than live ones."""
    MERGE = "merge"
    """Many small objects become few larger ones."""


class Refusal(NamedTuple):
    """A partition (or part of it) that no job takes, and why."""

    topic_id_partition: TopicIdPartition
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRun:
    """Consecutive live slices of one partition that a job replaces, by one slice or by a few that are within
    the topic's bound (`SliceSpan`). Immutable."""

    topic_id_partition: TopicIdPartition
    topic: TopicPolicy
    mode: RunMode
    covers: bool
    """Whether the run begins with the partition's first live slice, so that nothing older than it can
    reappear.
    """
    log_start_offset: int
    slices: RunSlices
    part_counts: tuple[int, ...] = ()
    """For each output slice the number of slices that it replaces; empty if there is one output."""

    @property
    def base_offset(self) -> int:
        return self.slices.base_offset

    @property
    def end_offset(self) -> int:
        return self.slices.end_offset

    @property
    def slice_start(self) -> SliceStart:
        """The beginning of the slice that replaces the run."""
        topic_id, partition = self.topic_id_partition
        return SliceStart(topic_id, self.topic.name, partition, self.base_offset, self.topic.hashing)

    @property
    def part_count(self) -> int:
        """The number of output slices."""
        return max(1, len(self.part_counts))

    @property
    def parts(self) -> Sequence[tuple[int, int]]:
        """The slices [first, end) that each output slice replaces. Each lies in another object."""
        if not self.part_counts:
            return ((0, len(self.slices)),)
        ends = itertools.accumulate(self.part_counts)
        return tuple(itertools.pairwise((0, *ends)))

    def part(self, first: int, end: int) -> PartitionRun:
        """The slices [first, end) alone, which become one slice."""
        if not self.part_counts and end - first == len(self.slices):
            return self
        return dataclasses.replace(self, slices=self.slices[first:end], part_counts=())

    @property
    def data_bytes(self) -> int:
        return sum(self.slices.column("data_bytes"))

    @property
    def record_count(self) -> int:
        return sum(self.slices.column("record_count"))

    @property
    def settles_tombstones(self) -> bool:
        """Whether tombstones get their horizon here, and go when it has passed."""
        return self.covers and self.mode is RunMode.COMPACT

    @property
    def first_offset(self) -> int:
        """The first offset of the run that is readable."""
        return max(self.base_offset, self.log_start_offset)

    def has_keys(self, live: LiveSlice) -> bool:
        """Whether the keys of a slice are known without its data: it has a usable key stream, or no
        records."""
        stream = live.entry.key_stream
        if live.entry.record_count == 0:
            return True
        if self.topic.hashing.has_versions and self.first_offset_of(live) > live.entry.base_offset:
            # A record that is not readable any more might win.
            return False
        return stream is not None and stream.hash_key_id == self.topic.hashing.hash_key_id

    @property
    def has_plain_keys(self) -> bool:
        """Whether each slice has a usable key stream, without versions."""
        hashing = self.topic.hashing
        return not hashing.has_versions and self.slices.have_key_streams(hashing.hash_key_id)

    def hashed_slices(self) -> Sequence[LiveSlice]:
        """The slices whose keys are not known without their data."""
        return () if self.has_plain_keys else [live for live in self.slices if not self.has_keys(live)]

    def first_offset_of(self, live: LiveSlice) -> int:
        """The first offset of a slice that is readable."""
        return max(live.base_offset, self.log_start_offset)

    def check(self) -> None:
        """No object gives two slices, and parts make up the run."""
        names = self.slices.object_names
        assert len(set(names)) == len(names)
        assert self.mode is RunMode.CARRY or self.topic.is_compacted
        assert not self.part_counts or sum(self.part_counts) == len(names), "parts make up the run"
        assert all(count > 0 for count in self.part_counts), "no part is empty"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompactionJob:
    """Objects to read and runs to replace, committed together. Immutable."""

    reason: JobReason
    inputs: tuple[LiveObject, ...]
    """By name."""
    runs: tuple[PartitionRun, ...]
    """By topic id and partition, as slices lie in objects."""
    needs: JobNeeds
    """Those of all runs."""
    is_least: bool = False
    """Whether no smaller job with these inputs would gain anything."""
    planned_bytes: int = 0
    """The bytes that the planner has counted against the bound of a job."""

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(live.ref.name for live in self.inputs)

    @property
    def partitions(self) -> frozenset[TopicIdPartition]:
        return frozenset(run.topic_id_partition for run in self.runs)

    @property
    def output_count(self) -> int:
        """The objects that hold the outputs, as long as none is full: each kind of topics has its own, and so
        has each output slice of a partition."""
        return len(self.needs.output_bytes)

    @property
    def topic_ids(self) -> tuple[UUID, ...]:
        return tuple(sorted({topic.topic_id for topic in self.topics}))

    @property
    def topics(self) -> Collection[TopicPolicy]:
        """The policies of the topics: the runs of a topic share its policy."""
        return {id(run.topic): run.topic for run in self.runs}.values()

    def check(self) -> None:
        """Everything is sorted, and each input is needed. The runs were checked when their needs were
        gathered."""
        names = self.input_names
        assert list(names) == sorted(set(names))
        partitions = [run.topic_id_partition for run in self.runs]
        in_order = map(operator.lt, partitions, itertools.islice(partitions, 1, None))
        assert all(in_order), "a partition has one run in a job"
        assert list(names) == list(self.needs.inputs)
        assert all(need.slice_count for need in self.needs.inputs.values()), "each input is needed"


class JobRoom(NamedTuple):
    """The most that a job may take, because there was no room for more. Immutable."""

    input_count: int
    planned_bytes: int

    def within(self, other: JobRoom) -> JobRoom:
        """Return the room that is within both."""
        return JobRoom(*map(min, self, other))


class JobSize(NamedTuple):
    """The size of a job, as far as it is known before the job is made. Immutable."""

    partition_count: int
    read_bytes: int
    """Bytes that it reads; before the job is made the data in them, as an estimate."""
