"""The batches of a segment with true checksums, for a check of its indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.record.native.batch_row import BatchRow
from stratalog.segment.indexes.segment_indexes import SegmentIndexes
from stratalog.segment.timestamp_offset import NO_TIMESTAMP_OFFSET, TimestampOffset


class ProvenBatches(NamedTuple):
    """All batches of a segment, in the order of their offsets."""

    last_offsets: Mapping[int, int]
    """Last offset of each batch, by its position."""
    size_bytes: int
    end_offset: int
    max_timestamp: TimestampOffset

    @staticmethod
    def of(rows: Iterable[list[BatchRow]], base_offset: int) -> ProvenBatches:
        """Collect the batches of `rows`, whose checksums were compared. Raises the errors of the iterable."""
        size_bytes, end_offset, max_timestamp = 0, base_offset, NO_TIMESTAMP_OFFSET
        last_offsets: dict[int, int] = {}
        for row in chain.from_iterable(rows):
            assert row.last_offset >= end_offset, "offsets ascend"
            size_bytes, end_offset = row.end_position, row.last_offset + 1
            last_offsets[row.position] = row.last_offset
            if row.max_timestamp_ms > max_timestamp.timestamp_ms:
                max_timestamp = TimestampOffset(row.max_timestamp_ms, row.last_offset)
        return ProvenBatches(last_offsets, size_bytes, end_offset, max_timestamp)

    def check_indexes(
        self,
        indexes: SegmentIndexes,
        end_offset: int,
        make_again: Callable[[SegmentIndexes], SegmentIndexes] | None,
    ) -> None:
        """Compare the indexes of the segment, which ends at `end_offset`, with its batches. If they are wrong
        and `make_again` is given, rebuild them with it and compare again.

        Raises CorruptRecordError if an entry belongs to no batch, or an index does not ascend; OSError.
        """
        try:
            self._check_indexes(indexes, end_offset)
        except CorruptRecordError:
            if make_again is None:
                raise
            self._check_indexes(make_again(indexes), end_offset)

    def _check_indexes(self, indexes: SegmentIndexes, end_offset: int) -> None:
        indexes.check(end_offset=end_offset, log_size_bytes=self.size_bytes)
        for entry in indexes.offset_index:
            if self.last_offsets.get(entry.position) != entry.offset:
                raise CorruptRecordError("an offset index points at another batch", entry=entry)
