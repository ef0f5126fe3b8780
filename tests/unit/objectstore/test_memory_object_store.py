"""The store in memory keeps the contract, bare and inside the wrappers."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.object_store_contract import ConditionalWriteRaces, ObjectStoreContract


class TestMemoryObjectStore(ObjectStoreContract, ConditionalWriteRaces):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryObjectStore(ManualClock())


class TestFaultyWithoutFaults(ObjectStoreContract, ConditionalWriteRaces):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return FaultyObjectStore(MemoryObjectStore(ManualClock()), Random(1))


def test_dates_are_the_clocks() -> None:
    clock = ManualClock(now_ms=5_000)
    store = MemoryObjectStore(clock)
    store.put("key", b"")
    clock.advance(700)
    assert store.get("key").date_ms == 5_700
    assert [info.modified_ms for info in store.list("")] == [5_000]
