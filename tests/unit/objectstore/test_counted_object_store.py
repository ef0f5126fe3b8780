"""Counted stores count one request for each that S3 needs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest

from stratalog.base.errors import ObjectNotFoundError
from stratalog.objectstore.content_digest import content_crc
from stratalog.objectstore.counted import CountedObjectStore, RequestCount, RequestKind, RequestPrices
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.remote.store_layout import StoreLayout, kind_of_key
from stratalog.testing.manual_clock import ManualClock
from tests.support.tiered.stores.slow_store import SlowStore


def counted() -> CountedObjectStore:
    return CountedObjectStore(MemoryObjectStore(ManualClock()), kind_of_key)


@pytest.mark.parametrize(
    ("size_bytes", "requests"), [(0, 1), (10, 1), (11, 4), (20, 4), (21, 5)], ids=lambda size: f"{size}"
)
def test_parts_count_as_the_requests_of_a_multipart_upload(size_bytes: int, requests: int) -> None:
    store = counted()
    store.put_parts("shards/0000/data/a", [bytes(1)] * size_bytes, part_bytes=10)
    assert store.counts() == {RequestKind("PUT", "data"): RequestCount(requests, size_bytes)}


def test_an_upload_counts_as_its_requests() -> None:
    store = counted()
    upload = store.open_upload("shards/0000/data/a")
    for number in (1, 2):
        upload.put_part(number, [b"12", b"3"])
    upload.complete(content_crc([b"123123"]))
    assert store.counts() == {RequestKind("PUT", "data"): RequestCount(4, 6)}


def test_each_request_counts_under_its_verb_and_kind() -> None:
    store = counted()
    data, head = StoreLayout(3).data_key("x"), StoreLayout(3).head_key
    etag = store.put(head, b"12345")
    store.put(data, b"123")
    store.get(head)
    assert store.get_if_changed(head, etag) is None
    assert store.get_range(data, 1, 2) == b"23"
    stream = store.open_range(data, 0, 3)
    assert stream.read(1) == b"1"
    stream.close()
    assert [info.key for info in store.list(StoreLayout(3).data_prefix)] == [data]
    store.delete_many([data] * 1001)
    store.delete_many([])
    assert store.counts() == {
        RequestKind("PUT", "metadata"): RequestCount(1, 5),
        RequestKind("PUT", "data"): RequestCount(1, 3),
        RequestKind("GET", "metadata"): RequestCount(2, 5),
        RequestKind("GET", "data"): RequestCount(2, 3),
        RequestKind("LIST", "data"): RequestCount(1, 0),
        RequestKind("DELETE", "data"): RequestCount(2, 0),
    }


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (StoreLayout(0).data_key("x"), "data"),
        (StoreLayout(0).data_prefix, "data"),
        (StoreLayout(0).page_key("data"), "metadata"),
        (StoreLayout(None).head_key, "metadata"),
        ("stratalog.json", "metadata"),
        ("", "metadata"),
    ],
)
def test_the_kind_follows_from_the_key(key: str, kind: str) -> None:
    assert kind_of_key(key) == kind


def test_durations_and_failures_are_those_of_calls() -> None:
    clock = ManualClock()
    spans: list[tuple[str, str]] = []

    def span_of(verb: str, key: str) -> AbstractContextManager[object]:
        spans.append((verb, key))
        return nullcontext()

    store = CountedObjectStore(SlowStore(clock), kind_of_key, clock, span_of)
    data = StoreLayout(3).data_key("x")
    store.put(data, b"123")
    store.get(data)
    for _ in range(2):
        with pytest.raises(ObjectNotFoundError):
            store.get(data + "y")
    for _ in store.list(""):
        # The caller's time is not the store's.
        clock.advance(50_000)
    times = store.times()
    got = times[RequestKind("GET", "data")]
    assert (sum(got.durations.counts), got.durations.total) == (3, 3.0)
    assert got.failures == {ObjectNotFoundError.code: 2}
    assert times[RequestKind("PUT", "data")].durations.total == 0
    listed = next(one for kind, one in times.items() if kind.verb == "LIST")
    assert (sum(listed.durations.counts), listed.durations.total) == (1, 2.0)
    assert spans == [("PUT", data), ("GET", data), ("GET", data + "y"), ("GET", data + "y")]


def test_the_use_of_another_process_is_added_and_taken_once() -> None:
    clock = ManualClock()
    store, other = (CountedObjectStore(SlowStore(clock), kind_of_key, clock) for _ in range(2))
    data = StoreLayout(3).data_key("x")
    for one in (store, other):
        one.put(data, b"123")
        one.get(data)
        with pytest.raises(ObjectNotFoundError):
            one.get(data + "y")
    store.add_use(other.take_use())
    store.add_use(other.take_use())
    kind = RequestKind("GET", "data")
    assert store.counts()[kind] == RequestCount(4, 6)
    assert store.times()[kind].durations.total == 4.0
    assert store.times()[kind].failures == {ObjectNotFoundError.code: 2}
    assert (other.times(), other.counts()) == ({}, {})


def test_requests_cost_what_their_verb_costs() -> None:
    prices = RequestPrices(get=1.0, put=10.0)
    assert [prices.cost(verb, 2000) for verb in ("GET", "PUT", "COPY", "LIST", "DELETE")] == [
        2.0,
        20.0,
        20.0,
        20.0,
        0.0,
    ]
