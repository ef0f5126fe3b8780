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
down to the fewest that gain anything. A covering job around it has one partition then. A job for which there
was no room bounds inputs and bytes of later ones with its objects (`JobRoom`), so that they have fewer
partitions, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stratalog.compaction.compaction_settings import MAX_INPUTS_OF_A_REPLACE, CompactionSettings
from stratalog.compaction.plan.compaction_job import JobReason, JobRoom, JobSize
from stratalog.compaction.plan.run_selection import RunSelection, Selection
from stratalog.compaction.plan.shard_survey import ShardSurvey, data_bytes_of

FAILURES_TO_SHRINK = 2
"""So many failures with an object make the next job with it smaller."""
_KEPT_RUNS = 10_000
"""A plan keeps so many runs of its jobs, at the most: two hundred bytes each. Those of other jobs are chosen
again when the job is due."""


class JobDraft(NamedTuple):
    """A job by numbers of the survey: all that a plan keeps of it. Immutable."""

    reason: JobReason
    candidates: frozenset[int]
    """The objects that its runs were chosen from, and must be chosen from again: see `Selection`."""
    objects: frozenset[int]
    """Those of them that it reads."""
    partitions: frozenset[int] | None
    """No other partition is taken; None: all that can move."""
    size: JobSize
    is_least: bool
    """Whether no smaller job with these objects would gain anything."""
    selection: Selection | None
    """Its runs; None if the plan does not keep them."""


class CoveringJob(NamedTuple):
    """A covering job, and the partitions that gain by it. Immutable."""

    draft: JobDraft
    settled: frozenset[int]


@dataclasses.dataclass(slots=True)
class _Load:
    """A covering job in the making. Not thread-safe: one call uses it."""

    room: JobRoom
    objects: set[int] = dataclasses.field(default_factory=set[int])
    partitions: set[int] = dataclasses.field(default_factory=set[int])
    size_bytes: int = 0
    """Data of all its objects if it `is_whole`, else of the sections of its partitions."""
    is_whole: bool = True
    """Whether it takes all that can move in its objects."""


class JobAssembly:
    """One plan in the making. Not thread-safe: one call of the planner uses it."""

    def __init__(
        self,
        survey: ShardSurvey,
        settings: CompactionSettings,
        failures: Mapping[str, int],
        rooms: Mapping[str, JobRoom],
    ) -> None:
        """By the name of an object: `failures`, how often the last jobs with it have failed, and `rooms`, the
        most that a job with it may take, if there is such a bound."""
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
        self._whole_room = JobRoom(settings.max_inputs_per_job, settings.max_job_bytes)
        self._widest_room = self._whole_room._replace(input_count=MAX_INPUTS_OF_A_REPLACE)
        """That of a partition whose section has more inputs."""
        self._rooms = {
            number: self._widest_room.within(room)
            for name, room in rooms.items()
            if (number := survey.number_of(name)) is not None
        }
        self._used = bytearray(len(survey.objects))
        self._kept_runs = 0

    def is_free(self, number: int) -> bool:
        return not self._used[number]

    def has_failed(self, draft: JobDraft) -> bool:
        """Whether a job with one of its objects has failed lately."""
        return any(number in self._failures for number in draft.objects)

    def is_failing(self, partition: int) -> bool:
        """Whether a job has failed lately with an object that a covering job of the partition would read."""
        return bool(self._failures) and any(
            number in self._failures for number in self._survey.eligible_objects(partition)
        )

    def covering_job(self, seed: int, others: Iterable[int], ranks: Mapping[int, int]) -> CoveringJob | None:
        """A job that takes at least the least run of the partition `seed`; None if an object is in another
        job. `others`: further partitions to try. `ranks`: those of all partitions that wait for a job."""
        section = self._survey.outlook(seed).section
        least = self._survey.eligible_objects(seed)[: section.least_run]
        size_level = max(map(self._level, least))
        most_inputs = max(self._settings.max_inputs_per_job, len(section.eligible))
        room = self._whole_room._replace(input_count=most_inputs >> size_level)
        for number in least:
            room = room.within(self._room(number))
        load = _Load(room._replace(input_count=max(room.input_count, section.least_run)))
        load.is_whole = not size_level and self._bytes_of_objects(seed) <= room.planned_bytes
        if not self._take(load, seed, must_take=True):
            return None
        is_failing = self.is_failing(seed)
        if not size_level:
            neighbours = [
                partition
                for partition in self._survey.partitions_in(load.objects)
                if partition in ranks and (is_failing or not self.is_failing(partition))
            ]
            # The next ones first: a job reads what lies between its slices.
            neighbours.sort(key=lambda partition: abs(partition - seed))
            for other in [*neighbours, *others]:
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
        room = self._whole_room
        for count, number in enumerate(numbers):
            size_bytes += data_bytes_of(self._survey.objects[number])
            max_inputs = self._settings.max_inputs_per_job >> self._level(number)
            room = room.within(self._room(number)).within(room._replace(input_count=max_inputs))
            is_over = size_bytes > room.planned_bytes and count >= least
            is_full = count >= max(room.input_count, min(least, self._whole_room.input_count))
            if count and (is_over or is_full or size_bytes > self._whole_room.planned_bytes):
                return numbers[:count]
        return numbers

    def _take(self, load: _Load, partition: int, *, must_take: bool) -> bool:
        """Add the objects of the longest run from the first slice of a section that fits the job; none if
        less than the least run fits. `must_take`: the section fits by definition, whatever its bytes.
        """
        if partition in load.partitions:
            return True
        section = self._survey.outlook(partition).section
        all_bytes = load.size_bytes + (0 if load.is_whole else section.eligible_bytes)
        if all_bytes > load.room.planned_bytes and not must_take:
            return False
        eligible = self._survey.eligible_objects(partition)
        if load.objects.issuperset(eligible):
            # As with most partitions beside another one.
            load.partitions.add(partition)
            load.size_bytes = all_bytes
            return True
        size_bytes = load.size_bytes
        added: set[int] = set()
        for count, number in enumerate(eligible):
            is_there, before_bytes = number in load.objects, size_bytes
            if not load.is_whole:
                size_bytes = load.size_bytes + section.first_bytes(count + 1)
            elif not is_there:
                size_bytes += data_bytes_of(self._survey.objects[number])
            if is_there:
                continue
            is_least = must_take and count < section.least_run
            room = load.room if is_least else load.room.within(self._room(number))
            # The section is within the bytes of a job of its own, unless there was no room for one.
            takes_all = must_take and room.planned_bytes == self._whole_room.planned_bytes
            fits_bytes = is_least or takes_all or size_bytes <= room.planned_bytes
            fits_count = len(load.objects) + len(added) < room.input_count
            if not (self.is_free(number) and fits_bytes and fits_count):
                if count < section.least_run:
                    return False
                size_bytes = before_bytes
                break
            added.add(number)
        for number in added:
            load.room = load.room.within(self._room(number))
        load.objects |= added
        load.partitions.add(partition)
        load.size_bytes = size_bytes
        return True

    def _bytes_of_objects(self, partition: int) -> int:
        """The data of all objects of the partition's section."""
        return sum(
            data_bytes_of(self._survey.objects[number]) for number in self._survey.eligible_objects(partition)
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
        kept = selection if self._kept_runs + len(selection.runs) <= _KEPT_RUNS else None
        self._kept_runs += 0 if kept is None else len(kept.runs)
        return JobDraft(
            reason=reason,
            candidates=selection.candidates,
            objects=selection.objects,
            partitions=partitions,
            size=size,
            is_least=is_least,
            selection=kept,
        )

    def _size(self, selection: Selection, partitions: frozenset[int] | None) -> JobSize:
        if partitions is None:
            read_bytes = sum(self._survey.movable_bytes[number] for number in selection.objects)
        else:
            read_bytes = sum(
                self._survey.outlook(run.partition).section.first_bytes(run.slice_count)
                for run in selection.runs
            )
        return JobSize(len(selection.runs), read_bytes)

    def _room(self, number: int) -> JobRoom:
        """The most that a job with the object may take."""
        return self._rooms.get(number, self._widest_room)

    def _level(self, number: int) -> int:
        """How often a job with the object is halved."""
        return self._failures.get(number, 0) // FAILURES_TO_SHRINK
