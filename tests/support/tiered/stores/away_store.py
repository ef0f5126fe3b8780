"""A store that a test takes away and brings back, or lets refuse everything."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from stratalog.base.errors import StoreError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault, Operation


class AwayStore(FaultyObjectStore):
    """Fails every request while `is_away`, and while `refusal` is set refuses with it those that `refuses`
    has, by default all. As thread-safe as its base."""

    def __init__(self, bucket: ObjectStore) -> None:
        self.is_away = False
        self.refusal: StoreError | None = None
        self.refuses: Callable[[Operation], bool] = lambda _operation: True
        super().__init__(bucket, Random(0), self._fault)

    def _fault(self, operation: Operation) -> Fault:
        if self.refusal is not None and self.refuses(operation):
            raise self.refusal
        return Fault.FAILS if self.is_away else Fault.NONE
