"""The index of a slice: finds the batch for an offset or a time, and holds the slice's transactions and
producers. docs/formats/object_file.md has the layout; the columns are searched in place.

The highest timestamp of an interval is that of the interval alone, not of all intervals up to it as in
Kafka's time index: a slice may be clipped at its low end long after it was written, and then the records
before the clip must not count.

An interval is 64 KiB where Kafka's is 4 KiB, because a ranged GET costs the same for one byte as for a
hundred thousand. Immutable, so thread-safe.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import operator
from array import array
from collections.abc import Sequence
from typing import NamedTuple, overload

from stratalog.base.errors import StoreCorruptError, StoreNotUsableError
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.remote.objects.fixed_layout import Buffer, FixedLayout, padding_bytes
from stratalog.segment.indexes.transaction_index import AbortedTransaction

INDEX_HEADER = FixedLayout(
    ("interval_count", "I"),
    ("aborted_count", "I"),
    ("producer_snapshot_bytes", "I"),
    ("flags", "I"),
)
ABORTED = FixedLayout(
    ("producer_id", "q"),
    ("first_offset", "q"),
    ("last_offset", "q"),
    ("last_stable_offset", "q"),
)
SINCE = FixedLayout(("producers_since", "q"))
HAS_CHANGED_PRODUCERS = 1
"""The flag of an index whose snapshot has only the producers that have changed."""
DEFAULT_INDEX_INTERVAL_BYTES = 64 << 10
NO_PRODUCERS = ProducerSnapshot(0, ()).to_bytes()
"""A snapshot without producers; its bytes are the same at each offset."""
_NO_PRODUCERS_PADDED = NO_PRODUCERS + bytes(padding_bytes(len(NO_PRODUCERS)))

_NUMBER_BYTES = 8
_COLUMN_COUNT = 3


class Interval(NamedTuple):
    """Whole batches in bytes [position, end_position) of the slice's data, counted from its start."""

    position: int
    end_position: int
    base_offset: int


class SliceIndex(NamedTuple):
    """Columns of equal length, and the size of the indexed data. Immutable, so thread-safe."""

    data_bytes: int
    positions: Sequence[int]
    base_offsets: Sequence[int]
    max_timestamps: Sequence[int]
    aborted: Sequence[AbortedTransaction] = ()
    """Transactions whose abort marker lies in the slice, in the order of the markers."""
    producer_snapshot: bytes = NO_PRODUCERS
    producers_since: int | None = None
    """The snapshot has only the producers that have changed since this offset, where an earlier slice with a
    whole one ended; None if it is whole."""

    @property
    def interval_count(self) -> int:
        return len(self.positions)

    def interval(self, index: int) -> Interval:
        is_last = index + 1 == self.interval_count
        end_position = self.data_bytes if is_last else self.positions[index + 1]
        return Interval(self.positions[index], end_position, self.base_offsets[index])

    def index_for_offset(self, offset: int) -> int:
        """Number of the interval with the last batch whose base offset is at or below `offset`; 0 if there is
        none.
        """
        return max(bisect.bisect_right(self.base_offsets, offset) - 1, 0)

    def aborted_in(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The transactions with records in [start_offset, end_offset) whose markers lie in the slice."""
        found: list[AbortedTransaction] = []
        first = bisect.bisect_left(self.aborted, start_offset, key=_marker_offset)
        for number in range(first, len(self.aborted)):
            transaction = self.aborted[number]
            if transaction.first_offset < end_offset:
                found.append(transaction)
            # Here all transactions that begin below the end are decided.
            if transaction.last_stable_offset >= end_offset:
                break
        return found

    def fault(self) -> str | None:
        """The first contradiction, as a clause for an error; None if there is none."""
        if not len(self.positions) == len(self.base_offsets) == len(self.max_timestamps):
            return "its columns differ in length"
        if (self.data_bytes == 0) != (self.interval_count == 0) or (
            self.positions and self.positions[0] != 0
        ):
            return "it does not begin with the slice"
        # The only interval of a small slice has all of its data.
        if self.interval_count > 1 and not _ascend([*self.positions, self.data_bytes]):
            return "its positions do not ascend"
        if self.interval_count > 1 and not _ascend(self.base_offsets):
            return "its offsets do not ascend"
        if self.producers_since is not None and self.producers_since < 0:
            return "its producers have changed since a negative offset"
        return None

    def check(self) -> None:
        fault = self.fault()
        assert fault is None, fault


def _ascend(column: Sequence[int]) -> bool:
    return all(map(operator.lt, column, itertools.islice(column, 1, None)))


class _AbortedRows(Sequence[AbortedTransaction]):
    """Transactions that are decoded on access: there may be as many as batches. Immutable, so thread-safe."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data) // ABORTED.size_bytes

    @overload
    def __getitem__(self, index: int) -> AbortedTransaction: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[AbortedTransaction, ...]: ...

    def __getitem__(self, index: int | slice) -> AbortedTransaction | tuple[AbortedTransaction, ...]:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        number = range(len(self))[index]
        return AbortedTransaction(*ABORTED.unpack(self._data, number * ABORTED.size_bytes))


def encode_slice_index(index: SliceIndex) -> bytes:
    """The bytes of an index, a multiple of 8."""
    index.check()
    columns = map(_column, (index.positions, index.base_offsets, index.max_timestamps))
    return encode_index_columns(
        b"".join(columns), index.aborted, index.producer_snapshot, index.producers_since
    )


def encode_index_columns(
    columns: Buffer,
    aborted: Sequence[AbortedTransaction],
    producer_snapshot: bytes,
    producers_since: int | None,
) -> bytes:
    """The bytes of an index with these columns, one behind the other, and the rest as in `SliceIndex`."""
    interval_count = len(columns) // (_COLUMN_COUNT * _NUMBER_BYTES)
    if not aborted and producers_since is None and producer_snapshot == NO_PRODUCERS:
        # As of most slices.
        return _plain_header(interval_count) + columns + _NO_PRODUCERS_PADDED
    since, flags = b"", 0
    if producers_since is not None:
        since, flags = SINCE.pack(producers_since), HAS_CHANGED_PRODUCERS
    header = INDEX_HEADER.pack(interval_count, len(aborted), len(producer_snapshot), flags)
    parts: list[Buffer] = [
        header,
        columns,
        *[ABORTED.pack(*one) for one in aborted],
        since,
        producer_snapshot,
    ]
    parts.append(bytes(padding_bytes(len(producer_snapshot))))
    return b"".join(parts)


@functools.lru_cache(maxsize=64)
def _plain_header(interval_count: int) -> bytes:
    """The header of an index without producers and aborted transactions."""
    return INDEX_HEADER.pack(interval_count, 0, len(NO_PRODUCERS), 0)


def _column(column: Sequence[int]) -> array[int]:
    return column if isinstance(column, array) else array("q", column)


def is_plain_index(data: Buffer) -> bool:
    """Whether these are the bytes of an index without producers and aborted transactions; False also for
    bytes that contradict themselves. The caller has checked the CRC.
    """
    if len(data) < INDEX_HEADER.size_bytes:
        return False
    interval_count = INDEX_HEADER.unpack(data)[0]
    position = INDEX_HEADER.size_bytes + _COLUMN_COUNT * _NUMBER_BYTES * interval_count
    header = data[: INDEX_HEADER.size_bytes]
    return header == _plain_header(interval_count) and data[position:] == _NO_PRODUCERS_PADDED


def decode_slice_index(data: Buffer, data_bytes: int) -> SliceIndex:
    """The index of a slice of `data_bytes`; the caller has checked the CRC. Columns refer into `data`.

    Raises StoreCorruptError if the bytes contradict themselves, StoreNotUsableError for a newer format.
    """
    if len(data) < INDEX_HEADER.size_bytes:
        raise _corrupt("it is cut off")
    interval_count, aborted_count, snapshot_bytes, flags = INDEX_HEADER.unpack(data)
    if flags & ~HAS_CHANGED_PRODUCERS:
        raise StoreNotUsableError("the index of a slice has a newer format; use a newer version", flags=flags)
    column_bytes = interval_count * _NUMBER_BYTES
    aborted_position = INDEX_HEADER.size_bytes + _COLUMN_COUNT * column_bytes
    aborted_end = aborted_position + aborted_count * ABORTED.size_bytes
    snapshot_position = aborted_end + (SINCE.size_bytes if flags else 0)
    snapshot_end = snapshot_position + snapshot_bytes
    if snapshot_end + padding_bytes(snapshot_bytes) != len(data) or any(data[snapshot_end:]):
        raise _corrupt("its size is not the size that it states")
    view = memoryview(data)
    columns = view[INDEX_HEADER.size_bytes : aborted_position].cast("q")
    index = SliceIndex(
        data_bytes=data_bytes,
        positions=columns[:interval_count],
        base_offsets=columns[interval_count : 2 * interval_count],
        max_timestamps=columns[2 * interval_count :],
        aborted=_AbortedRows(view[aborted_position:aborted_end]),
        producer_snapshot=bytes(view[snapshot_position:snapshot_end]),
        producers_since=SINCE.unpack(view, aborted_end)[0] if flags else None,
    )
    fault = index.fault()
    if fault is not None:
        raise _corrupt(fault)
    return index


def _marker_offset(transaction: AbortedTransaction) -> int:
    return transaction.last_offset


def _corrupt(problem: str) -> StoreCorruptError:
    return StoreCorruptError(
        f"the index of a slice is damaged: {problem}; keep the object and find out what changed it"
    )
