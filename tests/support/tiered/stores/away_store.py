"""A store that a test takes away and brings back."""

from __future__ import annotations

from random import Random

from stratalog.objectstore.protocol import ObjectStore
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault, Operation


class AwayStore(FaultyObjectStore):
    """Fails every request while `is_away`. As thread-safe as its base."""

    def __init__(self, bucket: ObjectStore) -> None:
        self.is_away = False
        super().__init__(bucket, Random(0), self._fault)

    def _fault(self, _operation: Operation) -> Fault:
        return Fault.FAILS if self.is_away else Fault.NONE
