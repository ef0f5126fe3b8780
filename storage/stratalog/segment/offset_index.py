"""The sparse index from offsets to positions of one segment, in Kafka's format.

Entries of eight bytes, big-endian, strictly ascending in both fields::

    relative_offset  int32   last offset of a batch, minus the segment's base offset
    position         int32   where that batch begins in the .log file

The whole index is held as the bytes of its file: a segment of 1 GiB has at most a few hundred thousand
entries, and a search touches twenty of them. There is no checksum. An index is disposable: whoever uses an
entry compares it with the batch that it points at, and makes the index again from the log where they differ.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer

_ENTRY = struct.Struct(">ii")
ENTRY_SIZE = _ENTRY.size
assert ENTRY_SIZE == 8

MAX_RELATIVE_OFFSET = 2**31 - 1


class OffsetPosition(NamedTuple):
    """The batch whose last offset is `offset` begins at `position`."""

    offset: int
    position: int


class OffsetIndex:
    """Not thread-safe for changes: guarded by UnifiedLog.lock. Look-ups run beside an append.

    They may, because entries are only ever added at the end and the entry count is read once.
    """

    __slots__ = ("_data", "base_offset")

    def __init__(self, base_offset: int, data: Buffer = b"") -> None:
        """Raises CorruptRecordError where `data` cannot be the file of an index with this base."""
        self.base_offset = base_offset
        self._data = bytearray(data)
        self.check()

    def __len__(self) -> int:
        return len(self._data) // ENTRY_SIZE

    def append(self, offset: int, position: int) -> None:
        relative_offset = offset - self.base_offset
        # Invariant: both columns ascend strictly, and neither overflows its 31 bits.
        assert 0 <= relative_offset <= MAX_RELATIVE_OFFSET
        assert not self._data or self.entry(len(self) - 1) < (offset, position)
        self._data += _ENTRY.pack(relative_offset, position)

    def entry(self, ordinal: int) -> OffsetPosition:
        relative_offset, position = _ENTRY.unpack_from(self._data, ordinal * ENTRY_SIZE)
        return OffsetPosition(self.base_offset + relative_offset, position)

    def floor(self, offset: int) -> OffsetPosition | None:
        """The entry with the largest offset at or below `offset`."""

        def offset_at(ordinal: int) -> int:
            return self.entry(ordinal).offset

        ordinal = bisect_right(range(len(self)), offset, key=offset_at)
        return self.entry(ordinal - 1) if ordinal else None

    @property
    def last(self) -> OffsetPosition | None:
        return self.entry(len(self) - 1) if self._data else None

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def to_bytes(self) -> bytes:
        """The contents of the file."""
        return bytes(self._data)

    def __iter__(self) -> Iterator[OffsetPosition]:
        for relative_offset, position in _ENTRY.iter_unpack(self._data):
            yield OffsetPosition(self.base_offset + relative_offset, position)

    def check(self) -> None:
        """Raises CorruptRecordError where the entries are not whole or do not ascend."""
        if len(self._data) % ENTRY_SIZE:
            raise CorruptRecordError(
                "an offset index does not consist of whole entries", size=len(self._data)
            )
        before = (-1, -1)
        for entry in _ENTRY.iter_unpack(self._data):
            if entry[0] <= before[0] or entry[1] <= before[1]:
                raise CorruptRecordError(
                    "the entries of an offset index do not ascend", entry=entry, before=before
                )
            before = entry
