"""The sparse index from timestamps to offsets of one segment, in Kafka's format (KIP-33).

Entries of twelve bytes, big-endian, timestamps strictly ascending, offsets ascending::

    timestamp        int64   the highest timestamp of all batches up to and including the one at the offset
    relative_offset  int32   last offset of the batch that has it, minus the segment's base offset

When a segment is closed or rolled, a last entry gives the highest timestamp of all of it, which makes the age
of an old segment known without a look at its data. As with the offset index: no checksum, disposable,
compared when used.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.segment.offset_index import MAX_RELATIVE_OFFSET
from stratalog.segment.timestamp_offset import TimestampOffset

_ENTRY = struct.Struct(">qi")
ENTRY_SIZE = _ENTRY.size
assert ENTRY_SIZE == 12


class TimeIndex:
    """Not thread-safe for changes: guarded by UnifiedLog.lock. Look-ups run beside an append."""

    __slots__ = ("_data", "base_offset")

    def __init__(self, base_offset: int, data: Buffer = b"") -> None:
        """Raises CorruptRecordError where `data` cannot be the file of an index with this base."""
        self.base_offset = base_offset
        self._data = bytearray(data)
        self.check()

    def __len__(self) -> int:
        return len(self._data) // ENTRY_SIZE

    def maybe_append(self, entry: TimestampOffset) -> bool:
        """Add the entry unless its timestamp is no news."""
        last = self.last
        if entry.timestamp_ms < 0 or (last is not None and entry.timestamp_ms <= last.timestamp_ms):
            return False
        # Invariant: the batch with the highest timestamp so far never lies before that of an earlier entry.
        assert last is None or entry.offset >= last.offset
        assert 0 <= entry.offset - self.base_offset <= MAX_RELATIVE_OFFSET
        self._data += _ENTRY.pack(entry.timestamp_ms, entry.offset - self.base_offset)
        return True

    def entry(self, ordinal: int) -> TimestampOffset:
        timestamp_ms, relative_offset = _ENTRY.unpack_from(self._data, ordinal * ENTRY_SIZE)
        return TimestampOffset(timestamp_ms, self.base_offset + relative_offset)

    def before(self, timestamp_ms: int) -> TimestampOffset | None:
        """The last entry with a smaller timestamp: every batch up to its offset is older than
        `timestamp_ms`."""

        def timestamp_at(ordinal: int) -> int:
            return self.entry(ordinal).timestamp_ms

        ordinal = bisect_left(range(len(self)), timestamp_ms, key=timestamp_at)
        return self.entry(ordinal - 1) if ordinal else None

    @property
    def last(self) -> TimestampOffset | None:
        return self.entry(len(self) - 1) if self._data else None

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def to_bytes(self) -> bytes:
        """The contents of the file."""
        return bytes(self._data)

    def __iter__(self) -> Iterator[TimestampOffset]:
        for timestamp_ms, relative_offset in _ENTRY.iter_unpack(self._data):
            yield TimestampOffset(timestamp_ms, self.base_offset + relative_offset)

    def check(self) -> None:
        """Raises CorruptRecordError where the entries are not whole or do not ascend."""
        if len(self._data) % ENTRY_SIZE:
            raise CorruptRecordError("a time index does not consist of whole entries", size=len(self._data))
        before = (-1, 0)
        for entry in _ENTRY.iter_unpack(self._data):
            if entry[0] <= before[0] or entry[1] < before[1]:
                raise CorruptRecordError(
                    "the entries of a time index do not ascend", entry=entry, before=before
                )
            before = entry
