"""The last record of each key, of rows in any order.

A key in two partitions is two keys: their records have no order.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.pipeline.lake.key_hashes import key_hashes, range_numbers

_FOLDED_ROWS = 1 << 20
"""So many rows are folded at once."""
_KEY_FIELDS: list[Any] = [
    pa.field("partition", pa.int32()),
    pa.field("key", pa.binary()),
    pa.field("offset", pa.int64()),
]
_KEY_SCHEMA = pa.schema(_KEY_FIELDS)


class KeyRows(NamedTuple):
    """The last records of keys in a group of slices. Pickled between the tasks."""

    group: int
    rows: pa.Table
    """partition, key, offset."""


class Survivors(NamedTuple):
    """The records of a group that are the last ones of their keys. Pickled between the tasks."""

    group: int
    rows: pa.Table
    """partition, offset."""


class LastRecords(NamedTuple):
    """The last records of all keys of a range."""

    rows: pa.Table
    """partition, key, offset, group: a row for each key."""

    def survivors(self) -> Iterator[Survivors]:
        """The records, by their groups."""
        offsets = self.rows.select(["partition", "offset"])
        for group, part in _divided(offsets, self.rows.column("group").to_numpy()):
            yield Survivors(group, part)


class LastOffsets:
    """Collects the last offset of each key. Not thread-safe: one task uses it."""

    def __init__(self) -> None:
        self._folded: pa.Table = _KEY_SCHEMA.empty_table()
        self._pending: list[pa.RecordBatch] = []
        self._pending_count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows with the columns partition, key and offset. Those without a key are left out."""
        self._pending.append(rows.select(_KEY_SCHEMA.names))
        self._pending_count += rows.num_rows
        if self._pending_count >= max(_FOLDED_ROWS, self._folded.num_rows):
            self._fold()

    def ranges(self, count: int) -> Iterator[tuple[int, pa.Table]]:
        """The rows so far, divided by a hash of the key: the numbers of the parts, and the parts."""
        self._fold()
        rows = self._folded
        if count == 1 or not rows.num_rows:
            yield from [(0, rows)] * bool(rows.num_rows)
            return
        yield from _divided(rows, range_numbers(key_hashes(rows), count))

    def _fold(self) -> None:
        if not self._pending:
            return
        new = pa.Table.from_batches(self._pending, _KEY_SCHEMA)
        self._pending, self._pending_count = [], 0
        rows = pa.concat_tables([self._folded, new.filter(new.column("key").is_valid())])
        folded = rows.group_by(["partition", "key"]).aggregate([("offset", "max")])
        self._folded = folded.rename_columns(_KEY_SCHEMA.names).combine_chunks()


def merge_last(pieces: Sequence[KeyRows]) -> LastRecords:
    """The records that are the last ones of their keys in all pieces."""
    rows = pa.concat_tables(
        piece.rows.append_column("group", pa.repeat(_number(piece.group), piece.rows.num_rows))
        for piece in sorted(pieces, key=lambda one: one.group)
    ).sort_by("offset")
    # Groups follow their offsets only in this order, which threads would lose.
    last = rows.group_by(["partition", "key"], use_threads=False).aggregate(
        [("offset", "last"), ("group", "last")]
    )
    ordered = last.select(["partition", "key", "offset_last", "group_last"])
    return LastRecords(ordered.rename_columns([*_KEY_SCHEMA.names, "group"]))


class SurvivingRows:
    """Tells the rows of a group that survive. Not thread-safe: one task uses it."""

    def __init__(self, survivors: Sequence[Survivors]) -> None:
        rows = pa.concat_tables(one.rows for one in survivors)
        self._offsets: dict[int, Any] = {
            partition: np.sort(part.column("offset").to_numpy())
            for partition, part in _divided(rows, rows.column("partition").to_numpy())
        }
        self.row_count = rows.num_rows

    def is_any_in(self, partition: int, first_offset: int, end_offset: int) -> bool:
        """Whether a row of this range survives."""
        offsets = self._offsets.get(partition)
        if offsets is None:
            return False
        index = int(np.searchsorted(offsets, first_offset))
        return index < len(offsets) and int(offsets[index]) < end_offset

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that survive."""
        partitions = rows.column("partition").to_numpy()
        offsets = rows.column("offset").to_numpy()
        stays = np.zeros(len(offsets), bool)
        for partition in np.unique(partitions):
            wanted = self._offsets.get(int(partition))
            if wanted is None:
                continue
            mine = partitions == partition
            found = np.searchsorted(wanted, offsets[mine])
            stays[mine] = wanted[np.minimum(found, len(wanted) - 1)] == offsets[mine]
        return rows.filter(pa.array(stays))


def _divided(rows: pa.Table, numbers: Any) -> Iterator[tuple[int, pa.Table]]:
    """The rows by their numbers, in the order that they have."""
    order = np.argsort(numbers, kind="stable")
    found, firsts = np.unique(numbers[order], return_index=True)
    sorted_rows = rows.take(order)
    for index, number in enumerate(found):
        end = firsts[index + 1] if index + 1 < len(firsts) else len(numbers)
        # A slice would be pickled with the buffers of the whole table.
        yield int(number), sorted_rows.take(np.arange(firsts[index], end))


def _number(value: int) -> Any:
    return pa.scalar(value, pa.int32())
