"""The slices of a run as columns of numbers: a job has a hundred thousand slices.

Those of many small runs lie in one table.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import cast, overload

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan.slice_table import PLACES, TABLE_SLICES, UNSIGNED, SliceTable
from stratalog.record.native.batch_filter import RunColumns
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.remote.objects.slice_entry import (
    KeyStreamRef,
    LastBatch,
    LeaderEpoch,
    OpenTransaction,
    PartRef,
    SliceEntry,
    ascending_epochs,
)


class RunSlices(Sequence[LiveSlice]):
    """Consecutive slices of one partition, at least one and none of them a gap. Immutable, so thread-safe.

    Each look at a slice makes it anew, which takes microseconds: take columns for many slices, or `unpacked`
    ones for a piece of work that looks at them more than once.
    """

    __slots__ = ("_end", "_first", "_table", "_topic_id_partition", "columns")

    def __init__(self, slices: Sequence[LiveSlice]) -> None:
        self._place(SliceTable.of(slices), 0, len(slices), slices[0].entry.topic_id_partition)

    @staticmethod
    def of_runs(runs: Iterable[Sequence[LiveSlice]]) -> Iterator[RunSlices]:
        """The slices of each run. Those of some thousands are in memory as objects, not more."""
        waiting: list[Sequence[LiveSlice]] = []
        waiting_count = 0
        for run in runs:
            waiting.append(run)
            waiting_count += len(run)
            if waiting_count >= TABLE_SLICES:
                yield from RunSlices._in_one_table(waiting)
                waiting, waiting_count = [], 0
        yield from RunSlices._in_one_table(waiting)

    @staticmethod
    def _in_one_table(runs: Sequence[Sequence[LiveSlice]]) -> Iterator[RunSlices]:
        if not runs:
            return
        table, end = SliceTable.of([*itertools.chain.from_iterable(runs)]), 0
        for run in runs:
            first, end = end, end + len(run)
            yield RunSlices.in_table(table, first, end, run[0].entry.topic_id_partition)

    @staticmethod
    def in_table(table: SliceTable, first: int, end: int, tip: TopicIdPartition) -> RunSlices:
        """The slices of the rows [first, end), all of them of that partition."""
        slices = RunSlices.__new__(RunSlices)
        slices._place(table, first, end, tip)
        return slices

    def _place(self, table: SliceTable, first: int, end: int, tip: TopicIdPartition) -> None:
        self._table = table
        self._first = first
        self._end = end
        self.columns: RunColumns = table.object_names, table.base_offsets, table.numbers, first, end
        """All columns, for kernels. Change nothing in them."""
        self._topic_id_partition = tip
        base_offsets, end_column = table.base_offsets, len(table.object_names)
        end_offsets = table.numbers[end_column + first : end_column + end - 1]
        assert base_offsets[first + 1 : end] == end_offsets, "a run has no holes"

    def __reduce__(self) -> tuple[object, ...]:
        return RunSlices.in_table, (self._table, self._first, self._end, self._topic_id_partition)

    @property
    def object_names(self) -> tuple[str, ...]:
        """The object of each slice."""
        return self._table.object_names[self._first : self._end]

    def column(self, name: str) -> array[int]:
        """A number in the entry of each slice: that of a field, or of a part of one, such as
        `index.position`. `has_key_stream` is 1 if there is one, else 0, and the parts are 0 then."""
        table = self._table
        start = PLACES[name] * len(table.object_names)
        return table.numbers[start + self._first : start + self._end]

    @property
    def last_object_name(self) -> str:
        """The object of the last slice."""
        return self._table.object_names[self._end - 1]

    @property
    def base_offsets(self) -> array[int]:
        """The base offset of each slice; that of a clipped one is higher than in its entry."""
        return self._table.base_offsets[self._first : self._end]

    def first(self, places: tuple[int, ...]) -> list[int]:
        """The numbers of the first slice in columns at these places."""
        numbers, count, row = self._table.numbers, len(self._table.object_names), self._first
        return [numbers[place * count + row] for place in places]

    def last(self, places: tuple[int, ...]) -> list[int]:
        """The numbers of the last slice in columns at these places."""
        numbers, count, row = self._table.numbers, len(self._table.object_names), self._end - 1
        return [numbers[place * count + row] for place in places]

    def _number(self, name: str, row: int) -> int:
        table = self._table
        return table.numbers[PLACES[name] * len(table.object_names) + row]

    @property
    def base_offset(self) -> int:
        return self._table.base_offsets[self._first]

    @property
    def end_offset(self) -> int:
        table = self._table
        return table.numbers[len(table.object_names) + self._end - 1]

    @property
    def ranges(self) -> SliceRanges:
        """The objects and offsets that tell these slices from others."""
        base_offsets = tuple(self.base_offsets)
        # A run has no holes, and a commit holds the ranges of a hundred thousand slices: they share numbers.
        return SliceRanges(self.object_names, base_offsets, (*base_offsets[1:], self.end_offset))

    @property
    def are_transactional(self) -> bool:
        """Whether a slice has markers, or transactions that are aborted or open."""
        # In most tables none has.
        return self._table.is_transactional and (
            len(self._transactions(self._first, self._end)) > 0
            or any(self.column("marker_count"))
            or any(self.column("has_aborted"))
        )

    @property
    def leader_epochs(self) -> tuple[LeaderEpoch, ...]:
        """The leader epochs of all, each with its first start offset."""
        table = self._table
        if table.leader_epoch is not None:
            # As in most tables.
            return (LeaderEpoch(table.leader_epoch, table.epochs[2 * self._first + 1]),)
        return ascending_epochs(_pairs(self._epochs(self._first, self._end)))

    def have_key_streams(self, hash_key_id: int) -> bool:
        """Whether each slice has a key stream that was made in this way."""
        if self._table.hash_key_id is not None:
            # As in most tables.
            return self._table.hash_key_id == _signed(hash_key_id)
        count = len(self)
        hash_key_ids = self.column("key_stream.hash_key_id")
        return hash_key_ids.count(_signed(hash_key_id)) == count == sum(self.column("has_key_stream"))

    def unpacked(self) -> tuple[LiveSlice, ...]:
        """The slices."""
        return tuple(self)

    def __len__(self) -> int:
        return self._end - self._first

    @overload
    def __getitem__(self, index: int) -> LiveSlice: ...
    @overload
    def __getitem__(self, index: slice) -> RunSlices: ...
    def __getitem__(self, index: int | slice) -> LiveSlice | RunSlices:
        rows = range(self._first, self._end)[index]
        return self._slice(rows) if isinstance(rows, int) else RunSlices([*map(self._slice, rows)])

    def __iter__(self) -> Iterator[LiveSlice]:
        return map(self._slice, range(self._first, self._end))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self.unpacked() == tuple(cast(Sequence[object], other))

    __hash__ = None  # type: ignore[assignment]  # as a list

    def _slice(self, row: int) -> LiveSlice:
        # Parts of the row of numbers, in the order of the fields.
        table = self._table
        numbers = table.numbers[row :: len(table.object_names)].tolist()
        has_aborted, _, tombstone_count, marker_count = numbers[-17:-13]
        has_horizon, horizon_ms, _, has_batch = numbers[-13:-9]
        has_keys, hash_key_id = numbers[-6], numbers[-1]
        numbers[-1] = hash_key_id if hash_key_id >= 0 else hash_key_id + UNSIGNED
        topic_id, partition = self._topic_id_partition
        entry = SliceEntry._make(
            (
                topic_id,
                table.topics[row],
                partition,
                *numbers[:-20],
                PartRef._make(numbers[-20:-17]),
                has_aborted > 0,
                tuple(map(OpenTransaction._make, _pairs(self._transactions(row, row + 1)))),
                tombstone_count,
                marker_count,
                horizon_ms if has_horizon else None,
                tuple(map(LeaderEpoch._make, _pairs(self._epochs(row, row + 1)))),
                LastBatch._make(numbers[-9:-6]) if has_batch else None,
                KeyStreamRef._make(numbers[-5:]) if has_keys else None,
            )
        )
        return LiveSlice(table.object_names[row], table.base_offsets[row], entry.end_offset, entry)

    def _transactions(self, first: int, end: int) -> array[int]:
        return self._pairs_of("open_transactions", self._table.transactions, first, end)

    def _epochs(self, first: int, end: int) -> array[int]:
        return self._pairs_of("leader_epochs", self._table.epochs, first, end)

    def _pairs_of(self, name: str, pairs: array[int], first: int, end: int) -> array[int]:
        """The pairs of the rows [first, end) of the table; the column counts those of each row and before."""
        if not pairs:
            return pairs
        begin = self._number(name, first - 1) if first else 0
        return pairs[2 * begin : 2 * self._number(name, end - 1)]


def _pairs(numbers: array[int]) -> Iterator[tuple[int, int]]:
    return zip(numbers[::2], numbers[1::2], strict=True)


def _signed(number: int) -> int:
    """The signed number with the same 64 bits as an unsigned one."""
    return number - UNSIGNED if 2 * number >= UNSIGNED else number
