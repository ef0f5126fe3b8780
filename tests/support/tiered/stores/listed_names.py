"""A store that notes the names in its listings."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from stratalog.objectstore.protocol import ObjectInfo, ObjectStore
from stratalog.testing.faulty_object_store import FaultyObjectStore


class ListedNames(FaultyObjectStore):
    """A store without faults that notes the keys which it lists. Not thread-safe: one test uses it."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner, Random(0))
        self.names: list[str] = []

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix, start_after=start_after):
            self.names.append(info.key)
            yield info
