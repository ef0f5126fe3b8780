"""Chooses the slices of each partition that a job takes of its objects.

A partition gives one run of consecutive slices to a job. The result is one slice, or a few where one would
exceed the topic's bound. Its other slices in the objects stay, as slices do that may not move. So no
partition's trouble keeps the others where they are. An object that loses all its live slices to the job is
emptied, and goes.

A run that gains nothing itself is taken only where it helps to empty an object.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import NamedTuple

from stratalog.compaction.plan.compaction_job import RunMode
from stratalog.compaction.plan.partition_outlook import PartitionOutlook
from stratalog.compaction.plan.shard_survey import PartitionSlices, ShardSurvey


class RunChoice(NamedTuple):
    """Slices [first, end) of a partition that a job replaces. Immutable."""

    partition: int
    """Its number in the survey."""
    first: int
    end: int
    mode: RunMode
    covers: bool
    part_count: int
    gains: bool
    """Whether slices become fewer, dirty ones are compacted from the first one on, or due tombstones go."""

    @property
    def slice_count(self) -> int:
        return self.end - self.first


class Selection(NamedTuple):
    """The runs of a job, and what becomes of its objects. Immutable."""

    runs: Sequence[RunChoice]
    """By partition."""
    candidates: frozenset[int]
    """The objects that the runs were chosen from. A choice from fewer of them may have more runs, even if it
    leaves out only objects that no run needs: a partition then has another best run, which may empty an
    object."""
    objects: frozenset[int]
    """Those that a run needs."""
    emptied: frozenset[int]
    """Those of them that are left without slices."""

    @property
    def gains(self) -> bool:
        return any(run.gains for run in self.runs)

    @property
    def slice_count(self) -> int:
        return sum(run.slice_count for run in self.runs)

    @property
    def output_count(self) -> int:
        """Output slices."""
        return sum(run.part_count for run in self.runs)

    @property
    def piece_count(self) -> int:
        """The most output slices of any partition."""
        return max((run.part_count for run in self.runs), default=0)


class RunSelection:
    """Chooses the slices that a job takes of its objects. Immutable after construction, so thread-safe."""

    def __init__(self, survey: ShardSurvey) -> None:
        self._survey = survey

    def select(self, objects: Iterable[int], only: Set[int] | None = None) -> Selection:
        """The best run of each partition that has anything to move in these objects. `only`: no others than
        these partitions."""
        survey = self._survey
        candidates = frozenset(objects)
        runs = [
            _best_run(survey, part)
            for part in survey.slices_in(candidates)
            if only is None or part.partition in only
        ]
        taken = Counter(self._objects_of(runs))
        emptied = frozenset(
            number for number, count in taken.items() if count == survey.objects[number].live_slices
        )
        useful = [run for run in runs if run.gains or not emptied.isdisjoint(self._objects_of([run]))]
        # In most jobs each run is useful.
        needed = frozenset(taken if len(useful) == len(runs) else self._objects_of(useful))
        # Most jobs need all, and a plan keeps one set for them.
        return Selection(useful, needed if needed == candidates else candidates, needed, emptied)

    def emptying(self, objects: Iterable[int]) -> Selection:
        """The runs over the largest part of the objects that a job over just that part would empty, all of
        it."""
        group = frozenset(objects)
        while True:
            selection = self.select(group)
            if selection.emptied == group:
                return selection
            group = selection.emptied

    def object_count(self, selection: Selection) -> int:
        """The objects that hold the outputs, as long as none is full: each kind of topics has its own, and so
        has each output slice of a partition."""
        kinds = {
            (self._survey.outlook(run.partition).topic.kind, place)
            for run in selection.runs
            for place in range(run.part_count)
        }
        return len(kinds)

    def _objects_of(self, runs: Iterable[RunChoice]) -> Iterator[int]:
        """The objects of some runs, one for each slice."""
        objects_of = self._survey.objects_of
        return itertools.chain.from_iterable(objects_of(run.partition, run.first, run.end) for run in runs)


def _best_run(survey: ShardSurvey, part: PartitionSlices) -> RunChoice:
    """The best possible run: one that gains, from the first live slice, that compacts, the longest."""
    outlook = survey.outlook(part.partition)
    if _are_consecutive(part.indexes, outlook.compactable_end):
        return _choice(survey, outlook, part.partition, part.indexes[0], part.indexes[-1] + 1)
    return max(
        (
            _choice(survey, outlook, part.partition, first, end)
            for first, end in _consecutive(part.indexes, outlook.compactable_end)
        ),
        key=lambda run: (
            run.gains,
            run.covers and run.mode is RunMode.COMPACT,
            run.mode is RunMode.COMPACT,
            run.slice_count,
            -run.first,
        ),
    )


def _choice(
    survey: ShardSurvey, outlook: PartitionOutlook, partition: int, first: int, end: int
) -> RunChoice:
    mode = RunMode.COMPACT if first < outlook.compactable_end else RunMode.CARRY
    part_count = len(survey.part_counts(partition, first, end))
    covers = first == outlook.first_stored_index
    section = outlook.section
    is_enough = 0 < section.least_run <= end - first
    settles = covers and mode is RunMode.COMPACT and section.eligible.start == first and is_enough
    return RunChoice(
        partition=partition,
        first=first,
        end=end,
        mode=mode,
        covers=covers,
        part_count=part_count,
        gains=settles or end - first > part_count,
    )


def _are_consecutive(indexes: Sequence[int], compactable_end: int) -> bool:
    """Whether ascending numbers have no gap, and are all on one side of `compactable_end`."""
    first, last = indexes[0], indexes[-1]
    return last - first + 1 == len(indexes) and not first < compactable_end <= last


def _consecutive(indexes: Sequence[int], compactable_end: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of ascending numbers without a gap, on one side of `compactable_end` each."""
    first = indexes[0]
    previous = first - 1
    for index in indexes:
        if index != previous + 1 or (index == compactable_end and first < index):
            yield first, previous + 1
            first = index
        previous = index
    yield first, previous + 1
