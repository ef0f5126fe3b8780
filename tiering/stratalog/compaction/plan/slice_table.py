"""Slices of many partitions as columns of numbers, in one table.

As objects, slices take a kibibyte each and lie in no cache, so each look at one costs as much as several
looks at a column. Columns take a third of that, and go to another process as they are. A step for a column of
a table costs little for each of its slices.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratalog.record.number_columns import NUMBER, PAIRS, SKIPPED, tuple_columns
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.slice_briefs import ENTRY_COLUMNS, SliceBriefs
from stratalog.remote.objects.slice_entry import KeyStreamRef, LastBatch, PartRef, SliceEntry

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


PLACES = {name: place for place, name in enumerate(_column_names())}
"""The columns, by their names."""
UNSIGNED = 1 << 64
TABLE_SLICES = 4096
"""Slices of one table, about."""


def column_places(*names: str) -> tuple[int, ...]:
    """The places of columns, counted from 0, in `SliceTable.numbers`."""
    return tuple([PLACES[name] for name in names])


class SliceTable(NamedTuple):
    """The slices of some partitions, or of runs of them, one behind the other and none of them a gap.
    Immutable."""

    object_names: tuple[str, ...]
    topics: tuple[str, ...]
    base_offsets: array[int]
    numbers: array[int]
    """All columns, one behind the other."""
    transactions: array[int]
    """The open transactions of all slices: the two numbers of each."""
    epochs: array[int]
    """Their leader epochs, in the same way."""
    hash_key_id: int | None
    """The hashing of all key streams, as in the column; None unless each slice has one, of the same
    hashing."""
    leader_epoch: int | None
    """The leader epoch of all slices; None unless each has one, the same."""
    is_transactional: bool
    """Whether a slice has markers, or transactions that are aborted or open."""

    @staticmethod
    def of(slices: Sequence[LiveSlice]) -> SliceTable:
        """The table of these slices, at least one."""
        object_names, base_offsets, end_offsets, entries, gaps = zip(*slices, strict=True)
        assert gaps.count(None) == len(gaps), "no job takes a gap"
        numbers, (transactions, epochs) = tuple_columns(entries, _SHAPE)
        count = len(entries)
        assert numbers[count : 2 * count] == array("q", end_offsets), "no slice is clipped at the high end"
        has_keys, hash_key_ids, marker_counts, has_aborted, epoch_counts = (
            numbers[place * count : (place + 1) * count]
            for place in column_places(
                "has_key_stream",
                "key_stream.hash_key_id",
                "marker_count",
                "has_aborted",
                "leader_epochs",
            )
        )
        is_one = sum(has_keys) == count == hash_key_ids.count(hash_key_ids[0])
        has_one_epoch = (
            epoch_counts == array("q", range(1, count + 1)) and epochs[::2].count(epochs[0]) == count
        )
        return SliceTable(
            object_names=object_names,
            topics=tuple([entry.topic for entry in entries]),
            base_offsets=array("q", base_offsets),
            numbers=numbers,
            transactions=transactions,
            epochs=epochs,
            hash_key_id=hash_key_ids[0] if is_one else None,
            leader_epoch=epochs[0] if has_one_epoch else None,
            is_transactional=len(transactions) > 0 or any(marker_counts) or any(has_aborted),
        )

    @property
    def slice_count(self) -> int:
        return len(self.object_names)

    def column(self, name: str) -> array[int]:
        """A number of each slice, as `RunSlices.column` has them."""
        start = PLACES[name] * self.slice_count
        return self.numbers[start : start + self.slice_count]

    def in_brief(self, counts: Sequence[int]) -> Iterator[SliceBriefs]:
        """The slices in parts of so many, each in brief."""
        *columns, horizons_ms = map(self.column, ENTRY_COLUMNS)
        is_given = self.column("has_earliest_delete_horizon_ms")
        given_ms = [ms if given else None for ms, given in zip(horizons_ms, is_given, strict=True)]
        sources = self.object_names, self.column("end_offset"), *columns, given_ms
        end = 0
        for count in counts:
            first, end = end, end + count
            parts = [source[first:end] for source in sources]
            yield SliceBriefs._make((*parts, (None,) * count))
