"""Keeps a few bytes of each slice of a shard, for one plan.

One pass over the partitions reads the slices of one at a time. What it keeps are columns: 11 bytes for each
slice, some hundred for each partition and object, so that a shard of 5 million slices takes about 60 MiB. The
slices of a job are read again when the job is due.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
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
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.remote.metadata.shard.shard_state import LiveObject, ShardState
from stratalog.remote.metadata.shard.slice_row import SliceBrief

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
        self.state = state
        self.objects: Sequence[LiveObject] = sorted(
            state.objects.values(), key=lambda live: (live.seq, live.ref.name)
        )
        self.outlooks: list[PartitionOutlook | None] = []
        """By number; None for partitions that are not touched."""
        self.refusals: list[Refusal] = []
        """Partitions that are not touched."""
        self.movable_counts = array("l", bytes(array("l").itemsize * len(self.objects)))
        """For each object the number of slices that may be carried away."""
        self.movable_bytes = array("q", bytes(8 * len(self.objects)))
        self.kinds = array("b", [_NO_KIND]) * len(self.objects)
        """For each object with movable slices the kind of their topics, or `MIXED_KIND`."""
        self.reaches: Reaches = array("H")
        self._numbers = {live.ref.name: number for number, live in enumerate(self.objects)}
        self._movable = bytearray()
        self._object_of = array("i")
        self._starts = array("q", [0])
        self._survey(topics, terms, excluded, carried)
        self._object_starts, self._by_object = _grouped(self._object_of, len(self.objects))

    def _survey(
        self,
        topics: Mapping[UUID, TopicPolicy],
        terms: OutlookTerms,
        excluded: Mapping[TopicIdPartition, str],
        carried: Mapping[TopicIdPartition, str],
    ) -> None:
        for tip in sorted(self.state.partitions):
            partition = self.state.partition(tip)
            slices = list(partition.slices.in_brief())
            if not slices:
                continue
            topic = topics.get(tip.topic_id)
            if topic is None or tip in excluded:
                self.refusals.append(Refusal(tip, excluded.get(tip, UNKNOWN_TOPIC_REFUSED)))
                self.outlooks.append(None)
                self._add_slices(slices, bytes(len(slices)), array("H", [1]) * len(slices))
                continue
            judged = judge_partition(
                tip, topic, partition.row, slices, self._uploaded_ms, terms, carries_only=carried.get(tip)
            )
            self.outlooks.append(judged.outlook)
            self._add_slices(slices, judged.movable, judged.reaches)
            self._add_to_objects(slices, judged.movable, topic)

    def _add_slices(self, slices: Sequence[SliceBrief], movable: bytes | bytearray, reaches: Reaches) -> None:
        self._object_of.extend(self._numbers.get(one.object_name, _NO_OBJECT) for one in slices)
        self._movable += movable
        self.reaches.extend(reaches)
        self._starts.append(len(self._object_of))

    def _add_to_objects(
        self, slices: Sequence[SliceBrief], movable: bytes | bytearray, topic: TopicPolicy
    ) -> None:
        for one, is_movable in zip(slices, movable, strict=True):
            if is_movable:
                number = self._numbers[one.object_name]
                self.movable_counts[number] += 1
                self.movable_bytes[number] += one.data_bytes
                is_first = self.kinds[number] == _NO_KIND
                self.kinds[number] = (
                    topic.kind if is_first or self.kinds[number] == topic.kind else MIXED_KIND
                )

    def _uploaded_ms(self, object_name: str) -> int | None:
        number = self._numbers.get(object_name)
        return None if number is None else self.objects[number].uploaded_ms

    def number_of(self, object_name: str) -> int | None:
        """The number of a live object."""
        return self._numbers.get(object_name)

    def outlook(self, partition: int) -> PartitionOutlook:
        """The outlook of a partition that has one."""
        outlook = self.outlooks[partition]
        assert outlook is not None, "a partition with movable slices has an outlook"
        return outlook

    def object_of(self, partition: int, index: int) -> int:
        """The object of a slice."""
        return self._object_of[self._starts[partition] + index]

    def objects_of(self, partition: int, first: int, end: int) -> Sequence[int]:
        """The objects of the slices [first, end), one for each."""
        start = self._starts[partition]
        return self._object_of[start + first : start + end]

    def slices_in(self, objects: Iterable[int]) -> Iterator[PartitionSlices]:
        """The movable slices that lie in these objects, partition by partition."""
        rows = sorted(row for number in objects for row in self._rows_of(number) if self._movable[row])
        place = 0
        while place < len(rows):
            partition = bisect_right(self._starts, rows[place]) - 1
            start, end_row = self._starts[partition], self._starts[partition + 1]
            first = place
            while place < len(rows) and rows[place] < end_row:
                place += 1
            yield PartitionSlices(partition, [row - start for row in rows[first:place]])

    def partitions_in(self, number: int) -> Iterator[int]:
        """The partitions with a slice in the object."""
        return (bisect_right(self._starts, row) - 1 for row in self._rows_of(number))

    def part_counts(self, partition: int, first: int, end: int) -> tuple[int, ...]:
        """How many of the slices [first, end) each output slice replaces."""
        start = self._starts[partition]
        counts: list[int] = []
        while first < end:
            counts.append(min(self.reaches[start + first], end - first))
            first += counts[-1]
        return tuple(counts)

    def topics_in(self, number: int) -> Set[UUID]:
        """The topics that have a movable slice in the object."""
        return {
            self.outlook(partition).topic.topic_id
            for partition in self.partitions_in(number)
            if self.outlooks[partition] is not None
        }

    def _rows_of(self, number: int) -> Sequence[int]:
        return self._by_object[self._object_starts[number] : self._object_starts[number + 1]]


def _grouped(object_of: Sequence[int], object_count: int) -> tuple[Sequence[int], Sequence[int]]:
    """The rows of each object, ascending, in one column, and where those of each begin."""
    starts = array("q", bytes(8 * (object_count + 2)))
    for number in object_of:
        if number != _NO_OBJECT:
            starts[number + 2] += 1
    for number in range(2, object_count + 2):
        starts[number] += starts[number - 1]
    rows = array("i", bytes(4 * starts[-1]))
    for row, number in enumerate(object_of):
        if number != _NO_OBJECT:
            # Each start moves to its end, which is the start of the next one.
            rows[starts[number + 1]] = row
            starts[number + 1] += 1
    return starts[:-1], rows
