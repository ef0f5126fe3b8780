"""Chooses the objects of a shard to rewrite. Pure: the same state gives the same plan. docs/compaction.md
lists the kinds of jobs and when they pay.

Covering jobs come first: the partition with most dirty bytes takes the objects of its run into a job, and
further partitions join while they fit. Other slices in those objects move along, so that the objects can go.
Size classes of merges grow by four, so that a byte is rewritten a few times in its life, not with every
merge.

Why this ends: a covering job makes a partition less dirty or takes its due tombstones, and no job makes one
dirtier; a space job leaves fewer objects that waste space; a merge leaves fewer objects. So a state without
jobs is reached after finitely many, and remains until records or time come in. `gains` checks this job by
job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from uuid import UUID

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.plan.compaction_job import CompactionJob, CompactionPlan, JobReason, Refusal
from stratalog.compaction.plan.job_assembly import JobAssembly, data_bytes_of, gains
from stratalog.compaction.plan.partition_outlook import PartitionOutlook, outlook_of
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.remote.metadata.shard.shard_state import LiveObject, ShardState

UNKNOWN_TOPIC_REFUSED = (
    "its topic is not in the catalog, or is configured by newer software; its slices stay as they are"
)

_SMALLEST_CLASS_BYTES = 1 << 20


def plan(
    state: ShardState,
    topics: Mapping[UUID, TopicPolicy],
    now_ms: int,
    settings: CompactionSettings,
    *,
    only: Set[UUID] | None = None,
    excluded: Mapping[TopicIdPartition, str] | None = None,
    may_drop_tombstones: bool = True,
) -> CompactionPlan:
    """Jobs for `state`, most useful first, with disjoint inputs.

    `topics` has the policy of every topic that is not deleted; `now_ms` is the store's time. `only` limits
    the reasons for a job to these topics, and then any dirty slice of theirs is reason enough; slices of
    other topics that lie in the same objects still move along. `excluded` partitions are left alone, with the
    reasons given.
    """
    planner = _Planner(state, settings, now_ms, only)
    planner.judge_partitions(topics, excluded or {}, may_drop_tombstones=may_drop_tombstones)
    jobs = [*planner.covering_jobs(), *planner.space_jobs(), *planner.merge_jobs()]
    return CompactionPlan(tuple(jobs), planner.refusals(), planner.idle(jobs))


class _Planner:
    """One call of `plan`. Not thread-safe."""

    def __init__(
        self, state: ShardState, settings: CompactionSettings, now_ms: int, only: Set[UUID] | None
    ) -> None:
        self._state = state
        self._settings = settings
        self._now_ms = now_ms
        self._only = only
        self._outlooks: dict[TopicIdPartition, PartitionOutlook] = {}
        self._refusals: list[Refusal] = []
        self._assembly = JobAssembly(state.objects, self._outlooks, settings)

    def judge_partitions(
        self,
        topics: Mapping[UUID, TopicPolicy],
        excluded: Mapping[TopicIdPartition, str],
        *,
        may_drop_tombstones: bool,
    ) -> None:
        for tip in sorted(self._state.partitions):
            partition = self._state.partition(tip)
            topic = topics.get(tip.topic_id)
            if not partition.slices:
                continue
            if topic is None:
                if self._is_asked_for(tip.topic_id):
                    self._refusals.append(Refusal(tip, UNKNOWN_TOPIC_REFUSED))
                continue
            if tip in excluded:
                self._refusals.append(Refusal(tip, excluded[tip]))
                continue
            self._outlooks[tip] = outlook_of(
                tip,
                topic,
                partition,
                now_ms=self._now_ms,
                objects=self._state.objects,
                may_drop_tombstones=may_drop_tombstones,
                min_dirty_ratio=self._min_dirty_ratio,
            )
        self._assembly = JobAssembly(self._state.objects, self._outlooks, self._settings)

    def refusals(self) -> tuple[Refusal, ...]:
        blocked = (
            Refusal(tip, outlook.refusal)
            for tip, outlook in self._outlooks.items()
            if outlook.refusal is not None and self._is_asked_for(tip.topic_id)
        )
        return tuple(sorted([*self._refusals, *blocked]))

    def idle(self, jobs: Sequence[CompactionJob]) -> tuple[Refusal, ...]:
        """The partitions without a job and without a refusal, and why."""
        busy = {run.topic_id_partition for job in jobs for run in job.runs}
        return tuple(
            Refusal(tip, outlook.idle_reason(self._settings.merge_fanout, self._min_dirty_ratio))
            for tip, outlook in self._outlooks.items()
            if tip not in busy and outlook.refusal is None and self._is_asked_for(tip.topic_id)
        )

    def covering_jobs(self) -> list[CompactionJob]:
        waiting = [outlook for outlook in self._outlooks.values() if self._wants_covering(outlook)]
        # The partitions are sorted already, and sorting keeps the order of equals.
        waiting.sort(key=lambda outlook: -outlook.dirty_bytes)
        jobs: list[CompactionJob] = []
        covered: set[TopicIdPartition] = set()
        for index, seed in enumerate(waiting):
            if seed.topic_id_partition in covered:
                continue
            others = [other for other in waiting[index + 1 :] if other.topic_id_partition not in covered]
            reason = JobReason.DIRTY if seed.dirty_count else JobReason.TOMBSTONES
            job = self._assembly.covering_job(seed, others, reason)
            if job is not None:
                covered |= {run.topic_id_partition for run in job.runs if run.settles_tombstones}
                self._add(jobs, job)
        return jobs

    def space_jobs(self) -> list[CompactionJob]:
        """Wasteful objects, oldest first, together while they fit a job."""
        jobs: list[CompactionJob] = []
        wasteful = [live for live in self._free_objects() if self._is_wasteful(live)]
        while wasteful:
            job = self._assembly.emptying_job([live.ref.name for live in wasteful], JobReason.SPACE, 1)
            if job is not None:
                self._add(jobs, job)
                wasteful = [live for live in wasteful if self._assembly.is_free(live.ref.name)]
            else:
                wasteful = wasteful[1:]
        return jobs

    def merge_jobs(self) -> list[CompactionJob]:
        groups: dict[tuple[bool, bool, int], list[LiveObject]] = {}
        for live in self._free_objects():
            size_bytes = data_bytes_of(live)
            if size_bytes < self._settings.target_object_bytes:
                classes = self._assembly.classes(live.ref.name)
                group = (True in classes, False in classes, _size_class(size_bytes))
                groups.setdefault(group, []).append(live)
        jobs: list[CompactionJob] = []
        for group in sorted(groups):
            names = [live.ref.name for live in groups[group]]
            while len(names) >= self._settings.merge_fanout:
                job = self._assembly.emptying_job(names, JobReason.MERGE, self._settings.merge_fanout)
                if job is not None:
                    self._add(jobs, job)
                    names = [name for name in names if self._assembly.is_free(name)]
                else:
                    names = names[1:]
        return jobs

    def _add(self, jobs: list[CompactionJob], job: CompactionJob) -> None:
        assert gains(job, self._outlooks), "no job is planned that changes nothing"
        jobs.append(job)

    def _wants_covering(self, outlook: PartitionOutlook) -> bool:
        if not self._is_asked_for(outlook.topic_id_partition.topic_id):
            return False
        return outlook.pays(self._min_dirty_ratio, self._now_ms)

    @property
    def _min_dirty_ratio(self) -> float:
        # A caller that names a topic wants it compacted now, not when it pays.
        return self._settings.min_dirty_ratio if self._only is None else 0.0

    def _free_objects(self) -> list[LiveObject]:
        """Objects that no job has yet and that hold a topic that was asked for, oldest first."""
        free = [
            live
            for name, live in self._state.objects.items()
            if self._assembly.is_free(name) and any(map(self._is_asked_for, self._assembly.topics(name)))
        ]
        return sorted(free, key=lambda live: (live.seq, live.ref.name))

    def _is_wasteful(self, live: LiveObject) -> bool:
        return live.live_bytes < self._settings.min_live_ratio * data_bytes_of(live)

    def _is_asked_for(self, topic_id: UUID) -> bool:
        return self._only is None or topic_id in self._only


def _size_class(size_bytes: int) -> int:
    """0 below 1 MiB, then one more for each factor of four."""
    return (size_bytes // _SMALLEST_CLASS_BYTES).bit_length() // 2
