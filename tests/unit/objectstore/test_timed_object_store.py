"""A request that hangs is given up after a deadline, and its outcome is unknown."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from stratalog.base.errors import ObjectNotFoundError, StoreUnavailableError
from stratalog.base.scheduler import run_here
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.objectstore.timed import MAX_HANGING_COUNT, TimedObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.object_store_contract import ObjectStoreContract

DEADLINE_S = 30.0


class TestTimedObjectStore(ObjectStoreContract):
    """In time it is a store like any other."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        return TimedObjectStore(MemoryObjectStore(ManualClock()), ManualClock(), run_here, DEADLINE_S)


class PassingClock(ManualClock):
    """Time passes while a thread waits."""

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        assert timeout_s is not None
        self.advance(round(timeout_s * 1000))
        return False


class Bench:
    """A store whose requests hang until the test ends them."""

    def __init__(self) -> None:
        self.clock = PassingClock()
        self.inner = MemoryObjectStore(self.clock)
        self.hanging: list[Callable[[], None]] = []
        self.store = TimedObjectStore(self.inner, self.clock, self.hanging.append, DEADLINE_S)

    def give_up(self, request: Callable[[], object]) -> StoreUnavailableError:
        with pytest.raises(StoreUnavailableError) as caught:
            request()
        return caught.value


def test_a_request_without_an_answer_is_given_up_and_may_land_later() -> None:
    bench = Bench()
    error = bench.give_up(lambda: bench.store.put("key", b"late", if_absent=True))
    assert error.retriable
    assert error.fields["key"] == "key"
    assert bench.clock.monotonic_s() == DEADLINE_S
    with pytest.raises(ObjectNotFoundError):
        bench.inner.get("key")
    bench.hanging.pop()()
    assert bench.inner.get("key").data == b"late"


REQUESTS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("key"),
    "get_if_changed": lambda store: store.get_if_changed("key", "etag"),
    "put": lambda store: store.put("key", b""),
}


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)
def test_requests_that_hang_are_bounded_for_each_object(request_of: Callable[[ObjectStore], object]) -> None:
    bench = Bench()
    for _ in range(MAX_HANGING_COUNT):
        bench.give_up(lambda: request_of(bench.store))
    before_s = bench.clock.monotonic_s()
    assert bench.give_up(lambda: request_of(bench.store)).fields["hanging"] == MAX_HANGING_COUNT
    assert bench.clock.monotonic_s() == before_s, "it does not wait"
    assert len(bench.hanging) == MAX_HANGING_COUNT
    # Another object has requests of its own, and one that ends makes room.
    bench.give_up(lambda: bench.store.get("other"))
    bench.hanging.pop(0)()
    assert "hanging" not in bench.give_up(lambda: request_of(bench.store)).fields


def test_a_given_up_request_keeps_its_error_to_itself() -> None:
    bench = Bench()
    bench.give_up(lambda: bench.store.get("missing"))
    bench.hanging.pop()()
    assert bench.hanging == []
