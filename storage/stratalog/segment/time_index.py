"""The sparse index from timestamps to offsets of one segment, in Kafka's format (KIP-33).

Entries of twelve bytes, big-endian, timestamps strictly ascending, offsets ascending::

    timestamp        int64   the highest timestamp of all batches up to and including the one at the offset
    relative_offset  int32   last offset of the batch that has it, minus the segment's base offset

When a segment is closed or rolled, a last entry gives the highest timestamp of all of it, which makes the age
of an old segment known without a look at its data. As with the offset index: no checksum, disposable,
compared when used.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.segment.index_columns import (
    WORD_BYTES,
    ascends,
    in_network_order,
    never_descends,
    words_of,
)
from stratalog.segment.offset_index import MAX_RELATIVE_OFFSET
from stratalog.segment.timestamp_offset import TimestampOffset

ENTRY_SIZE = 3 * WORD_BYTES
assert ENTRY_SIZE == 12


class TimeIndex:
    """Not thread-safe for changes: guarded by UnifiedLog.lock. Look-ups run beside an append, as in
    `OffsetIndex`."""

    __slots__ = ("_relative_offsets", "_timestamps", "base_offset")

    def __init__(self, base_offset: int, data: Buffer = b"") -> None:
        """Raises CorruptRecordError where `data` cannot be the file of an index with this base."""
        if len(data) % ENTRY_SIZE:
            raise CorruptRecordError("a time index does not consist of whole entries", size=len(data))
        words = words_of(data)
        halves = words_of(bytes(len(data) // ENTRY_SIZE * 2 * WORD_BYTES))
        halves[0::2] = words[0::3]
        halves[1::2] = words[1::3]
        self.base_offset = base_offset
        self._timestamps = in_network_order(array("q", halves.tobytes()))
        self._relative_offsets = in_network_order(words[2::3])
        self.check()

    def __len__(self) -> int:
        return len(self._timestamps)

    def maybe_append(self, entry: TimestampOffset) -> bool:
        """Add the entry unless its timestamp is no news."""
        last = self.last
        if entry.timestamp_ms < 0 or (last is not None and entry.timestamp_ms <= last.timestamp_ms):
            return False
        self.extend((entry.timestamp_ms,), (entry.offset,))
        return True

    def extend(self, timestamps_ms: Sequence[int], offsets: Sequence[int]) -> None:
        """Append many entries, in order, whose timestamps are all news."""
        assert len(timestamps_ms) == len(offsets)
        if not offsets:
            return
        base_offset, last = self.base_offset, self.last
        # Invariant: the batch with the highest timestamp so far never lies before that of an earlier entry.
        assert last is None or (last.timestamp_ms < timestamps_ms[0] and last.offset <= offsets[0])
        assert 0 <= offsets[0] - base_offset <= offsets[-1] - base_offset <= MAX_RELATIVE_OFFSET
        self._relative_offsets.extend([offset - base_offset for offset in offsets])
        self._timestamps.extend(timestamps_ms)

    def entry(self, ordinal: int) -> TimestampOffset:
        return TimestampOffset(self._timestamps[ordinal], self.base_offset + self._relative_offsets[ordinal])

    def before(self, timestamp_ms: int) -> TimestampOffset | None:
        """The last entry with a smaller timestamp: every batch up to its offset is older than
        `timestamp_ms`."""
        ordinal = bisect_left(self._timestamps, timestamp_ms)
        return self.entry(ordinal - 1) if ordinal else None

    @property
    def last(self) -> TimestampOffset | None:
        count = len(self)
        return self.entry(count - 1) if count else None

    @property
    def size_bytes(self) -> int:
        return len(self) * ENTRY_SIZE

    def to_bytes(self) -> bytes:
        """The contents of the file."""
        words = words_of(bytes(self.size_bytes))
        halves = words_of(in_network_order(self._timestamps).tobytes())
        words[0::3] = halves[0::2]
        words[1::3] = halves[1::2]
        words[2::3] = in_network_order(self._relative_offsets)
        return words.tobytes()

    def __iter__(self) -> Iterator[TimestampOffset]:
        # An append that is under way has an offset more.
        for timestamp_ms, relative_offset in zip(self._timestamps, self._relative_offsets, strict=False):
            yield TimestampOffset(timestamp_ms, self.base_offset + relative_offset)

    def check(self) -> None:
        """Raises CorruptRecordError where the entries do not ascend."""
        timestamps, offsets = self._timestamps, self._relative_offsets
        assert len(timestamps) == len(offsets)
        if timestamps and (timestamps[0] < 0 or not ascends(timestamps)):
            raise CorruptRecordError("the entries of a time index do not ascend", field="timestamp")
        if offsets and (offsets[0] < 0 or not never_descends(offsets)):
            raise CorruptRecordError("the entries of a time index do not ascend", field="relative_offset")
