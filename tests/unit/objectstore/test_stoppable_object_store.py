"""Nothing begins behind a stop, and what had begun is not half done."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stratalog.base.errors import ObjectNotFoundError, StoppingError
from stratalog.base.stop_signal import StopSignal
from stratalog.objectstore.content_digest import content_crc
from stratalog.objectstore.local import LocalObjectStore
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectPlace, ObjectStore, UnfinishedUpload
from stratalog.objectstore.stoppable import StoppableObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.object_store_contract import ObjectStoreContract
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.counting_object_store import CountingObjectStore


class TestStoppableObjectStore(ObjectStoreContract):
    """Until it is stopped it is a store like any other."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        return StoppableObjectStore(MemoryObjectStore(ManualClock()), StopSignal())


CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "put": lambda store: store.put("new", b"x"),
    "put_parts": lambda store: store.put_parts("new", [b"x"]),
    "open_upload": lambda store: store.open_upload("new"),
    "copy": lambda store: store.copy(ObjectPlace("server", "bucket", "name"), "new", 1),
    "get": lambda store: store.get("key"),
    "get_if_changed": lambda store: store.get_if_changed("key", "etag"),
    "get_range": lambda store: store.get_range("key", 0, 1),
    "open_range": lambda store: store.open_range("key", 0, 1),
    "list": lambda store: store.list(""),
    "delete_many": lambda store: store.delete_many(["key"]),
    "list_uploads": lambda store: store.list_uploads(""),
    "abort_upload": lambda store: store.abort_upload(UnfinishedUpload("key", "id", 0)),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_request_begins_behind_a_stop(name: str) -> None:
    counting = CountingObjectStore(MemoryObjectStore(ManualClock()))
    counting.put("key", b"data")
    counting.reset()
    stop = StopSignal()
    store = StoppableObjectStore(counting, stop)
    stop.set()
    with pytest.raises(StoppingError):
        CALLS[name](store)
    assert counting.counts() == {}
    assert store.url == counting.url
    store.close()


def test_a_stream_and_a_listing_end_where_they_are() -> None:
    inner = MemoryObjectStore(ManualClock())
    for key in ("a", "b"):
        inner.put(key, bytes(10))
    stop = StopSignal()
    store = StoppableObjectStore(inner, stop)
    stream, listing = store.open_range("a", 0, 10), store.list("")
    assert (stream.read(4), next(listing).key) == (bytes(4), "a")
    stop.set()
    with pytest.raises(StoppingError):
        stream.read(4)
    with pytest.raises(StoppingError):
        next(listing)
    stream.close()


def test_an_upload_goes_no_further_and_leaves_nothing() -> None:
    inner = MemoryObjectStore(ManualClock())
    stop = StopSignal()
    upload = StoppableObjectStore(inner, stop).open_upload("new")
    upload.put_part(1, [b"x"])
    stop.set()
    with pytest.raises(StoppingError):
        upload.put_part(2, [b"y"])
    with pytest.raises(StoppingError):
        upload.complete(content_crc([b"x"]))
    upload.abort()
    assert [*inner.list(""), *inner.list_uploads("")] == []


@pytest.mark.parametrize("part_bytes", [2, 1000])
def test_an_object_on_its_way_does_not_appear(part_bytes: int) -> None:
    clock, filesystem = ManualClock(), MemoryFileSystem()
    for inner in (
        MemoryObjectStore(clock),
        LocalObjectStore(filesystem, clock, SequentialIds(1), "/store"),
    ):
        stop = StopSignal()

        def parts(stop: StopSignal = stop) -> Iterator[bytes]:
            yield b"first"
            stop.set()
            yield b"second"

        with pytest.raises(StoppingError):
            StoppableObjectStore(inner, stop).put_parts("key", parts(), part_bytes=part_bytes)
        with pytest.raises(ObjectNotFoundError):
            inner.get("key")
        assert list(inner.list("")) == []
