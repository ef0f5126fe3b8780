"""Finds the data of aborted transactions for a clean, a window of the log at a time.

A clean never goes beyond the last stable offset, so each transaction that it meets is decided. Index entries
are ordered by marker, so most entries with data in a window lie in the window or shortly after it. Those of
longer transactions are found once, and kept::

    entries     |      window      |   reach   |
                 first ........ marker             found there
                 first ............................... marker    kept: few, or the reach grows

So no window reads the entries of the whole log after it, even beside a long transaction, and the number of
kept entries is bounded.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stratalog.log.exchange.cleaned_segment import OnRead
from stratalog.record.native.aborted_spans import AbortedSpans
from stratalog.record.native.offset_map import aborted_spans_in
from stratalog.segment.indexes.transaction_index import ENTRY_SIZE, bytes_below
from stratalog.segment.log_segment import LogSegment

LEAST_REACH = 1 << 16
"""The smallest reach, in offsets."""
MAX_KEPT = 1 << 16
"""The highest number of kept entries."""
_SPAN = struct.Struct(">10xqq8x")
assert _SPAN.size == ENTRY_SIZE


class _Long(NamedTuple):
    """Transactions whose marker is more than `reach` offsets after their first record."""

    reach: int
    entries: bytes
    """Index entries in the order of their markers."""


class AbortedIndex:
    """The transaction indexes of a log's segments, as of the beginning of the clean. Used by one thread."""

    def __init__(
        self,
        segments: Iterable[LogSegment],
        on_read: OnRead,
        *,
        least_reach: int = LEAST_REACH,
        max_kept: int = MAX_KEPT,
    ) -> None:
        """`on_read` gets the bytes of the single pass over all indexes, which the first window makes."""
        self._segments = tuple(segment for segment in segments if segment.has_aborted)
        self._on_read = on_read
        self._least_reach = least_reach
        self._max_kept = max_kept
        self._long: _Long | None = None

    def between(self, start_offset: int, end_offset: int) -> AbortedSpans:
        """All decided transactions with data in [start_offset, end_offset), wherever their markers are.

        Reads no file that ends at or below `start_offset`: it may have been replaced since the first window.
        Raises CorruptRecordError, OSError (FileNotFoundError if the segment was dropped), and the errors of
        `on_read`.
        """
        if not self._segments:
            return AbortedSpans()
        if self._long is None:
            self._long = self._find_long()
        reached_offset = end_offset + self._long.reach
        parts = list(self._entries(start_offset, reached_offset))
        parts.append(self._long.entries[bytes_below(self._long.entries, reached_offset) :])
        return AbortedSpans(aborted_spans_in(b"".join(parts), start_offset, end_offset))

    def _entries(self, start_offset: int, end_offset: int) -> Iterator[bytes]:
        """Yield the entries with a marker in the range."""
        for ordinal in range(
            bisect_right(self._segments, start_offset, key=_end_offset), len(self._segments)
        ):
            segment = self._segments[ordinal]
            if segment.base_offset >= end_offset:
                return
            yield from entries_of(segment, start_offset, end_offset)

    def _find_long(self) -> _Long:
        reach, kept = self._least_reach, bytearray()
        for segment in self._segments:
            for chunk in entries_of(segment, segment.base_offset, segment.end_offset):
                self._on_read(len(chunk))
                kept += _longer_than(reach, chunk)
                while len(kept) > self._max_kept * ENTRY_SIZE:
                    reach *= 2
                    kept = _longer_than(reach, kept)
        return _Long(reach, bytes(kept))


def entries_of(segment: LogSegment, start_offset: int, end_offset: int) -> Iterator[bytes]:
    """Yield whole entries of the segment's transaction index with a marker in the range, in order.

    Raises CorruptRecordError, OSError (FileNotFoundError if the segment was dropped, or its index is
    missing).
    """
    index = segment.indexes().transaction_index
    yield from index.between(start_offset, end_offset)


def _longer_than(reach: int, entries: bytes | bytearray) -> bytearray:
    found = bytearray()
    for number, (first_offset, last_offset) in enumerate(_SPAN.iter_unpack(entries)):
        if last_offset - first_offset > reach:
            found += entries[number * ENTRY_SIZE : (number + 1) * ENTRY_SIZE]
    return found


def _end_offset(segment: LogSegment) -> int:
    return segment.end_offset
