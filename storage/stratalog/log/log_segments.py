"""The segments of a log at one moment, oldest first: Kafka's `LogSegments`, as an immutable snapshot.

A log replaces its segments as a whole, so a reader takes them once and walks them without a lock, whatever is
rolled or dropped beside it. The last segment is active, there is always one. Segments tile: each one's base
offset is the end of the one before it, except where a later one was put behind a gap on purpose. An active
one may be empty, and a sealed one of which a broker's cleaner has left nothing. Only the active one still
grows, so `end_offset` and `size_bytes` move on in a snapshot that was taken before an append.

Few segments have aborted transactions. Which of the sealed ones do is noted when the list is made, because it
never changes: it is known, without a look at any file, of each segment before it is part of a list, and only
the active one gets its first one later. So that one is asked each time, and who looks for aborted
transactions comes by no other segment that has none.

Nor do the times of sealed segments change. The highest one of all up to each is noted when a look-up first
comes by, in a list that is replaced as a whole: two that do so at once find the same.
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
    """Immutable, hence thread-safe; the segments in it are so as `LogSegment` says."""

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
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self)

    def since(self, offset: int) -> Iterator[LogSegment]:
        """From the last segment on whose base offset is at or below `offset`, which is one of the log's.

        Those that nobody asks for cost nothing.
        """
        assert offset >= self[0].base_offset
        if offset >= self[-1].base_offset:
            return iter(self[-1:])
        first = bisect_right(self, offset, key=_base_offset) - 1
        return map(self.__getitem__, range(first, len(self)))

    def since_time(self, timestamp_ms: int) -> Iterator[LogSegment]:
        """From the first sealed segment on that claims a time as late as that one, or else the active one.

        Raises CorruptRecordError where one before it does not know its times, OSError.
        """
        highest_ms = self._highest_ms_so_far
        if not highest_ms or highest_ms[-1] < timestamp_ms:
            highest_ms = self._highest_ms_up_to(timestamp_ms)
        return map(self.__getitem__, range(bisect_left(highest_ms, timestamp_ms), len(self)))

    def _highest_ms_up_to(self, timestamp_ms: int) -> list[int]:
        """Of the sealed segments up to the first with a time as late as that one: more are not asked."""
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
        """Those up to the last one that begins at or below `offset`, which is one of the log's, and those
        behind."""
        assert offset >= self.start_offset
        count = bisect_right(self, offset, key=_base_offset)
        return self[:count], self[count:]

    def aborted_in(self, start_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions that have records in [start_offset, end_offset), in the order of their
        markers, wherever these are. All that begin there are decided.

        Raises CorruptRecordError, OSError (FileNotFoundError where a segment was dropped).
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
        """The segment that begins there; None where there is none, or none any more."""
        ordinal = bisect_right(self, base_offset, key=_base_offset) - 1
        return self[ordinal] if ordinal >= 0 and self[ordinal].base_offset == base_offset else None

    def check(self) -> None:
        """Prove each segment and their order. Raises CorruptRecordError, OSError."""
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
