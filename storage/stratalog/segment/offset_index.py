"""The sparse index from offsets to positions of one segment, in Kafka's format.

Entries of eight bytes, big-endian, strictly ascending in both fields::

    relative_offset  int32   last offset of a batch, minus the segment's base offset
    position         int32   where that batch begins in the .log file

The whole index is held in memory, a column of numbers for each field: a segment of 1 GiB has at most a few
hundred thousand entries, and a search is one bisection over a column. There is no checksum. An index is
disposable: whoever uses an entry compares it with the batch that it points at, and makes the index again from
the log where they differ.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.segment.index_columns import WORD_BYTES, ascends, in_network_order, words_of

ENTRY_SIZE = 2 * WORD_BYTES
assert ENTRY_SIZE == 8

MAX_RELATIVE_OFFSET = 2**31 - 1
# A read may be shorter by one part in so many than it was asked to be.
_LOST_PART = 16


class OffsetPosition(NamedTuple):
    """The batch whose last offset is `offset` begins at `position`."""

    offset: int
    position: int


class OffsetIndex:
    """Not thread-safe for changes: guarded by UnifiedLog.lock. Look-ups run beside an append.

    They may, because entries are only ever added at the end, and the column that is searched is the last to
    get its number.
    """

    __slots__ = ("_positions", "_relative_offsets", "base_offset")

    def __init__(self, base_offset: int, data: Buffer = b"") -> None:
        """Raises CorruptRecordError where `data` cannot be the file of an index with this base."""
        if len(data) % ENTRY_SIZE:
            raise CorruptRecordError("an offset index does not consist of whole entries", size=len(data))
        words = in_network_order(words_of(data))
        self.base_offset = base_offset
        self._relative_offsets = words[0::2]
        self._positions = words[1::2]
        self.check()

    def __len__(self) -> int:
        return len(self._relative_offsets)

    def append(self, offset: int, position: int) -> None:
        self.extend((offset,), (position,))

    def extend(self, offsets: Sequence[int], positions: Sequence[int]) -> None:
        """Append many entries, in order."""
        base_offset, last = self.base_offset, self.last
        # Invariant: both columns ascend strictly, and neither overflows its 31 bits.
        assert len(offsets) == len(positions)
        assert (
            not offsets or 0 <= offsets[0] - base_offset <= offsets[-1] - base_offset <= MAX_RELATIVE_OFFSET
        )
        assert not offsets or last is None or (last.offset < offsets[0] and last.position < positions[0])
        self._positions.extend(positions)
        self._relative_offsets.extend([offset - base_offset for offset in offsets])

    def entry(self, ordinal: int) -> OffsetPosition:
        return OffsetPosition(self.base_offset + self._relative_offsets[ordinal], self._positions[ordinal])

    def floor(self, offset: int) -> OffsetPosition | None:
        """The entry with the largest offset at or below `offset`."""
        ordinal = bisect_right(self._relative_offsets, offset - self.base_offset)
        return self.entry(ordinal - 1) if ordinal else None

    def whole_size(self, position: int, size_bytes: int) -> int:
        """How much to read from `position`: so many bytes, or a little fewer that end with a batch.

        What ends inside a batch has to be cut, which copies all of it. What is read must be looked at all the
        same, because the index may be wrong.
        """
        ordinal = bisect_right(self._positions, position + size_bytes)
        lost_bytes = position + size_bytes - self._positions[ordinal - 1] if ordinal else size_bytes
        return size_bytes - lost_bytes if lost_bytes <= size_bytes // _LOST_PART else size_bytes

    @property
    def last(self) -> OffsetPosition | None:
        count = len(self)
        return self.entry(count - 1) if count else None

    @property
    def size_bytes(self) -> int:
        return len(self) * ENTRY_SIZE

    def to_bytes(self) -> bytes:
        """The contents of the file."""
        words = words_of(bytes(self.size_bytes))
        words[0::2] = self._relative_offsets
        words[1::2] = self._positions
        return in_network_order(words).tobytes()

    def __iter__(self) -> Iterator[OffsetPosition]:
        # An append that is under way has a position more.
        for relative_offset, position in zip(self._relative_offsets, self._positions, strict=False):
            yield OffsetPosition(self.base_offset + relative_offset, position)

    def check(self) -> None:
        """Raises CorruptRecordError where the entries do not ascend."""
        assert len(self._relative_offsets) == len(self._positions)
        for field, column in (("relative_offset", self._relative_offsets), ("position", self._positions)):
            if column and (column[0] < 0 or not ascends(column)):
                raise CorruptRecordError("the entries of an offset index do not ascend", field=field)
