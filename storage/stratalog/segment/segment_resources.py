"""Resources that the segments of all logs share."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.filesystem import FileSystem
from stratalog.segment.file_names import SEGMENT_SUFFIXES, segment_path
from stratalog.segment.indexes.index_page_cache import DEFAULT_MAX_BYTES, IndexPageCache
from stratalog.segment.open_files import DEFAULT_MAX_OPEN, OpenFiles
from stratalog.segment.preallocation import Preallocation
from stratalog.segment.tail_memory import TailMemory


class SegmentResources(NamedTuple):
    """Files and caches for all log directories of a manager. Each part is thread-safe."""

    filesystem: FileSystem
    files: OpenFiles
    index_pages: IndexPageCache
    preallocation: Preallocation
    tails: TailMemory

    @staticmethod
    def over(
        filesystem: FileSystem,
        *,
        max_open_files: int = DEFAULT_MAX_OPEN,
        index_cache_bytes: int = DEFAULT_MAX_BYTES,
        tail_bytes: int = 0,
    ) -> SegmentResources:
        """Create them. The index cache reads its pages through the same set of open files."""
        files = OpenFiles(filesystem, max_open_files)
        index_pages = IndexPageCache(files, index_cache_bytes)
        return SegmentResources(
            filesystem, files, index_pages, Preallocation(filesystem), TailMemory(tail_bytes)
        )

    def forget(self, directory: str, base_offset: int) -> None:
        """Close the open files of that segment."""
        for suffix in SEGMENT_SUFFIXES:
            self.files.forget(segment_path(directory, base_offset, suffix))
