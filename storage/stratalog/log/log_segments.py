"""The segments of a log at one moment, oldest first: Kafka's `LogSegments`, as an immutable snapshot.

A log replaces its segments as a whole. So a reader takes them once and walks them without a lock, while other
threads roll and drop segments. The last segment is the active one; there is always one. Segments tile: the
base offset of each is the end of the one before, except if a segment was put behind a gap on purpose. The
active one may be empty, and so may a sealed one after a broker's cleaner. Only the active one still grows, so
`end_offset` and `size_bytes` of a snapshot move with later appends.

Few segments have aborted transactions. The list notes the sealed ones that do when it is made, because that
never changes. Only the active segment may get its first aborted transaction later, so each look-up asks it.

The times of sealed segments do not change either. The first look-up by time notes the highest time up to each
segment, in a list that is replaced as a whole: two look-ups at once find the same.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, islice, pairwise
from operator import attrgetter

from stratalog.record.header import NO_TIMESTAMP
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.segment.log_segment import LogSegment

_base_offset = attrgetter("base_offset")
_end_offset = attrgetter("end_offset")


class LogSegments(tuple[LogSegment, ...]):  # noqa: SLOT001 - a tuple has no room for slots with names
    """The segments of a log at one moment. Immutable, hence thread-safe; for its segments see
    `LogSegment`."""

    def __init__(self, _: Iterable[LogSegment] = (), /) -> None:
        # They are here already: `tuple.__new__` takes them.
        self._sealed_with_aborted = tuple(segment for segment in self.sealed if segment.has_aborted)
        self._highest_ms_so_far: list[int] = []

    @property
    def active(self) -> LogSegment:
        return self[-1]

    @property
    def sealed(self) -> tuple[LogSegment, ...]:
        """All but the active one."""
        return self[:-1]

    @property
    def start_offset(self) -> int:
        return self[0].base_offset

    @property
    def end_offset(self) -> int:
        return self[-1].end_offset

    @property
    def has_aborted(self) -> bool:
        """Whether a segment has an aborted transaction."""
        return bool(self._sealed_with_aborted) or self.active.has_aborted

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self)

    def since(self, offset: int) -> Iterator[LogSegment]:
        """The segments from the one with `offset` on. The log has that offset. Lazy: costs nothing for
        segments that the caller does not take.
        """
        assert offset >= self[0].base_offset
        if offset >= self[-1].base_offset:
            return iter(self[-1:])
        first = bisect_right(self, offset, key=_base_offset) - 1
        return map(self.__getitem__, range(first, len(self)))

    def since_time(self, timestamp_ms: int) -> Iterator[LogSegment]:
        """The segments from the first sealed one on that claims a time as late as that one, else the active
        one.

        Raises CorruptRecordError if the times of an earlier segment cannot be read, OSError.
        """
        highest_ms = self._highest_ms_so_far
        if not highest_ms or highest_ms[-1] < timestamp_ms:
            highest_ms = self._highest_ms_up_to(timestamp_ms)
        return map(self.__getitem__, range(bisect_left(highest_ms, timestamp_ms), len(self)))

    def _highest_ms_up_to(self, timestamp_ms: int) -> list[int]:
        """The highest time up to each sealed segment, up to the first one with a time as late as that one."""
        highest_ms = self._highest_ms_so_far.copy()
        so_far_ms = highest_ms[-1] if highest_ms else NO_TIMESTAMP
        for segment in islice(self, len(highest_ms), len(self) - 1):
            so_far_ms = max(so_far_ms, segment.max_timestamp().timestamp_ms)
            highest_ms.append(so_far_ms)
            if so_far_ms >= timestamp_ms:
                break
        self._highest_ms_so_far = highest_ms
        return highest_ms

    def split_at(self, offset: int) -> tuple[tuple[LogSegment, ...], tuple[LogSegment, ...]]:
        """The segments up to the one with `offset`, and those behind it. The log has that offset."""
        assert offset >= self.start_offset
        count = bisect_right(self, offset, key=_base_offset)
        return self[:count], self[count:]

    def aborted_in(self, start_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions with records in [start_offset, end_offset), in the order of their markers,
        which may lie behind. All transactions that begin in the range have ended.

        Raises CorruptRecordError, OSError (FileNotFoundError if a segment was dropped).
        """
        found: list[AbortedTransaction] = []
        for segment in self._with_aborted_since(start_offset):
            transactions, is_complete = segment.collect_aborted(start_offset, end_offset)
            found += transactions
            if is_complete:
                break
        return tuple(found)

    def _with_aborted_since(self, offset: int) -> Iterator[LogSegment]:
        """The sealed segments that have aborted transactions and end behind `offset`, and the active one."""
        sealed = self._sealed_with_aborted
        first = bisect_right(sealed, offset, key=_end_offset)
        return chain(map(sealed.__getitem__, range(first, len(sealed))), self[-1:])

    def with_base_offset(self, base_offset: int) -> LogSegment | None:
        """The segment that begins there, or None."""
        ordinal = bisect_right(self, base_offset, key=_base_offset) - 1
        return self[ordinal] if ordinal >= 0 and self[ordinal].base_offset == base_offset else None

    def check(self) -> None:
        """Check each segment, and assert their order. Raises CorruptRecordError, OSError."""
        assert self.active.is_active
        assert not any(segment.is_active for segment in self.sealed)
        for segment, follower in pairwise(self):
            assert segment.end_offset <= follower.base_offset
        assert self._sealed_with_aborted == tuple(segment for segment in self.sealed if segment.has_aborted)
        highest_ms = self._highest_ms_so_far
        times_ms = (segment.max_timestamp().timestamp_ms for segment in self[: len(highest_ms)])
        assert highest_ms == list(accumulate(times_ms, max))
        for segment in self:
            segment.check()
