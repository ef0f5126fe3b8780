"""Divides the order of a job whose partition is too large for one task. Pure.

    order   one run of 40 slices
    units   the keys of a few slices each: read, and merged by ranges of the hash
    parts   consecutive slices that become one output slice each: rewritten by the survivors

A part is an order of its own. Its outputs are those that the whole order would have, because the survivors
are those of the whole run, and a cut lies only where no transaction is open. So no transaction has data, or
its marker, in two parts.

Runs that are not too large stay together as one part: their slices share objects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.job_execution import JobOrder
from stratalog.compaction.output.output_division import OutputBounds, OutputPiece, pieces_of
from stratalog.compaction.plan.compaction_job import PartitionRun, RunMode
from stratalog.compaction.plan.job_gathering import JobGathering
from stratalog.remote.metadata.shard.live_slice import LiveSlice

Survivors = Mapping[TopicIdPartition, Sequence[bytes]]
"""For each slice of a partition a bitmap of the records that stay."""


class KeyUnit(NamedTuple):
    """Slices whose keys are read together."""

    order: JobOrder
    """Its job has one run."""
    first_number: int
    """The number of its first slice; the others follow."""


class NumberedSlice(NamedTuple):
    """A slice of a large run that is compacted."""

    run: int
    """The number of its partition among the large ones."""
    live: LiveSlice
    has_keys: bool
    """Whether it has a usable key stream, or no records."""


class DividedOrder:
    """The division of an order. Immutable, so thread-safe."""

    def __init__(self, order: JobOrder, max_task_bytes: int) -> None:
        """Runs with more data are divided."""
        self._order = order
        self._large = tuple(
            run for run in order.job.runs if run.data_bytes > max_task_bytes and len(run.slices) > 1
        )
        self._compacted = tuple(run for run in self._large if run.mode is RunMode.COMPACT)

    @property
    def is_whole(self) -> bool:
        """Whether one task executes it."""
        return not self._large

    @property
    def large_partitions(self) -> frozenset[TopicIdPartition]:
        """The partitions of the runs that are divided."""
        return frozenset(run.topic_id_partition for run in self._large)

    def slices(self) -> list[NumberedSlice]:
        """The slices whose keys are merged, by their numbers."""
        return [
            NumberedSlice(number, live, run.has_keys(live))
            for number, run in enumerate(self._compacted)
            for live in run.slices
        ]

    def units(self) -> list[KeyUnit]:
        """The units that read the keys of these slices."""
        units: list[KeyUnit] = []
        number = 0
        for run in self._compacted:
            for first, end in _uncut(run.slices):
                units.append(KeyUnit(self._of_run(_slices_of(run, first, end)), number + first))
            number += len(run.slices)
        return units

    def survivors(self, bitmaps: Sequence[bytes]) -> Survivors:
        """The bitmaps of the slices, by partition."""
        left = iter(bitmaps)
        return {run.topic_id_partition: [next(left) for _ in run.slices] for run in self._compacted}

    def parts(self, survivors: Survivors) -> list[JobOrder]:
        """The orders that make the outputs. Each has one run, but for the last one, which may have all runs
        that are not too large."""
        bounds = OutputBounds.of(self._order.settings)
        parts: list[JobOrder] = []
        for run in self._large:
            bits = survivors.get(run.topic_id_partition)
            for group in _groups(run.slices, pieces_of(run, bits, bounds)):
                first, end = group[0].first, group[-1].end
                counts = tuple(piece.end - piece.first for piece in group)
                part = _slices_of(run, first, end, counts if len(counts) > 1 else ())
                decided = None if bits is None else {run.topic_id_partition: tuple(bits[first:end])}
                parts.append(self._of_run(part)._replace(decided=decided))
        large = self.large_partitions
        small = tuple(run for run in self._order.job.runs if run.topic_id_partition not in large)
        return [*parts, self._of_runs(small)] if small else parts

    def _of_run(self, run: PartitionRun) -> JobOrder:
        return self._of_runs((run,))

    def _of_runs(self, runs: tuple[PartitionRun, ...]) -> JobOrder:
        job = self._order.job
        names = {name for run in runs for name in run.slices.object_names}
        inputs = tuple(live for live in job.inputs if live.ref.name in names)
        gathering = JobGathering(live.ref.name for live in inputs)
        for run in runs:
            gathering.add(run)
        part = dataclasses.replace(
            job,
            inputs=inputs,
            runs=runs,
            needs=gathering.needs,
            planned_bytes=sum(run.data_bytes for run in runs),
        )
        part.check()
        return self._order._replace(job=part)


def _slices_of(run: PartitionRun, first: int, end: int, counts: tuple[int, ...] = ()) -> PartitionRun:
    return dataclasses.replace(run, slices=run.slices[first:end], part_counts=counts)


def may_cut_behind(live: LiveSlice) -> bool:
    """Whether no transaction is open at the end of the slice."""
    entry = live.entry
    return not entry.open_transactions and entry.stable_end_offset >= live.end_offset


def _uncut(slices: Sequence[LiveSlice]) -> Iterator[tuple[int, int]]:
    """The shortest pieces [first, end) between two cuts."""
    first = 0
    for index, live in enumerate(slices):
        if index + 1 == len(slices) or may_cut_behind(live):
            yield first, index + 1
            first = index + 1


def _groups(slices: Sequence[LiveSlice], pieces: Iterator[OutputPiece]) -> list[list[OutputPiece]]:
    """Pieces without a cut between them belong together."""
    groups: list[list[OutputPiece]] = []
    for piece in pieces:
        if groups and not may_cut_behind(slices[piece.first - 1]):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups
