"""Puts objects together into jobs: covering jobs around partitions; merging and space-saving jobs around
objects.

A covering job grows from the partition that gains most: the objects of its run, then those of further
partitions while they fit. If the run has more objects than a job may read, the first of them become one
slice, even if that exceeds the topic's bound for slices: otherwise the partition would never be compacted
again. A job around objects must empty each of them, so that it never leaves more behind than it took. A plan
uses each object once; the next plan takes the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from uuid import UUID

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.plan.compaction_job import CompactionJob, JobReason, PartitionRun
from stratalog.compaction.plan.partition_outlook import PartitionOutlook
from stratalog.compaction.plan.run_selection import RunSelection
from stratalog.remote.metadata.shard.shard_state import LiveObject


def data_bytes_of(live: LiveObject) -> int:
    """Bytes of all slices that were put into the object, dead ones included."""
    return live.ref.directory_position - live.ref.data_position


class JobAssembly:
    """One plan in the making. Not thread-safe: one call of the planner uses it."""

    def __init__(
        self,
        objects: Mapping[str, LiveObject],
        outlooks: Mapping[TopicIdPartition, PartitionOutlook],
        settings: CompactionSettings,
    ) -> None:
        self._objects = objects
        self._outlooks = outlooks
        self._settings = settings
        self._selection = RunSelection(outlooks)
        self._slice_counts = {name: live.live_slices for name, live in objects.items()}
        self._used: set[str] = set()

    def is_free(self, object_name: str) -> bool:
        return object_name not in self._used

    def covering_job(
        self, seed: PartitionOutlook, others: Iterable[PartitionOutlook], reason: JobReason
    ) -> CompactionJob | None:
        """A job that takes at least `seed.least_run` slices of `seed` from the first; None if an object is in
        another job.
        """
        chosen = self._covering_objects(seed, set(), must_take=True)
        if not chosen:
            return None
        undivided: TopicIdPartition | None = None
        missing = {live.object_name for live in seed.eligible_slices[: seed.least_run]} - chosen
        if missing:
            if not all(map(self.is_free, missing)):
                return None
            # The head has more slices than a job may read, and must become shorter before anything else.
            undivided = seed.topic_id_partition
        for other in others:
            chosen |= self._covering_objects(other, chosen, must_take=False)
        return self._job(reason, chosen, undivided)

    def emptying_job(
        self, object_names: Sequence[str], reason: JobReason, min_count: int
    ) -> CompactionJob | None:
        """A job over the first of the objects that fit one job and can all be emptied by it; None if those
        are fewer than `min_count`, or than so many for each output slice of a partition: then too many
        objects come out of it.
        """
        chosen: set[str] = set()
        size_bytes = 0
        for name in object_names:
            size_bytes += data_bytes_of(self._objects[name])
            fits = (
                size_bytes <= self._settings.max_job_bytes and len(chosen) < self._settings.max_inputs_per_job
            )
            if chosen and not fits:
                break
            chosen.add(name)
        emptied = self._selection.emptied_by(chosen, self._slice_counts)
        if len(emptied) < max(min_count, 1):
            return None
        pieces = max(len(run.parts) for run in self._selection.runs(emptied))
        return self._job(reason, set(emptied)) if len(emptied) >= pieces * min_count else None

    def topics(self, object_name: str) -> frozenset[UUID]:
        return frozenset(
            place.topic_id_partition.topic_id for place in self._selection.slices_of(object_name)
        )

    def classes(self, object_name: str) -> frozenset[bool]:
        """Whether the object holds slices of compacted topics (True), of plain ones (False), or of both."""
        return frozenset(
            self._outlooks[place.topic_id_partition].topic.is_compacted
            for place in self._selection.slices_of(object_name)
        )

    def _covering_objects(self, outlook: PartitionOutlook, chosen: Set[str], *, must_take: bool) -> set[str]:
        """The objects of the longest run from the first slice that fits a job beside `chosen`; none if less
        than `least_run` fits. `must_take`: the least run fits by definition, whatever its bytes.
        """
        added: set[str] = set()
        eligible = outlook.eligible_slices
        if all(live.object_name in chosen for live in eligible):
            return added
        size_bytes = sum(data_bytes_of(self._objects[name]) for name in chosen)
        for index, live in enumerate(eligible):
            name = live.object_name
            if name in chosen:
                continue
            size_bytes += data_bytes_of(self._objects[name])
            is_needed = must_take and index < outlook.least_run
            fits_bytes = size_bytes <= self._settings.max_job_bytes or is_needed
            fits_count = len(chosen) + len(added) < self._settings.max_inputs_per_job
            if not (self.is_free(name) and fits_bytes and fits_count):
                # Compacted slices in it still help if many slices become fewer.
                enough = index >= outlook.least_run or (must_take and index > 1)
                return added if enough else set()
            added.add(name)
        return added

    def _job(
        self, reason: JobReason, chosen: set[str], undivided: TopicIdPartition | None = None
    ) -> CompactionJob | None:
        runs = self._selection.runs(chosen, undivided)
        needed = {live.object_name for run in runs for live in run.slices}
        if not needed:
            return None
        self._used |= needed
        job = CompactionJob(
            reason=reason, inputs=tuple(self._objects[name] for name in sorted(needed)), runs=runs
        )
        job.check()
        return job


def gains(job: CompactionJob, outlooks: Mapping[TopicIdPartition, PartitionOutlook]) -> bool:
    """Whether the job changes anything: no plan has one that does not."""
    return (
        any(_run_gains(run, outlooks[run.topic_id_partition]) for run in job.runs)
        or len(job.inputs) > 1
        or (job.reason is JobReason.SPACE)
    )


def _run_gains(run: PartitionRun, outlook: PartitionOutlook) -> bool:
    is_fewer = len(run.slices) > len(run.parts)
    return is_fewer or (run.settles_tombstones and 0 < outlook.least_run <= len(run.slices))
