"""The jobs of a plan, each made when it is asked for: a plan of millions of slices keeps numbers, and the
runs of a few jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, overload
from uuid import UUID

from stratalog.compaction.plan.compaction_job import CompactionJob, JobSize, PartitionRun, Refusal
from stratalog.compaction.plan.job_assembly import JobDraft
from stratalog.compaction.plan.job_gathering import JobGathering
from stratalog.compaction.plan.partition_outlook import PartitionOutlook
from stratalog.compaction.plan.run_selection import RunChoice, RunSelection, Selection
from stratalog.compaction.plan.shard_survey import ShardSurvey
from stratalog.compaction.plan.surveyed_slices import SliceRange
from stratalog.remote.metadata.shard.shard_state import LiveObject


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
        """A text for each job, without a look at any slice. Another job has it only if it does the same to
        the same slices: an object never changes, and has at most one slice of a partition."""
        for draft in self._drafts:
            selection = self._selected(draft)
            inputs = self._inputs(selection)
            places = {self._survey.number_of(live.ref.name): place for place, live in enumerate(inputs)}
            outlooks = [self._survey.outlook(choice.partition) for choice in selection.runs]
            topics = {outlook.topic.topic_id: outlook.topic for outlook in outlooks}
            identity = hashlib.sha256()
            identity.update(repr((draft.reason.name, [live.ref.name for live in inputs], topics)).encode())
            for choice, outlook in zip(selection.runs, outlooks, strict=True):
                numbers = self._survey.objects_of(choice.partition, choice.first, choice.end)
                run = (
                    outlook.topic_id_partition,
                    outlook.log_start_offset,
                    choice.mode.name,
                    choice.covers,
                    self._part_counts(choice),
                    [places[number] for number in numbers],
                )
                identity.update(repr(run).encode())
            yield identity.hexdigest()

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
        selection = self._selected(draft)
        inputs = self._inputs(selection)
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

    def _selected(self, draft: JobDraft) -> Selection:
        """The runs of a job, kept or chosen again."""
        return draft.selection or self._selection.select(draft.candidates, draft.partitions)

    def _inputs(self, selection: Selection) -> Sequence[LiveObject]:
        """The objects that a job reads, by name."""
        return sorted(
            (self._survey.objects[number] for number in selection.objects), key=lambda live: live.ref.name
        )

    def _part_counts(self, choice: RunChoice) -> tuple[int, ...]:
        """The part counts of the run, in the form that `PartitionRun` has."""
        counts = self._survey.part_counts(choice.partition, choice.first, choice.end)
        return counts if len(counts) > 1 else ()

    def _runs(self, choices: Sequence[RunChoice], gathering: JobGathering) -> Iterator[PartitionRun]:
        found = self._survey.slices.runs(map(self._range, choices))
        for choice, slices in zip(choices, found, strict=True):
            outlook = self._survey.outlook(choice.partition)
            run = PartitionRun(
                topic_id_partition=outlook.topic_id_partition,
                topic=outlook.topic,
                mode=choice.mode,
                covers=choice.covers,
                log_start_offset=outlook.log_start_offset,
                slices=slices,
                part_counts=self._part_counts(choice),
            )
            gathering.add(run)
            yield run

    def _range(self, choice: RunChoice) -> SliceRange:
        tip = self._survey.outlook(choice.partition).topic_id_partition
        return SliceRange(tip, choice.partition, choice.first, choice.end)


class CompactionPlan(NamedTuple):
    """Jobs with disjoint inputs, most useful first, and the partitions that were left out."""

    jobs: PlannedJobs
    refusals: tuple[Refusal, ...]
    idle: Callable[[], Iterable[Refusal]]
    """Returns the partitions that were asked for, have slices, and are neither in a job nor refused: why
    there is nothing to do. They are looked for with each call."""
    outlooks: Sequence[PartitionOutlook | None]
    """Those of all partitions with slices; None for one that is not touched."""
