"""Stores in memory that copy from each other, as the prefixes of one server do."""

from __future__ import annotations

from stratalog.base.clock import Clock
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectPlace, ReadStream


class CopyingServer:
    """The stores of one server, by name. Not thread-safe: one test uses it."""

    def __init__(self) -> None:
        self.stores: dict[str, MemoryObjectStore] = {}
        self.refuses = False
        """Whether no store may read another one."""


class CopyingStore(MemoryObjectStore):
    """A store of a `CopyingServer`. Thread-safe: the store in memory is."""

    def __init__(self, clock: Clock, server: CopyingServer, name: str) -> None:
        super().__init__(clock)
        self._server = server
        self._name = name
        self.copied: list[str] = []
        """The keys that the server has copied here."""
        self.garbled_count = 0
        """Streams from now on that have a flipped bit."""
        server.stores[name] = self

    def place_of(self, key: str) -> ObjectPlace | None:
        return ObjectPlace("server", self._name, key)

    def copy(self, source: ObjectPlace, key: str, size_bytes: int) -> bool:
        if self._server.refuses or source.server != "server":
            return False
        data = self._server.stores[source.bucket].get(source.name).data
        assert len(data) == size_bytes
        self.put(key, data)
        self.copied.append(key)
        return True

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        if self.garbled_count == 0:
            return super().open_range(key, position, size, if_match=if_match)
        self.garbled_count -= 1
        sound, data = self.get(key).data, bytearray(self.get(key).data)
        data[200] ^= 4  # a record
        self.put(key, data)
        stream = super().open_range(key, position, size, if_match=if_match)
        self.put(key, sound)
        return stream
