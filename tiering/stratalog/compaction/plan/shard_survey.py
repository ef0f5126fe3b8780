"""Keeps a few bytes of each slice of a shard, for one plan.

One pass over the partitions reads the slices of some hundred at a time. What it keeps are columns: 11 bytes
for each slice, some hundred for each partition and object, so that a shard of 5 million slices takes about 60
MiB, and all columns of some thousand slices (`SurveyedSlices`). The slices of a job are read again when the
job is due, but for those.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple
from uuid import UUID

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan.compaction_job import Refusal
from stratalog.compaction.plan.partition_outlook import (
    OutlookTerms,
    PartitionOutlook,
    Reaches,
    judge_partition,
)
from stratalog.compaction.plan.surveyed_slices import SurveyedSlices
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.remote.metadata.shard.shard_state import LiveObject, ShardState

UNKNOWN_TOPIC_REFUSED = (
    "its topic is not in the catalog, or is configured by newer software; its slices stay as they are"
)

MIXED_KIND = -1
"""The kind of an object with topics of several kinds."""
_NO_KIND = -2
_NO_OBJECT = -1


class PartitionSlices(NamedTuple):
    """Some slices of one partition."""

    partition: int
    """Its number in the survey."""
    indexes: Sequence[int]
    """Ascending, among the slices of the partition."""


def data_bytes_of(live: LiveObject) -> int:
    """Bytes of all slices that were put into the object, dead ones included."""
    return live.ref.directory_position - live.ref.data_position


class ShardSurvey:
    """The slices of a shard by columns, by partition and by object. Both have numbers: partitions in their
    order, objects by age. Immutable after construction, so thread-safe."""

    def __init__(
        self,
        state: ShardState,
        topics: Mapping[UUID, TopicPolicy],
        terms: OutlookTerms,
        excluded: Mapping[TopicIdPartition, str],
        carried: Mapping[TopicIdPartition, str],
    ) -> None:
        """`excluded` partitions are not touched, and `carried` ones not compacted, for the reasons given.
        Loads all pages, one after the other, and raises as `SlicePages` does."""
        self.slices = SurveyedSlices(state)
        self.objects: Sequence[LiveObject] = sorted(
            state.objects.values(), key=lambda live: (live.seq, live.ref.name)
        )
        self.outlooks: list[PartitionOutlook | None] = []
        """By number; None for partitions that are not touched."""
        self.refusals: list[Refusal] = []
        """Partitions that are not touched."""
        self.movable_bytes = array("q", bytes(8 * len(self.objects)))
        self.kinds = array("b", [_NO_KIND]) * len(self.objects)
        """For each object with movable slices the kind of their topics, or `MIXED_KIND`."""
        self.reaches: Reaches = array("H")
        self._numbers = {live.ref.name: number for number, live in enumerate(self.objects)}
        self._movable = bytearray()
        self._object_of = array("i")
        self._starts = array("q", [0])
        self._rows_of = [array("i") for _ in self.objects]
        """The rows of each object, ascending."""
        self._survey(topics, terms, excluded, carried)
        self.movable_counts = array(
            "l", (sum(map(self._movable.__getitem__, rows)) for rows in self._rows_of)
        )
        """For each object the number of slices that may be carried away."""

    def _survey(
        self,
        topics: Mapping[UUID, TopicPolicy],
        terms: OutlookTerms,
        excluded: Mapping[TopicIdPartition, str],
        carried: Mapping[TopicIdPartition, str],
    ) -> None:
        # The last one is that of `_NO_OBJECT`.
        uploads_ms = [*(live.uploaded_ms for live in self.objects), None]
        names: Sequence[str] = ()
        numbers: array[int] = array("i")
        uploaded_ms: list[int | None] = []
        topic_id: UUID | None = None
        topic: TopicPolicy | None = None
        first_row = 0
        for tip, row, slices in self.slices.read():
            if slices.object_names != names:
                # Partitions that were uploaded together have the same objects.
                self._note_rows(first_row, numbers)
                first_row, names = len(self._object_of), slices.object_names
                numbers = array("i", [self._numbers.get(name, _NO_OBJECT) for name in names])
                uploaded_ms = [uploads_ms[number] for number in numbers]
            if tip.topic_id is not topic_id:
                topic_id = tip.topic_id
                topic = topics.get(topic_id)
            if topic is None or (excluded and tip in excluded):
                self.refusals.append(Refusal(tip, excluded.get(tip, UNKNOWN_TOPIC_REFUSED)))
                self.outlooks.append(None)
                self._add_slices(numbers, bytes(len(numbers)), array("H", [1]) * len(numbers))
                continue
            judged = judge_partition(
                tip,
                topic,
                row,
                slices,
                uploaded_ms,
                terms,
                carries_only=carried.get(tip) if carried else None,
            )
            self.outlooks.append(judged.outlook)
            self._add_slices(numbers, judged.movable, judged.reaches)
            self._add_to_objects(numbers, slices.data_bytes, judged.movable, topic.kind)
        self._note_rows(first_row, numbers)

    def _note_rows(self, first: int, numbers: Sequence[int]) -> None:
        """Give each object its rows from `first` on; these objects come again and again there."""
        for place, number in enumerate(numbers):
            if number != _NO_OBJECT:
                self._rows_of[number].extend(range(first + place, len(self._object_of), len(numbers)))

    def _add_slices(self, numbers: Sequence[int], movable: bytes | bytearray, reaches: Reaches) -> None:
        self._object_of.extend(numbers)
        self._movable += movable
        self.reaches.extend(reaches)
        self._starts.append(len(self._object_of))

    def _add_to_objects(
        self, numbers: Sequence[int], sizes: Sequence[int], movable: bytes | bytearray, kind: int
    ) -> None:
        totals, kinds = self.movable_bytes, self.kinds
        for number, size_bytes in itertools.compress(zip(numbers, sizes, strict=True), movable):
            totals[number] += size_bytes
            if kinds[number] != kind:
                kinds[number] = kind if kinds[number] == _NO_KIND else MIXED_KIND

    def number_of(self, object_name: str) -> int | None:
        """The number of a live object."""
        return self._numbers.get(object_name)

    def outlook(self, partition: int) -> PartitionOutlook:
        """The outlook of a partition that has one."""
        outlook = self.outlooks[partition]
        assert outlook is not None, "a partition with movable slices has an outlook"
        return outlook

    def eligible_objects(self, partition: int) -> Sequence[int]:
        """The objects of the slices that a covering job may take of the partition, one for each."""
        eligible = self.outlook(partition).section.eligible
        return self.objects_of(partition, eligible.start, eligible.stop)

    def objects_of(self, partition: int, first: int, end: int) -> Sequence[int]:
        """The objects of the slices [first, end), one for each."""
        start = self._starts[partition]
        return self._object_of[start + first : start + end]

    def slices_in(self, objects: Iterable[int]) -> Iterator[PartitionSlices]:
        """The movable slices that lie in these objects, partition by partition."""
        rows = self._rows_in(objects)
        rows = list(itertools.compress(rows, map(self._movable.__getitem__, rows)))
        for partition, first, end in self._by_partition(rows):
            start, first_row, last_row = self._starts[partition], rows[first], rows[end - 1]
            if last_row - first_row < end - first:
                yield PartitionSlices(partition, range(first_row - start, last_row + 1 - start))
            else:
                yield PartitionSlices(partition, [row - start for row in rows[first:end]])

    def partitions_in(self, objects: Iterable[int]) -> Iterator[int]:
        """The partitions with a slice in these objects."""
        return (partition for partition, _, _ in self._by_partition(self._rows_in(objects)))

    def _rows_in(self, objects: Iterable[int]) -> Sequence[int]:
        """The rows of some objects, ascending."""
        return sorted(itertools.chain.from_iterable(map(self._rows_of.__getitem__, objects)))

    def _by_partition(self, rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """The partitions of ascending rows, each with the half-open range of its own among them."""
        starts, end = self._starts, 0
        while end < len(rows):
            partition = bisect_right(starts, rows[end]) - 1
            first, end = end, bisect_left(rows, starts[partition + 1], end)
            yield partition, first, end

    def part_counts(self, partition: int, first: int, end: int) -> tuple[int, ...]:
        """How many of the slices [first, end) each output slice replaces."""
        start = self._starts[partition]
        if self.reaches[start + first] >= end - first:
            return (end - first,)
        counts: list[int] = []
        while first < end:
            counts.append(min(self.reaches[start + first], end - first))
            first += counts[-1]
        return tuple(counts)

    def topics_in(self, number: int) -> Set[UUID]:
        """The topics that have a movable slice in the object."""
        return {
            self.outlook(partition).topic.topic_id
            for partition in self.partitions_in((number,))
            if self.outlooks[partition] is not None
        }
