"""What a clean knows of the transactions that it comes by: which data goes, and which markers may.

Data of an aborted transaction goes, whatever its keys say. A marker stays as long as the clean has met a
batch of its transaction, be it an empty one: only a clean that finds nothing left of the transaction gives
the marker a time to go, and one after that time drops it. One tracker sees a whole clean, in the order of
offsets, so that a transaction and its marker may lie in different groups of segments.

A clean never goes beyond the last stable offset: every transaction that it meets is decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stratalog.log.log_segments import LogSegments
from stratalog.record.header import BatchHeader
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.transaction_index import AbortedTransaction


class AbortedSpans:
    """The aborted transactions that have data in some range of offsets. Immutable, hence thread-safe."""

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        for entry in aborted:
            self._by_producer.setdefault(entry.producer_id, []).append(entry)

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def has(self, header: BatchHeader) -> bool:
        """The batch, which is of this range, is data of an aborted transaction."""
        return (
            header.is_transactional
            and not header.is_control
            and any(
                entry.first_offset <= header.base_offset < entry.last_offset
                for entry in self._by_producer.get(header.producer_id, ())
            )
        )


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
        return AbortedSpans(self._segments.aborted_in(start_offset, end_offset))


class CleanedTransactions:
    """Not thread-safe: of one pass over a log, in the order of offsets."""

    def __init__(self) -> None:
        self._with_data: set[int] = set()
        self._dropped_markers: set[int] = set()

    def on_data(self, producer_id: int) -> None:
        """A batch of the producer's transaction came by, kept or not."""
        self._with_data.add(producer_id)

    def on_marker(self, producer_id: int) -> bool:
        """The end of the producer's transaction comes by; whether there was data of it."""
        has_data = producer_id in self._with_data
        self._with_data.discard(producer_id)
        return has_data

    def drop_marker(self, offset: int) -> None:
        """The marker there is not kept."""
        self._dropped_markers.add(offset)

    def kept_aborted(self, segment: LogSegment) -> Iterator[AbortedTransaction]:
        """The entries of the segment's transaction index whose markers were kept; all of it came by.

        Raises CorruptRecordError, OSError.
        """
        for entry in segment.indexes().transaction_index if segment.has_aborted else ():
            if entry.last_offset not in self._dropped_markers:
                yield entry
        self._dropped_markers.clear()
