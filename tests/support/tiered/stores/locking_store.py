"""A store that keeps some of its objects, as a bucket with Object Lock does."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.errors import DeletionRefusedError
from stratalog.objectstore.protocol import ObjectStore
from tests.support.tiered.counting_object_store import CountingObjectStore


class LockingStore(CountingObjectStore):
    """Refuses to delete the locked keys. Not thread-safe: one test uses it."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.locked: set[str] = set()
        self.attempts: list[str] = []

    def delete_many(self, keys: Sequence[str]) -> None:
        self.attempts += keys
        super().delete_many([key for key in keys if key not in self.locked])
        refused = self.locked.intersection(keys)
        if refused:
            raise DeletionRefusedError("locked by the test", keys=tuple(refused))
