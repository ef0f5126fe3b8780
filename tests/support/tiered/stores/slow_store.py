"""A store whose calls take a second of a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectInfo, StoredObject
from stratalog.testing.manual_clock import ManualClock


class SlowStore(MemoryObjectStore):
    """Each `get` takes a second; a listing takes one for each item and one at its end. Not thread-safe."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self._own_clock = clock

    def get(self, key: str) -> StoredObject:
        self._own_clock.advance(1000)
        return super().get(key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        for item in super().list(prefix, start_after=start_after):
            self._own_clock.advance(1000)
            yield item
        self._own_clock.advance(1000)
