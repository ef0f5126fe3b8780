"""How far a segment goes: what a walk over its batches holds them against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stratalog.base.filesystem import AppendFile
from stratalog.segment.batch_walk import LocatedBatch, seek, walk


class SegmentExtent(NamedTuple):
    """Batches with offsets in [base_offset, limit_offset), in the first `size_bytes` of a file."""

    base_offset: int
    limit_offset: int
    size_bytes: int

    def walk(self, file: AppendFile, position: int = 0) -> Iterator[LocatedBatch]:
        """The batches from the one on that begins at `position`. Raises as `batch_walk.walk` does."""
        return walk(file, position, self.size_bytes, self.base_offset, self.limit_offset)

    def seek(
        self, file: AppendFile, offset: int, position: int = 0, indexed_offset: int | None = None
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
        )
