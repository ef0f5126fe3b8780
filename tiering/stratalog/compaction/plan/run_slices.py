"""The slices of a run as columns of numbers.

A job has a hundred thousand slices. As objects each of them takes a kibibyte and lies in no cache, so each
look at one costs as much as several looks at a column. Columns take a third of that, and go to another
process as they are.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import cast, overload

from stratalog.record.number_columns import NUMBER, PAIRS, SKIPPED, tuple_columns
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

_SHAPES = {
    "base_offset": NUMBER,
    "end_offset": NUMBER,
    "data_position": NUMBER,
    "data_bytes": NUMBER,
    "data_crc": NUMBER,
    "record_count": NUMBER,
    "min_timestamp": NUMBER,
    "max_timestamp": NUMBER,
    "max_timestamp_offset": NUMBER,
    "codec_mask": NUMBER,
    "stable_end_offset": NUMBER,
    "index": len(PartRef._fields),
    "has_aborted": NUMBER,
    "open_transactions": PAIRS,
    "tombstone_count": NUMBER,
    "marker_count": NUMBER,
    "earliest_delete_horizon_ms": -NUMBER,
    "leader_epochs": PAIRS,
    "last_batch": -len(LastBatch._fields),
    "key_stream": -len(KeyStreamRef._fields),
}
_SHAPE = tuple([_SHAPES.get(field, SKIPPED) for field in SliceEntry._fields])
_PARTS = {"index": PartRef._fields, "last_batch": LastBatch._fields, "key_stream": KeyStreamRef._fields}


def _column_names() -> Iterator[str]:
    for field in SliceEntry._fields:
        shape = _SHAPES.get(field, SKIPPED)
        if shape < 0:
            yield f"has_{field}"
        if field in _PARTS:
            yield from (f"{field}.{part}" for part in _PARTS[field])
        elif shape != SKIPPED:
            yield field


_PLACES = {name: place for place, name in enumerate(_column_names())}
"""The columns, by their names."""
_WIDTH = len(_PLACES)
_UNSIGNED = 1 << 64


def column_places(*names: str) -> tuple[int, ...]:
    """The places of columns, counted from 0, in `RunSlices.columns`."""
    return tuple([_PLACES[name] for name in names])


class RunSlices(Sequence[LiveSlice]):
    """Consecutive slices of one partition, at least one and none of them a gap. Immutable, so thread-safe.

    Each look at a slice makes it anew, which takes microseconds: take columns for many slices, or `unpacked`
    ones for a piece of work that looks at them more than once.
    """

    __slots__ = (
        "_base_offsets",
        "_epochs",
        "_numbers",
        "_topic_id_partition",
        "_topics",
        "_transactions",
        "object_names",
    )

    def __init__(self, slices: Sequence[LiveSlice]) -> None:
        object_names, base_offsets, end_offsets, entries, gaps = zip(*slices, strict=True)
        assert base_offsets[1:] == end_offsets[:-1], "a run has no holes"
        assert gaps.count(None) == len(gaps), "no job takes a gap"
        self.object_names: tuple[str, ...] = object_names
        """The object of each slice."""
        self._topic_id_partition = entries[0].topic_id_partition
        self._topics = tuple([entry.topic for entry in entries])
        self._base_offsets = array("q", base_offsets)
        self._numbers, (self._transactions, self._epochs) = tuple_columns(entries, _SHAPE)
        assert tuple(self.column("end_offset")) == end_offsets, "slices are never clipped at the high end"

    def column(self, name: str) -> array[int]:
        """A number in the entry of each slice: that of a field, or of a part of one, such as
        `index.position`. `has_key_stream` is 1 if there is one, else 0, and the parts are 0 then."""
        count = len(self.object_names)
        start = _PLACES[name] * count
        return self._numbers[start : start + count]

    @property
    def columns(self) -> tuple[tuple[str, ...], array[int]]:
        """The object of each slice, and all columns, one behind the other. Change nothing in it."""
        return self.object_names, self._numbers

    @property
    def base_offsets(self) -> array[int]:
        """The base offset of each slice; that of a clipped one is higher than in its entry. Change nothing in
        it."""
        return self._base_offsets

    def first(self, name: str) -> int:
        """The number of the first slice in a column."""
        return self._numbers[_PLACES[name] * len(self.object_names)]

    def last(self, name: str) -> int:
        """The number of the last slice in a column."""
        return self._numbers[(_PLACES[name] + 1) * len(self.object_names) - 1]

    @property
    def base_offset(self) -> int:
        first: int = self._base_offsets[0]
        return first

    @property
    def end_offset(self) -> int:
        return self._numbers[2 * len(self.object_names) - 1]

    @property
    def ranges(self) -> SliceRanges:
        """The objects and offsets that tell these slices from others."""
        return SliceRanges(self.object_names, tuple(self._base_offsets), tuple(self.column("end_offset")))

    @property
    def are_transactional(self) -> bool:
        """Whether a slice has markers, or transactions that are aborted or open."""
        return bool(self._transactions) or any(self.column("marker_count")) or any(self.column("has_aborted"))

    @property
    def leader_epochs(self) -> tuple[LeaderEpoch, ...]:
        """The leader epochs of all, each with its first start offset."""
        epochs = self._epochs
        if epochs and epochs[::2].count(epochs[0]) * 2 == len(epochs):
            # As in most runs.
            return (LeaderEpoch(epochs[0], epochs[1]),)
        return ascending_epochs(_pairs(epochs))

    def have_key_streams(self, hash_key_id: int) -> bool:
        """Whether each slice has a key stream that was made in this way."""
        count = len(self.object_names)
        hash_key_ids = self.column("key_stream.hash_key_id")
        return hash_key_ids.count(_signed(hash_key_id)) == count == sum(self.column("has_key_stream"))

    def unpacked(self) -> tuple[LiveSlice, ...]:
        """The slices."""
        return tuple(self)

    def __len__(self) -> int:
        return len(self.object_names)

    @overload
    def __getitem__(self, index: int) -> LiveSlice: ...
    @overload
    def __getitem__(self, index: slice) -> RunSlices: ...
    def __getitem__(self, index: int | slice) -> LiveSlice | RunSlices:
        numbers = range(len(self.object_names))[index]
        return self._slice(numbers) if isinstance(numbers, int) else RunSlices([*map(self._slice, numbers)])

    def __iter__(self) -> Iterator[LiveSlice]:
        return map(self._slice, range(len(self.object_names)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self.unpacked() == tuple(cast(Sequence[object], other))

    __hash__ = None  # type: ignore[assignment]  # as a list

    def _slice(self, index: int) -> LiveSlice:
        # Parts of the row of numbers, in the order of the fields.
        numbers = self._numbers[index :: len(self.object_names)].tolist()
        has_aborted, transactions_end, tombstone_count, marker_count = numbers[-17:-13]
        has_horizon, horizon_ms, epochs_end, has_batch = numbers[-13:-9]
        has_keys, hash_key_id = numbers[-6], numbers[-1]
        numbers[-1] = hash_key_id if hash_key_id >= 0 else hash_key_id + _UNSIGNED
        topic_id, partition = self._topic_id_partition
        entry = SliceEntry._make(
            (
                topic_id,
                self._topics[index],
                partition,
                *numbers[:-20],
                PartRef._make(numbers[-20:-17]),
                has_aborted > 0,
                self._transactions_of(index, transactions_end) if self._transactions else (),
                tombstone_count,
                marker_count,
                horizon_ms if has_horizon else None,
                self._epochs_of(index, epochs_end),
                LastBatch._make(numbers[-9:-6]) if has_batch else None,
                KeyStreamRef._make(numbers[-5:]) if has_keys else None,
            )
        )
        return LiveSlice(self.object_names[index], self._base_offsets[index], entry.end_offset, entry)

    def _transactions_of(self, index: int, end: int) -> tuple[OpenTransaction, ...]:
        begin = self.column("open_transactions")[index - 1] if index else 0
        return tuple(map(OpenTransaction._make, _pairs(self._transactions[2 * begin : 2 * end])))

    def _epochs_of(self, index: int, end: int) -> tuple[LeaderEpoch, ...]:
        begin = self._numbers[_PLACES["leader_epochs"] * len(self.object_names) + index - 1] if index else 0
        numbers = self._epochs[2 * begin : 2 * end]
        # As in most slices.
        return (
            (LeaderEpoch._make(numbers),)
            if len(numbers) == 2
            else tuple(map(LeaderEpoch._make, _pairs(numbers)))
        )


def _pairs(numbers: array[int]) -> Iterator[tuple[int, int]]:
    return zip(numbers[::2], numbers[1::2], strict=True)


def _signed(number: int) -> int:
    """The signed number with the same 64 bits as an unsigned one."""
    return number - _UNSIGNED if 2 * number >= _UNSIGNED else number
