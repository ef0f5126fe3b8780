"""Every fault does to the store, and tells the actor, what the table in `store_faults` says."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.base.errors import PreconditionFailedError, StoreUnavailableError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore, StoreTrace
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.store_faults import (
    Fault,
    FaultPlan,
    FaultsAt,
)


@pytest.fixture
def inner() -> MemoryObjectStore:
    return MemoryObjectStore(ManualClock())


def faulty(inner: MemoryObjectStore, plan: FaultPlan, trace: StoreTrace | None = None) -> FaultyObjectStore:
    return FaultyObjectStore(inner, Random(7), plan, actor="a", trace=trace)


def keys(inner: MemoryObjectStore) -> list[str]:
    return [info.key for info in inner.list("")]


def outcomes(store: FaultyObjectStore) -> list[str]:
    return [f"{entry.fault.value}, {entry.outcome}" for entry in store.trace.entries]


class TestPut:
    @pytest.mark.parametrize(
        ("fault", "error", "before", "after", "outcome"),
        [
            (Fault.FAILS, StoreUnavailableError, None, None, "fails, did not land"),
            (Fault.LANDS_UNKNOWN, StoreUnavailableError, None, b"1", "lands unknown, ok"),
            (
                Fault.LANDS_UNKNOWN,
                StoreUnavailableError,
                b"0",
                b"0",
                "lands unknown, PreconditionFailedError",
            ),
            (Fault.LANDS_AND_IS_REFUSED, PreconditionFailedError, None, b"1", "lands and is sent again, ok"),
        ],
    )
    def test_one_fault(
        self,
        inner: MemoryObjectStore,
        fault: Fault,
        error: type[Exception],
        before: bytes | None,
        after: bytes | None,
        outcome: str,
    ) -> None:
        if before is not None:
            inner.put("k", before)
        store = faulty(inner, FaultsAt({0: fault}))
        with pytest.raises(error):
            store.put("k", b"1", if_absent=True)
        assert [inner.get(key).data for key in keys(inner)] == ([] if after is None else [after])
        assert outcomes(store)[0] == outcome
        store.put("k", b"2")
        assert inner.get("k").data == b"2"

    def test_lands_late_and_is_judged_late(self, inner: MemoryObjectStore) -> None:
        store = faulty(inner, FaultsAt({0: Fault.LANDS_LATE, 1: Fault.LANDS_LATE}))
        data = bytearray(b"1")
        for key in ("won", "lost"):
            with pytest.raises(StoreUnavailableError):
                store.put(key, data, if_absent=True)
        data[:] = b"x"
        assert keys(inner) == []
        assert [operation.key for operation in store.held] == ["won", "lost"]
        inner.put("lost", b"2")
        store.release_all()
        assert inner.get("won").data == b"1"
        assert inner.get("lost").data == b"2"
        assert outcomes(store)[2:] == ["lands late, ok", "lands late, PreconditionFailedError"]
        assert store.held == ()

    def test_large_objects_meet_the_same_faults(self, inner: MemoryObjectStore) -> None:
        store = faulty(inner, FaultsAt({0: Fault.LANDS_LATE}))
        part = bytearray(b"1")
        with pytest.raises(StoreUnavailableError):
            store.put_parts("k", [part, b"2"])
        part[:] = b"x"
        store.release()
        assert inner.get("k").data == b"12"


@pytest.mark.parametrize("fault", [Fault.STOPS_BEFORE, Fault.STOPS_AFTER])
def test_a_stopped_actor_does_nothing_any_more(inner: MemoryObjectStore, fault: Fault) -> None:
    store = faulty(inner, FaultsAt({0: Fault.LANDS_LATE, 1: fault}))
    with pytest.raises(StoreUnavailableError):
        store.put("late", b"1")
    with pytest.raises(ActorStopped):
        store.put("k", b"1")
    assert store.is_stopped
    assert keys(inner) == (["k"] if fault is Fault.STOPS_AFTER else [])
    for again in (lambda: store.get("k"), lambda: store.delete_many(["k"]), lambda: list(store.list(""))):
        with pytest.raises(ActorStopped):
            again()
    store.release()
    assert "late" in keys(inner)
    assert not issubclass(ActorStopped, Exception), "handlers of errors must not swallow it"


@pytest.mark.parametrize("read", ["get", "get_range"])
def test_an_actor_stops_after_a_read_that_is_refused(inner: MemoryObjectStore, read: str) -> None:
    store = faulty(inner, FaultsAt({0: Fault.STOPS_AFTER}))
    arguments = ("missing",) if read == "get" else ("missing", 0, 1)
    with pytest.raises(ActorStopped):
        getattr(store, read)(*arguments)
    assert store.is_stopped
    assert outcomes(store) == ["stops after, ObjectNotFoundError"]
    with pytest.raises(ActorStopped):
        store.put("k", b"1")


def test_a_body_has_a_flipped_bit(inner: MemoryObjectStore) -> None:
    inner.put("k", bytes(100))
    store = faulty(inner, FaultsAt(dict.fromkeys(range(4), Fault.IS_FLIPPED)))
    etag = inner.get("k").etag
    changed = store.get_if_changed("k", "another")
    assert changed is not None
    stream = store.open_range("k", 10, 50)
    bodies = [store.get("k").data, store.get_range("k", 10, 50), changed.data]
    bodies.append(b"".join(stream.read(7) for _ in range(8)))
    assert [len(body) for body in bodies] == [100, 50, 100, 50]
    assert [sum(byte.bit_count() for byte in body) for body in bodies] == [1] * 4
    assert store.get_if_changed("k", etag) is None
    assert store.get("k").data == bytes(100)
