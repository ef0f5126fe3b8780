"""Puts objects together into jobs: covering jobs around partitions; merging and space-saving jobs around
objects. A plan uses each object once; the next plan takes the rest.

A covering job grows from the partition that gains most: the objects of its run, then those of further
partitions while they fit. All other slices in the objects move along, so that the objects can go. Where they
are more than a job may take, it takes only the partitions that are to be compacted.

A job around objects takes what can move and leaves the rest. It gains only as far as its rule says, each of
which makes slices or objects fewer:

    space     each of its objects is emptied
    merge     `merge_fanout` objects are emptied for each output slice of a partition, and more than come
              into being, or each output slice replaces as many slices on average

Failures make jobs smaller. Each two failures with an object halve the number of inputs of a job that has it,
down to the fewest that gain anything. A covering job around it has one partition then. The same goes for a
job for which there was no room: it counts as so many failures that the next job is smaller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.plan.compaction_job import JobReason, JobSize
from stratalog.compaction.plan.run_selection import RunSelection, Selection
from stratalog.compaction.plan.shard_survey import ShardSurvey, data_bytes_of

FAILURES_TO_SHRINK = 2
"""So many failures with an object make the next job with it smaller."""


class JobDraft(NamedTuple):
    """A job by numbers of the survey: all that a plan keeps of it. Immutable."""

    reason: JobReason
    objects: frozenset[int]
    partitions: frozenset[int] | None
    """No other partition is taken; None: all that can move."""
    size: JobSize
    is_least: bool
    """Whether no smaller job with these objects would gain anything."""


class CoveringJob(NamedTuple):
    """A covering job, and the partitions that gain by it. Immutable."""

    draft: JobDraft
    settled: frozenset[int]


@dataclasses.dataclass(slots=True)
class _Load:
    """A covering job in the making. Not thread-safe: one call uses it."""

    max_inputs: int
    objects: set[int] = dataclasses.field(default_factory=set[int])
    partitions: set[int] = dataclasses.field(default_factory=set[int])
    size_bytes: int = 0
    """Data of all its objects if it `is_whole`, else of the sections of its partitions."""
    is_whole: bool = True
    """Whether it takes all that can move in its objects."""


class JobAssembly:
    """One plan in the making. Not thread-safe: one call of the planner uses it."""

    def __init__(
        self, survey: ShardSurvey, settings: CompactionSettings, failures: Mapping[str, int]
    ) -> None:
        """`failures`: how often the last jobs with an object have failed, by its name."""
        self.selection = RunSelection(survey)
        self.busy: set[int] = set()
        """Partitions with a run in a job."""
        self._survey = survey
        self._settings = settings
        self._failures = {
            number: count
            for name, count in failures.items()
            if (number := survey.number_of(name)) is not None
        }
        self._used = bytearray(len(survey.objects))

    def is_free(self, number: int) -> bool:
        return not self._used[number]

    def has_failed(self, draft: JobDraft) -> bool:
        """Whether a job with one of its objects has failed lately."""
        return any(number in self._failures for number in draft.objects)

    def covering_job(self, seed: int, others: Iterable[int], ranks: Mapping[int, int]) -> CoveringJob | None:
        """A job that takes at least the least run of the partition `seed`; None if an object is in another
        job. `others`: further partitions to try. `ranks`: those of all partitions that wait for a job."""
        section = self._survey.outlook(seed).section
        size_level = max(
            self._level(self._survey.object_of(seed, section.eligible.start + index))
            for index in range(section.least_run)
        )
        load = _Load(max(self._settings.max_inputs_per_job >> size_level, section.least_run))
        load.is_whole = not size_level and self._bytes_of_objects(seed) <= self._settings.max_job_bytes
        if not self._take(load, seed, must_take=True):
            return None
        if not size_level:
            neighbours = {
                partition
                for number in load.objects
                for partition in self._survey.partitions_in(number)
                if partition in ranks
            }
            for other in [*sorted(neighbours, key=ranks.__getitem__), *others]:
                self._take(load, other, must_take=False)
        partitions = None if load.is_whole else frozenset(load.partitions)
        selection = self.selection.select(load.objects, partitions)
        reason = JobReason.DIRTY if section.dirty_bytes else JobReason.TOMBSTONES
        if not selection.gains:
            return None
        settled = frozenset(run.partition for run in selection.runs if run.gains)
        is_least = partitions == frozenset({seed}) and len(selection.objects) <= section.least_run
        return CoveringJob(self._draft(reason, selection, partitions, is_least=is_least), settled)

    def space_job(self, numbers: Sequence[int]) -> JobDraft | None:
        """A job that empties as many as possible of the first of these objects that fit one job, all of whose
        slices can move; None if it empties none of them."""
        selection = self.selection.emptying(self.fitting(numbers, least=1))
        if not selection.runs:
            # Together they do not give all slices away, because a partition has one run. One alone does.
            selection = self.selection.emptying(numbers[:1])
        if not selection.runs:
            return None
        return self._draft(JobReason.SPACE, selection, None, is_least=len(selection.objects) == 1)

    def merge_job(self, numbers: Sequence[int]) -> JobDraft | None:
        """A job over the first of these objects that fit one job; None if it gains too little."""
        fanout = self._settings.merge_fanout
        selection = self.selection.select(self.fitting(numbers, least=fanout))
        empties = len(selection.emptied) >= max(
            fanout * selection.piece_count, 1 + self.selection.object_count(selection)
        )
        joins = selection.slice_count >= fanout * selection.output_count
        if not selection.runs or not (empties or joins):
            return None
        return self._draft(JobReason.MERGE, selection, None, is_least=len(selection.objects) <= fanout)

    def fitting(self, numbers: Sequence[int], *, least: int) -> Sequence[int]:
        """The first of the objects, as many as one job may take."""
        size_bytes = 0
        max_inputs = self._settings.max_inputs_per_job
        for count, number in enumerate(numbers):
            size_bytes += data_bytes_of(self._survey.objects[number])
            level = self._level(number)
            max_inputs = min(max_inputs, max(self._settings.max_inputs_per_job >> level, least))
            if count and (size_bytes > self._settings.max_job_bytes or count >= max_inputs):
                return numbers[:count]
        return numbers

    def _take(self, load: _Load, partition: int, *, must_take: bool) -> bool:
        """Add the objects of the longest run from the first slice of a section that fits the job; none if
        less than the least run fits. `must_take`: the section fits by definition, whatever its bytes.
        """
        section = self._survey.outlook(partition).section
        size_bytes = load.size_bytes + (0 if load.is_whole else section.eligible_bytes)
        if not must_take and size_bytes > self._settings.max_job_bytes:
            return False
        added: set[int] = set()
        for count, index in enumerate(section.eligible):
            number = self._survey.object_of(partition, index)
            object_bytes = data_bytes_of(self._survey.objects[number]) if load.is_whole else 0
            if number in load.objects:
                continue
            fits_bytes = must_take or size_bytes + object_bytes <= self._settings.max_job_bytes
            fits_count = len(load.objects) + len(added) < load.max_inputs
            if not (self.is_free(number) and fits_bytes and fits_count):
                if count < section.least_run:
                    return False
                break
            added.add(number)
            size_bytes += object_bytes
        load.objects |= added
        load.partitions.add(partition)
        load.size_bytes = size_bytes
        return True

    def _bytes_of_objects(self, partition: int) -> int:
        """The data of all objects of the partition's section."""
        return sum(
            data_bytes_of(self._survey.objects[self._survey.object_of(partition, index)])
            for index in self._survey.outlook(partition).section.eligible
        )

    def _draft(
        self,
        reason: JobReason,
        selection: Selection,
        partitions: frozenset[int] | None,
        *,
        is_least: bool,
    ) -> JobDraft:
        assert selection.runs, "a job has runs"
        self.busy.update(run.partition for run in selection.runs)
        for number in selection.objects:
            assert self.is_free(number), "a plan uses an object once"
            self._used[number] = 1
        size = self._size(selection, partitions)
        return JobDraft(reason, selection.objects, partitions, size, is_least)

    def _size(self, selection: Selection, partitions: frozenset[int] | None) -> JobSize:
        if partitions is None:
            read_bytes = sum(self._survey.movable_bytes[number] for number in selection.objects)
        else:
            read_bytes = sum(self._survey.outlook(number).section.eligible_bytes for number in partitions)
        return JobSize(len(selection.runs), read_bytes)

    def _level(self, number: int) -> int:
        """How often a job with the object is halved."""
        return self._failures.get(number, 0) // FAILURES_TO_SHRINK
