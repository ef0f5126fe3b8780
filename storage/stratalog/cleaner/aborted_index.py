"""Which data of a log is that of aborted transactions, as a clean asks for it: a window at a time.

A clean never goes beyond the last stable offset: every transaction that it meets is decided.
"""

from __future__ import annotations

from stratalog.log.log_segments import LogSegments
from stratalog.record.aborted_spans import AbortedSpans


class AbortedIndex:
    """The transaction indexes of a log's segments, which were taken when the clean began. Immutable, hence
    thread-safe."""

    def __init__(self, segments: LogSegments) -> None:
        self._segments = segments

    def between(self, start_offset: int, end_offset: int) -> AbortedSpans:
        """All with data in [start_offset, end_offset), wherever their markers are, of what is decided.

        What ends at or below `start_offset` may have been replaced meanwhile: no file of it is looked at.
        Raises CorruptRecordError, OSError (FileNotFoundError where the segment was dropped).
        """
        return AbortedSpans(
            (entry.producer_id, entry.first_offset, entry.last_offset)
            for entry in self._segments.aborted_in(start_offset, end_offset)
        )
