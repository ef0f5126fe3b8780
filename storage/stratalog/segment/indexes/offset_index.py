"""The sparse index from offsets to positions of one segment, in Kafka's format.

Entries of eight bytes, big-endian, strictly ascending in both fields::

    relative_offset  int32   last offset of a batch, minus the segment's base offset
    position         int32   where that batch begins in the .log file

An index is disposable: a look-up compares the entry with the batch that it points at, and if they differ the
index is made again from the log.
"""

from __future__ import annotations

import struct
from typing import ClassVar, NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.segment.indexes.abstract_index import AbstractIndex, IndexKey

_ENTRY = struct.Struct(">ii")
ENTRY_SIZE = _ENTRY.size
assert ENTRY_SIZE == 8
_OFFSET_KEY = IndexKey(0, 4)
_POSITION_KEY = IndexKey(4, 4)

MAX_RELATIVE_OFFSET = 2**31 - 1
# A read may be shorter than requested by one part in so many.
_LOST_PART = 16


class OffsetPosition(NamedTuple):
    """The batch whose last offset is `offset` begins at `position`."""

    offset: int
    position: int


class OffsetIndex(AbstractIndex[OffsetPosition]):
    """Last offsets and positions of batches. Guarded by UnifiedLog.lock, with look-ups beside an append, as
    every `AbstractIndex`."""

    __slots__ = ()

    KIND: ClassVar[str] = "an offset index"
    ENTRY_SIZE: ClassVar[int] = ENTRY_SIZE

    def append(self, offset: int, position: int) -> None:
        self.extend(_ENTRY.pack(offset - self.base_offset, position))

    def extend(self, entries: bytes) -> None:
        """Append entries, in order and in the format of the file."""
        if not entries:
            return
        first, last = self._decode(entries[:ENTRY_SIZE]), self._decode(entries[-ENTRY_SIZE:])
        # Invariant: both fields ascend strictly, and neither overflows its 31 bits.
        assert self.base_offset <= first.offset <= last.offset
        assert self.last is None or (self.last.offset < first.offset and self.last.position < first.position)
        self._extend(entries, last)

    def floor(self, offset: int) -> OffsetPosition | None:
        """The entry with the largest offset at or below `offset`."""
        last = self.last
        if last is None:
            return None
        _, entry = self._find(offset - self.base_offset, _OFFSET_KEY, last.offset - self.base_offset)
        return self._decode(entry) if entry else None

    def below_position(self, position: int) -> OffsetIndex:
        """The entries of the batches that begin below `position`, as a growing index."""
        return self.first(self._find(position - 1, _POSITION_KEY)[0])

    def whole_size(self, position: int, size_bytes: int) -> int:
        """The number of bytes to read from `position`: `size_bytes`, or a little less if that ends with a
        batch.

        A read that ends inside a batch has brought bytes for nothing, which stay in memory with the others.
        The result is a hint, because the index may be wrong: the caller still checks the bytes.
        """
        last = self.last
        if last is None:
            return size_bytes
        _, entry = self._find(position + size_bytes, _POSITION_KEY, last.position)
        if not entry:
            return size_bytes
        _, end_position = _ENTRY.unpack(entry)
        whole_bytes: int = end_position - position
        return whole_bytes if size_bytes - whole_bytes <= size_bytes // _LOST_PART else size_bytes

    def check(self) -> None:
        """Raise CorruptRecordError if the entries do not ascend. Raises OSError."""
        before = -1, -1
        for chunk in self.chunks():
            for entry in _ENTRY.iter_unpack(chunk):
                if entry[0] <= before[0] or entry[1] <= before[1]:
                    field = "relative_offset" if entry[0] <= before[0] else "position"
                    raise CorruptRecordError("the entries of an offset index do not ascend", field=field)
                before = entry

    def _decode(self, data: Buffer) -> OffsetPosition:
        relative_offset, position = _ENTRY.unpack(data)
        return OffsetPosition(self.base_offset + relative_offset, position)
