"""Reads the slices of all partitions of a shard in brief, and keeps all columns of some thousands.

Most shards have no more outside of pages, and a job need not read those again.
"""

from __future__ import annotations

import itertools
import operator
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan.run_slices import RunSlices
from stratalog.compaction.plan.slice_table import TABLE_SLICES, SliceTable
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.slice_briefs import SliceBriefs
from stratalog.remote.metadata.shard.slice_list import SliceList

_KEPT_SLICES = 1 << 16
"""So many slices are kept, at the most: three hundred bytes each."""
_NO_TABLE = -1
# A slice is a tuple, and its places are found in half the time of its names.
_GAP = operator.itemgetter(LiveSlice._fields.index("gap"))


class SurveyedPartition(NamedTuple):
    """A partition with slices. Immutable."""

    topic_id_partition: TopicIdPartition
    row: PartitionRow
    slices: SliceBriefs


class SliceRange(NamedTuple):
    """Slices [first, end) of a partition. Immutable."""

    topic_id_partition: TopicIdPartition
    partition: int
    """Its number in the survey."""
    first: int
    end: int


class SurveyedSlices:
    """The slices of a shard's partitions, which have numbers in their order. Not thread-safe while they are
    read, and immutable after that."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self._tables: list[SliceTable] = []
        """Those that are kept."""
        self._kept_count = 0
        self._table_of = array("i")
        """For each partition the number of its table."""
        self._row_of = array("i")
        """For each partition its first row in the table."""

    def read(self) -> Iterator[SurveyedPartition]:
        """All partitions with slices, ascending. Call it once. Loads pages one after the other, and raises as
        `SlicePages` does."""
        waiting: list[tuple[TopicIdPartition, PartitionRow]] = []
        waiting_count = 0
        for tip, row in sorted(self._state.partitions.rows(), key=operator.itemgetter(0)):
            if row.held is None:
                yield from self._in_one_table(waiting)
                waiting, waiting_count = [], 0
                yield self._alone(tip, row)
            elif row.pieces:
                waiting.append((tip, row))
                waiting_count += row.slice_count
                if waiting_count >= TABLE_SLICES:
                    yield from self._in_one_table(waiting)
                    waiting, waiting_count = [], 0
        yield from self._in_one_table(waiting)

    def runs(self, ranges: Iterable[SliceRange]) -> Iterator[RunSlices]:
        """The slices of each range, in order. Those that are not kept are read again, and this raises as
        `read` then."""
        ranges = list(ranges)
        taken: Counter[int] = Counter()
        for one in ranges:
            taken[self._table_of[one.partition]] += one.end - one.first
        # A job goes to another process with its tables, so it gets none with mostly other slices.
        useful = {
            number for number, table in enumerate(self._tables) if 2 * taken[number] >= table.slice_count
        }
        by_use = itertools.groupby(ranges, lambda one: self._table_of[one.partition] in useful)
        for is_useful, some in by_use:
            yield from map(self._kept, some) if is_useful else RunSlices.of_runs(map(self._slices, some))

    def _in_one_table(
        self, partitions: Sequence[tuple[TopicIdPartition, PartitionRow]]
    ) -> Iterator[SurveyedPartition]:
        """Read partitions none of whose slices is in a page."""
        slices: list[LiveSlice] = []
        for _, row in partitions:
            slices += row.held or ()
        if not slices:
            return
        if list(map(_GAP, slices)).count(None) < len(slices):
            yield from itertools.starmap(self._alone, partitions)
            return
        table, number = SliceTable.of(slices), _NO_TABLE
        if self._kept_count + table.slice_count <= _KEPT_SLICES:
            number = len(self._tables)
            self._tables.append(table)
            self._kept_count += table.slice_count
        counts = [row.slice_count for _, row in partitions]
        self._table_of.extend(itertools.repeat(number, len(partitions)))
        self._row_of.extend(itertools.accumulate(counts[:-1], initial=0))
        for (tip, row), brief in zip(partitions, table.in_brief(counts), strict=True):
            yield SurveyedPartition(tip, row, brief)

    def _alone(self, tip: TopicIdPartition, row: PartitionRow) -> SurveyedPartition:
        self._table_of.append(_NO_TABLE)
        self._row_of.append(0)
        return SurveyedPartition(tip, row, SliceList(tip, row, self._state.pages).in_brief())

    def _kept(self, one: SliceRange) -> RunSlices:
        table, row = self._tables[self._table_of[one.partition]], self._row_of[one.partition]
        return RunSlices.in_table(table, row + one.first, row + one.end, one.topic_id_partition)

    def _slices(self, one: SliceRange) -> Sequence[LiveSlice]:
        return self._state.partition(one.topic_id_partition).slices[one.first : one.end]
