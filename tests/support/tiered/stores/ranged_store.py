"""A store in memory that notes the ranges that are read as streams, and the reads."""

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
        self.opened: list[str] = []
        """The object of each stream, in the order in which they were opened."""
        self.read_sizes: list[int] = []
        """The bytes that each read of a stream asked for."""

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        name = key.rpartition("/")[2]
        self.opened.append(name)
        self.ranges.setdefault(name, []).append((position, position + size))
        return _NotedStream(super().open_range(key, position, size, if_match=if_match), self.read_sizes)


class _NotedStream:
    """Notes the size of each read. One user at a time, as every `ReadStream`."""

    def __init__(self, stream: ReadStream, sizes: list[int]) -> None:
        self._stream = stream
        self._sizes = sizes

    def read(self, size: int) -> bytes:
        self._sizes.append(size)
        return self._stream.read(size)

    def etag(self) -> str:
        return self._stream.etag()

    def close(self) -> None:
        self._stream.close()
