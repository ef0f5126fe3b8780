"""The jobs of a plan, each made when it is asked for: a plan of millions of slices keeps numbers, and the
runs of a few jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, overload
from uuid import UUID

from stratalog.compaction.plan.compaction_job import CompactionJob, JobSize, PartitionRun, Refusal
from stratalog.compaction.plan.job_assembly import JobDraft
from stratalog.compaction.plan.job_gathering import JobGathering
from stratalog.compaction.plan.run_selection import RunChoice, RunSelection
from stratalog.compaction.plan.run_slices import RunSlices
from stratalog.compaction.plan.shard_survey import ShardSurvey
from stratalog.remote.metadata.shard.live_slice import LiveSlice


class PlannedJobs(Sequence[CompactionJob]):
    """Jobs with disjoint inputs, most useful first. Immutable, so thread-safe. The length and the sizes are
    known; all else reads the slices of jobs, and raises as `SlicePages` does."""

    def __init__(self, survey: ShardSurvey, drafts: Sequence[JobDraft], topic_ids: frozenset[UUID]) -> None:
        """`topic_ids`: the topics with a run in a job."""
        self._topic_ids = topic_ids
        self._survey = survey
        self._selection = RunSelection(survey)
        self._drafts = tuple(drafts)

    @property
    def sizes(self) -> Sequence[JobSize]:
        """The sizes of the jobs, without a look at any slice."""
        return [draft.size for draft in self._drafts]

    @property
    def topic_ids(self) -> frozenset[UUID]:
        """The topics with a run in a job, without a look at any slice."""
        return self._topic_ids

    def identities(self) -> Iterator[str]:
        """A text for each job, without a look at any slice. Another job has it only if it does the same: no
        two jobs of a plan share an input, and an object never changes."""
        for draft in self._drafts:
            names = sorted(self._survey.objects[number].ref.name for number in draft.objects)
            yield repr((draft.reason.name, names))

    def __len__(self) -> int:
        return len(self._drafts)

    @overload
    def __getitem__(self, index: int) -> CompactionJob: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CompactionJob]: ...
    def __getitem__(self, index: int | slice) -> CompactionJob | Sequence[CompactionJob]:
        if isinstance(index, slice):
            return [self._job(draft) for draft in self._drafts[index]]
        return self._job(self._drafts[index])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PlannedJobs):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as a list

    def _job(self, draft: JobDraft) -> CompactionJob:
        selection = draft.selection or self._selection.select(draft.candidates, draft.partitions)
        inputs = sorted(
            (self._survey.objects[number] for number in selection.objects), key=lambda live: live.ref.name
        )
        gathering = JobGathering(live.ref.name for live in inputs)
        job = CompactionJob(
            reason=draft.reason,
            inputs=tuple(inputs),
            runs=tuple(self._runs(selection.runs, gathering)),
            needs=gathering.needs,
            is_least=draft.is_least,
            planned_bytes=draft.size.read_bytes,
        )
        job.check()
        return job

    def _runs(self, choices: Sequence[RunChoice], gathering: JobGathering) -> Iterator[PartitionRun]:
        for choice, slices in zip(choices, RunSlices.of_runs(map(self._slices, choices)), strict=True):
            outlook = self._survey.outlook(choice.partition)
            counts = self._survey.part_counts(choice.partition, choice.first, choice.end)
            run = PartitionRun(
                topic_id_partition=outlook.topic_id_partition,
                topic=outlook.topic,
                mode=choice.mode,
                covers=choice.covers,
                log_start_offset=outlook.log_start_offset,
                slices=slices,
                part_counts=counts if len(counts) > 1 else (),
            )
            gathering.add(run)
            yield run

    def _slices(self, choice: RunChoice) -> Sequence[LiveSlice]:
        tip = self._survey.outlook(choice.partition).topic_id_partition
        return self._survey.state.partition(tip).slices[choice.first : choice.end]


class CompactionPlan(NamedTuple):
    """Jobs with disjoint inputs, most useful first, and the partitions that were left out."""

    jobs: PlannedJobs
    refusals: tuple[Refusal, ...]
    idle: Callable[[], Iterable[Refusal]]
    """Returns the partitions that were asked for, have slices, and are neither in a job nor refused: why
    there is nothing to do. They are looked for with each call."""
