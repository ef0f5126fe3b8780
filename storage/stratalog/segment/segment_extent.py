"""The bounds of a segment, which its batches must keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stratalog.base.filesystem import AppendFile
from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.record.native.batch_row import BatchRow
from stratalog.segment.batch_walk import LocatedBatch, damaged_batch, seek, valid_rows, walk


class SegmentExtent(NamedTuple):
    """Batches with offsets in [base_offset, limit_offset), in the first `size_bytes` of a file."""

    base_offset: int
    limit_offset: int
    size_bytes: int

    def walk(self, file: AppendFile, position: int = 0) -> Iterator[LocatedBatch]:
        """Yield the batches from `position`, where one begins. Raises as `batch_walk.walk` does."""
        return walk(file, position, self.size_bytes, self.base_offset, self.limit_offset)

    def rows(
        self, file: AppendFile, position: int = 0, *, is_search: bool = False
    ) -> Iterator[list[BatchRow]]:
        """Yield the batches from `position`, after comparing their checksums. `is_search`: see
        `batch_walk.valid_rows`.

        Raises CorruptRecordError, after the sound batches, at the first that does not match its checksum,
        contradicts the batch before it or lies outside the segment; OSError.
        """
        for rows, _ in valid_rows(
            file, self.size_bytes, self.base_offset, NO_LEADER_EPOCH, position, is_search=is_search
        ):
            if rows[-1].last_offset >= self.limit_offset:
                break
            yield rows
            position = rows[-1].end_position
        if position != self.size_bytes:
            raise damaged_batch(file.path, position)

    def seek(
        self,
        file: AppendFile,
        offset: int,
        position: int = 0,
        indexed_offset: int | None = None,
        *,
        proves_hole: bool = False,
    ) -> int | None:
        """The position of the first batch that ends at or above `offset`; see `batch_walk.seek`."""
        return seek(
            file,
            position,
            self.size_bytes,
            offset,
            indexed_offset=indexed_offset,
            first_offset=self.base_offset,
            limit_offset=self.limit_offset,
            proves_hole=proves_hole,
        )
