"""How far a segment goes: what a walk over its batches holds them against."""

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
        """The batches from the one on that begins at `position`. Raises as `batch_walk.walk` does."""
        return walk(file, position, self.size_bytes, self.base_offset, self.limit_offset)

    def rows(
        self, file: AppendFile, position: int = 0, *, is_search: bool = False
    ) -> Iterator[list[BatchRow]]:
        """The same batches, of which each one's checksum was compared. `is_search`: see
        `batch_walk.valid_rows`.

        Raises CorruptRecordError behind those before the first that is not what its checksum says, or
        contradicts the one before it, or lies outside of the segment; OSError.
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
        """Where that walk finds the first batch that ends at or above `offset`; see `batch_walk.seek`."""
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
