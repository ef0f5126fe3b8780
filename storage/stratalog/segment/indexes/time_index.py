"""The sparse index from timestamps to offsets of one segment, in Kafka's format (KIP-33).

Entries of twelve bytes, big-endian, timestamps strictly ascending, offsets ascending::

    timestamp        int64   the highest timestamp of all batches up to and including the one at the offset
    relative_offset  int32   last offset of the batch that has it, minus the segment's base offset

When a segment is closed or rolled, a last entry gives its highest timestamp, so the age of an old segment is
known without reading its data. The index is disposable: a look-up compares the entry with its batch.
"""

from __future__ import annotations

import struct
from typing import ClassVar

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.segment.indexes.abstract_index import AbstractIndex, IndexKey
from stratalog.segment.indexes.index_file import IndexSeal
from stratalog.segment.timestamp_offset import TimestampOffset

_ENTRY = struct.Struct(">qi")
ENTRY_SIZE = _ENTRY.size
assert ENTRY_SIZE == 12
_TIMESTAMP_KEY = IndexKey(0, 8)
_OFFSET_KEY = IndexKey(8, 4)


class TimeIndex(AbstractIndex[TimestampOffset]):
    """Timestamps and offsets of batches. Guarded by UnifiedLog.lock, with look-ups beside an append, as every
    `AbstractIndex`."""

    __slots__ = ()

    KIND: ClassVar[str] = "a time index"
    ENTRY_SIZE: ClassVar[int] = ENTRY_SIZE

    def is_news(self, entry: TimestampOffset) -> bool:
        """Return whether the entry's timestamp is above those of all entries."""
        return entry.timestamp_ms >= 0 and (self.last is None or entry.timestamp_ms > self.last.timestamp_ms)

    def maybe_append(self, entry: TimestampOffset) -> bool:
        """Add the entry if its timestamp is above those of all entries."""
        if not self.is_news(entry):
            return False
        self.extend(self._encode(entry))
        return True

    def extend(self, entries: bytes) -> None:
        """Append entries, in order and in the format of the file, whose timestamps are above those of all
        entries."""
        if not entries:
            return
        first, last = self._decode(entries[:ENTRY_SIZE]), self._decode(entries[-ENTRY_SIZE:])
        # Invariant: the batch with the highest timestamp so far never lies before that of an earlier entry.
        assert self.base_offset <= first.offset <= last.offset
        assert self.is_news(first)
        assert self.last is None or self.last.offset <= first.offset
        self._extend(entries, last)

    def save_closed(self, newest: TimestampOffset) -> IndexSeal:
        """Save with the segment's highest timestamp as the last entry. Only the file gets that entry, because
        more may be appended. Raises OSError."""
        return self.save(self._encode(newest) if self.is_news(newest) else b"")

    def before(self, timestamp_ms: int) -> TimestampOffset | None:
        """The last entry with a smaller timestamp: every batch up to its offset is older than
        `timestamp_ms`."""
        if timestamp_ms <= 0:
            # No entry is older than the epoch.
            return None
        _, entry = self._find(timestamp_ms - 1, _TIMESTAMP_KEY)
        return self._decode(entry) if entry else None

    def up_to_offset(self, offset: int) -> TimeIndex:
        """The entries of the batches that end at or below `offset`, as a growing index."""
        return self.first(self._find(offset - self.base_offset, _OFFSET_KEY)[0])

    def check(self) -> None:
        """Raise CorruptRecordError if the entries do not ascend. Raises OSError."""
        before = -1, 0
        for chunk in self.chunks():
            for entry in _ENTRY.iter_unpack(chunk):
                if entry[0] <= before[0] or entry[1] < before[1]:
                    field = "timestamp" if entry[0] <= before[0] else "relative_offset"
                    raise CorruptRecordError("the entries of a time index do not ascend", field=field)
                before = entry

    def _encode(self, entry: TimestampOffset) -> bytes:
        return _ENTRY.pack(entry.timestamp_ms, entry.offset - self.base_offset)

    def _decode(self, data: Buffer) -> TimestampOffset:
        timestamp_ms, relative_offset = _ENTRY.unpack(data)
        return TimestampOffset(timestamp_ms, self.base_offset + relative_offset)
