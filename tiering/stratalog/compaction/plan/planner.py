"""Chooses the objects of a shard to rewrite. Pure: the same state gives the same plan. docs/compaction.md
lists the kinds of jobs and when they pay.

Covering jobs come first: the partition with most dirty bytes takes the objects of its run into a job, and
further partitions join while they fit. Size classes of merges grow by four, so that a byte is rewritten a few
times in its life, not with every merge. Jobs whose objects have failed lately come last.

Why this ends: a covering job makes a partition less dirty or takes its due tombstones, and no job makes one
dirtier; a space job leaves fewer objects that waste space; a merge leaves fewer slices, or as many in fewer
objects. So a state without jobs is reached after finitely many, and remains until records or time come in.

The work is linear in slices: each object is looked at once for each kind of job, and a few times more where
merges of it gain too little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from uuid import UUID

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import MAX_INPUTS_OF_A_REPLACE, CompactionSettings
from stratalog.compaction.plan.compaction_job import JobRoom, Refusal
from stratalog.compaction.plan.job_assembly import JobAssembly, JobDraft
from stratalog.compaction.plan.partition_outlook import OutlookTerms, PartitionOutlook
from stratalog.compaction.plan.planned_jobs import CompactionPlan, PlannedJobs
from stratalog.compaction.plan.shard_survey import ShardSurvey, data_bytes_of
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.remote.metadata.shard.shard_state import ShardState

_SMALLEST_CLASS_BYTES = 1 << 20
_COMPANIONS = 64
"""Further partitions that a covering job tries to take, beside those in its objects."""
_NONE: Mapping[TopicIdPartition, str] = MappingProxyType({})


def plan(
    state: ShardState,
    topics: Mapping[UUID, TopicPolicy],
    now_ms: int,
    settings: CompactionSettings,
    *,
    only: Set[UUID] | None = None,
    excluded: Mapping[TopicIdPartition, str] = _NONE,
    carried: Mapping[TopicIdPartition, str] = _NONE,
    failures: Mapping[str, int] = MappingProxyType({}),
    rooms: Mapping[str, JobRoom] = MappingProxyType({}),
    may_drop_tombstones: bool = True,
) -> CompactionPlan:
    """Jobs for `state`, most useful first, with disjoint inputs. Raises as `SlicePages` does.

    `topics` has the policy of every topic that is not deleted; `now_ms` is the store's time. `only` limits
    the reasons for a job to these topics, and then any dirty slice of theirs is reason enough; slices of
    other topics that lie in the same objects still move along. `excluded` partitions are left alone, and
    `carried` ones are not compacted, with the reasons given. `failures`: how often the last jobs with an
    object have failed in a row, by the object's name. `rooms`: the most that a job with it may take, if
    there was no room for a larger one.
    """
    terms = OutlookTerms(
        now_ms=now_ms,
        may_drop_tombstones=may_drop_tombstones,
        max_inputs=settings.max_inputs_per_job,
        most_inputs=MAX_INPUTS_OF_A_REPLACE,
        max_job_bytes=settings.max_job_bytes,
        max_partition_bytes=max(settings.max_job_bytes, settings.max_partition_bytes),
        # A caller that names a topic wants it compacted now, not when it pays.
        min_dirty_ratio=None if only is None else 0.0,
    )
    survey = ShardSurvey(state, topics, terms, excluded, carried)
    planner = _Planner(survey, settings, JobAssembly(survey, settings, failures, rooms), only)
    drafts = planner.drafts()
    return CompactionPlan(
        PlannedJobs(survey, drafts, planner.busy_topics()),
        planner.refusals(),
        planner.idle,
        survey.outlooks,
    )


class _Planner:
    """One call of `plan`. Not thread-safe."""

    def __init__(
        self,
        survey: ShardSurvey,
        settings: CompactionSettings,
        assembly: JobAssembly,
        only: Set[UUID] | None,
    ) -> None:
        self._survey = survey
        self._settings = settings
        self._only = only
        self._assembly = assembly

    def drafts(self) -> Sequence[JobDraft]:
        drafts = [*self._covering_jobs(), *self._space_jobs(), *self._merge_jobs()]
        return sorted(drafts, key=self._assembly.has_failed)

    def refusals(self) -> tuple[Refusal, ...]:
        untouched = (
            one for one in self._survey.refusals if self._is_asked_for(one.topic_id_partition.topic_id)
        )
        blocked = (
            Refusal(outlook.topic_id_partition, outlook.refusal)
            for _, outlook in self._asked_outlooks()
            if outlook.refusal is not None
        )
        return tuple(sorted([*untouched, *blocked]))

    def busy_topics(self) -> frozenset[UUID]:
        """The topics with a run in a job. To be asked once all jobs are planned."""
        return frozenset(self._survey.outlook(number).topic.topic_id for number in self._assembly.busy)

    def idle(self) -> Iterator[Refusal]:
        """The partitions without a job and without a refusal, and why. To be asked once all jobs are
        planned."""
        return (
            Refusal(outlook.topic_id_partition, outlook.idle_reason(self._settings.merge_fanout))
            for number, outlook in self._asked_outlooks()
            if number not in self._assembly.busy and outlook.refusal is None
        )

    def _asked_outlooks(self) -> Iterator[tuple[int, PartitionOutlook]]:
        for number, outlook in enumerate(self._survey.outlooks):
            if outlook is not None and self._is_asked_for(outlook.topic_id_partition.topic_id):
                yield number, outlook

    def _covering_jobs(self) -> Iterator[JobDraft]:
        paying = [(number, outlook) for number, outlook in self._asked_outlooks() if outlook.pays]
        # The partitions are sorted already, and sorting keeps the order of equals.
        # What a job can hardly read must not keep its other objects from those that it could compact.
        failing = {number for number, _ in paying if self._assembly.is_failing(number)}
        paying.sort(key=lambda one: (one[0] in failing, -one[1].section.dirty_bytes))
        order = [number for number, _ in paying]
        ranks = {number: rank for rank, number in enumerate(order)}
        for rank, seed in enumerate(order):
            if ranks.pop(seed, None) is None:
                continue
            others = [other for other in order[rank + 1 : rank + 1 + _COMPANIONS] if other in ranks]
            if seed not in failing:
                others = [other for other in others if other not in failing]
            job = self._assembly.covering_job(seed, others, ranks)
            if job is not None:
                for number in job.settled:
                    ranks.pop(number, None)
                yield job.draft

    def _space_jobs(self) -> Iterator[JobDraft]:
        """Wasteful objects that can be emptied, oldest first, together while they fit a job."""
        wasteful = [number for number in self._free_objects() if self._is_wasteful(number)]
        while wasteful:
            draft = self._assembly.space_job(wasteful)
            if draft is not None:
                yield draft
                wasteful = [number for number in wasteful if self._assembly.is_free(number)]
            else:
                wasteful = wasteful[1:]

    def _merge_jobs(self) -> Iterator[JobDraft]:
        groups: dict[tuple[int, int], list[int]] = {}
        for number in self._free_objects():
            size_bytes = self._survey.movable_bytes[number]
            if size_bytes < self._settings.target_object_bytes:
                group = (self._survey.kinds[number], _size_class(size_bytes))
                groups.setdefault(group, []).append(number)
        for group in sorted(groups):
            numbers = groups[group]
            while len(numbers) >= self._settings.merge_fanout:
                draft = self._assembly.merge_job(numbers)
                tried = len(self._assembly.fitting(numbers, least=self._settings.merge_fanout))
                if draft is not None:
                    yield draft
                    numbers = numbers[tried:]
                else:
                    # Half of them may gain beside others; not one by one, or the work would be quadratic.
                    numbers = numbers[max(tried // 2, 1) :]

    def _free_objects(self) -> list[int]:
        """Objects that no job has yet, with movable slices of a topic that was asked for, oldest first."""
        return [
            number
            for number in range(len(self._survey.objects))
            if self._assembly.is_free(number)
            and self._survey.movable_counts[number]
            and (self._only is None or not self._only.isdisjoint(self._survey.topics_in(number)))
        ]

    def _is_wasteful(self, number: int) -> bool:
        live = self._survey.objects[number]
        is_wasteful = live.live_bytes < self._settings.min_live_ratio * data_bytes_of(live)
        # While a slice stays in it, an object gives nothing back.
        return is_wasteful and self._survey.movable_counts[number] == live.live_slices

    def _is_asked_for(self, topic_id: UUID) -> bool:
        return self._only is None or topic_id in self._only


def _size_class(size_bytes: int) -> int:
    """0 below 1 MiB, then one more for each factor of four."""
    return (size_bytes // _SMALLEST_CLASS_BYTES).bit_length() // 2
