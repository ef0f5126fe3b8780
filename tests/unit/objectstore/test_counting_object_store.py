"""The counts are those of the requests that were made and the bytes that arrived."""

from __future__ import annotations

import pytest

from stratalog.objectstore.counting import CountingObjectStore, RequestCount, RequestKind
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.testing.manual_clock import ManualClock


@pytest.fixture
def store() -> CountingObjectStore:
    return CountingObjectStore(MemoryObjectStore(ManualClock()))


def test_each_verb_and_key_has_its_count(store: CountingObjectStore) -> None:
    etag = store.put("data/1", memoryview(b"12345678").cast("I"))
    store.put_parts("data/2", [b"12", b"345"])
    store.get("data/1")
    assert store.get_if_changed("data/1", etag) is None
    store.get_range("data/2", 1, 3)
    list(store.list("data/"))
    store.delete_many([f"data/{number}" for number in range(1001)])
    assert store.counts() == {
        RequestKind("PUT", "data/1"): RequestCount(1, 8),
        RequestKind("PUT", "data/2"): RequestCount(1, 5),
        RequestKind("GET", "data/1"): RequestCount(2, 8),
        RequestKind("GET", "data/2"): RequestCount(1, 3),
        RequestKind("LIST", "data/"): RequestCount(1, 0),
        RequestKind("DELETE", ""): RequestCount(2, 0),
    }
    assert store.total("GET") == RequestCount(3, 11)
    assert store.total("GET", "data/2") == RequestCount(1, 3)
    assert store.total("HEAD") == RequestCount(0, 0)
    store.reset()
    assert store.counts() == {}


def test_a_stream_is_one_request_and_counts_as_it_is_read(store: CountingObjectStore) -> None:
    store.put("key", bytes(100))
    stream = store.open_range("key", 10, 80)
    assert store.total("GET") == RequestCount(1, 0)
    stream.read(30)
    assert store.total("GET") == RequestCount(1, 30)
    stream.read(1000)
    stream.close()
    assert store.total("GET") == RequestCount(1, 80)
