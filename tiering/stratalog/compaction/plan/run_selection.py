"""Chooses the slices of each partition that a job takes of its objects.

A partition gives one run of consecutive slices to a job. The result is one slice, or a few where one would
exceed the topic's bound. Its other slices in the objects stay. An object that loses all its live slices to
the job is emptied, and goes.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan.compaction_job import PartitionRun, RunMode
from stratalog.compaction.plan.partition_outlook import PartitionOutlook


class SlicePlace(NamedTuple):
    """A live slice, by its partition and its index among that partition's slices."""

    topic_id_partition: TopicIdPartition
    slice_index: int


class RunSelection:
    """Chooses the slices that a job takes of its objects. Immutable after construction, so thread-safe. Knows
    which slices each object holds."""

    def __init__(self, outlooks: Mapping[TopicIdPartition, PartitionOutlook]) -> None:
        self._outlooks = outlooks
        self._places: dict[str, list[SlicePlace]] = {}
        for tip, outlook in outlooks.items():
            for index, live in enumerate(outlook.slices):
                self._places.setdefault(live.object_name, []).append(SlicePlace(tip, index))

    def slices_of(self, object_name: str) -> Sequence[SlicePlace]:
        """The object's slices of partitions that have an outlook."""
        return self._places.get(object_name, ())

    def runs(
        self, object_names: Iterable[str], undivided: TopicIdPartition | None = None
    ) -> tuple[PartitionRun, ...]:
        """One run for each partition that has anything to move in these objects, sorted. The output of
        `undivided` is one slice, whatever its topic's bound."""
        indexes: dict[TopicIdPartition, list[int]] = {}
        for name in object_names:
            for place in self.slices_of(name):
                indexes.setdefault(place.topic_id_partition, []).append(place.slice_index)
        runs = (_best_run(self._outlooks[tip], sorted(indexes[tip])) for tip in sorted(indexes))
        return tuple(
            dataclasses.replace(run, part_counts=()) if run.topic_id_partition == undivided else run
            for run in runs
            if run is not None
        )

    def emptied_by(self, object_names: Set[str], slice_counts: Mapping[str, int]) -> frozenset[str]:
        """The largest part of the objects that a job over just that part would empty, all of it.

        `slice_counts` has the number of live slices of each object, those without an outlook included.
        """
        group: frozenset[str] = frozenset(object_names)
        while group:
            taken = Counter(live.object_name for run in self.runs(group) for live in run.slices)
            emptied = frozenset(name for name in group if taken[name] == slice_counts[name])
            if emptied == group:
                break
            group = emptied
        return group


def _best_run(outlook: PartitionOutlook, indexes: Sequence[int]) -> PartitionRun | None:
    """The best possible run: one from the first live slice, else one that compacts, else the longest."""
    candidates = [
        _run(outlook, first, end)
        for mode_indexes in _by_mode(outlook, indexes)
        for first, end in _consecutive(mode_indexes)
    ]
    if not candidates:
        return None
    best = max(
        candidates,
        key=lambda run: (
            run.settles_tombstones,
            run.mode is RunMode.COMPACT,
            len(run.slices),
            -run.base_offset,
        ),
    )
    best.check()
    return best


def _by_mode(outlook: PartitionOutlook, indexes: Sequence[int]) -> tuple[list[int], list[int]]:
    movable = [index for index in indexes if outlook.movable[index]]
    to_compact = [index for index in movable if index in outlook.eligible]
    to_carry = [index for index in movable if index not in outlook.eligible]
    return to_compact, to_carry


def _run(outlook: PartitionOutlook, first: int, end: int) -> PartitionRun:
    mode = RunMode.COMPACT if first in outlook.eligible else RunMode.CARRY
    assert mode is RunMode.CARRY or end <= outlook.eligible.stop
    return PartitionRun(
        topic_id_partition=outlook.topic_id_partition,
        topic=outlook.topic,
        mode=mode,
        covers=first == outlook.first_stored_index,
        log_start_offset=outlook.state.log_start_offset,
        slices=tuple(outlook.slices[first:end]),
        part_counts=outlook.part_counts(first, end),
    )


def _consecutive(indexes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Half-open ranges of numbers without a gap, from sorted numbers."""
    first: int | None = None
    previous = -1
    for index in indexes:
        if first is not None and index != previous + 1:
            yield first, previous + 1
            first = None
        first = index if first is None else first
        previous = index
    if first is not None:
        yield first, previous + 1
