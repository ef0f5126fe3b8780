"""A store in memory that notes the ranges that are read as streams."""

from __future__ import annotations

from stratalog.base.clock import Clock
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ReadStream


class RangedStore(MemoryObjectStore):
    """Notes the ranges of streams. Not thread-safe: one test uses it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.ranges: dict[str, list[tuple[int, int]]] = {}
        """By name of the object: first position and exclusive end of each."""

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        self.ranges.setdefault(key.rpartition("/")[2], []).append((position, position + size))
        return super().open_range(key, position, size, if_match=if_match)
