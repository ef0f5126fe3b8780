"""The batches of a segment, all of them looked at, as what its indexes are compared with by a check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.segment.batch_walk import LocatedBatch
from stratalog.segment.segment_indexes import SegmentIndexes
from stratalog.segment.timestamp_offset import NO_TIMESTAMP_OFFSET, TimestampOffset


class ProvenBatches(NamedTuple):
    """Batches in the order of their offsets."""

    last_offsets: Mapping[int, int]
    """By position."""
    size_bytes: int
    end_offset: int
    max_timestamp: TimestampOffset

    @staticmethod
    def of(batches: Iterable[LocatedBatch], base_offset: int) -> ProvenBatches:
        """Raises what the iterable does."""
        size_bytes, end_offset, max_timestamp = 0, base_offset, NO_TIMESTAMP_OFFSET
        last_offsets: dict[int, int] = {}
        for position, header in batches:
            assert header.base_offset >= end_offset, "offsets ascend"
            size_bytes, end_offset = position + header.size_in_bytes, header.next_offset
            last_offsets[position] = header.last_offset
            if header.max_timestamp > max_timestamp.timestamp_ms:
                max_timestamp = TimestampOffset(header.max_timestamp, header.last_offset)
        return ProvenBatches(last_offsets, size_bytes, end_offset, max_timestamp)

    def check_indexes(self, indexes: SegmentIndexes, end_offset: int) -> None:
        """`end_offset`: of the segment. Raises CorruptRecordError where an entry is not of these batches, or
        an index does not ascend, OSError."""
        indexes.check(end_offset=end_offset, log_size_bytes=self.size_bytes)
        for entry in indexes.offset_index:
            if self.last_offsets.get(entry.position) != entry.offset:
                raise CorruptRecordError("an offset index points at another batch", entry=entry)
