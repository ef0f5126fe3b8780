"""What the segments of all logs share."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.filesystem import FileSystem
from stratalog.segment.index_cache import IndexCache
from stratalog.segment.open_files import OpenFiles
from stratalog.segment.preallocation import Preallocation


class SegmentResources(NamedTuple):
    """Of one data directory. Each part is thread-safe."""

    filesystem: FileSystem
    files: OpenFiles
    index_cache: IndexCache
    preallocation: Preallocation
