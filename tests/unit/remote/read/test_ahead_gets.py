"""Loads of read-ahead that are late: the reader that waits for one sends a second request."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from itertools import pairwise
from queue import Empty, SimpleQueue

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import StoreUnavailableError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.remote.read.ahead_gets import AheadGets
from stratalog.remote.read.hedged_gets import MIN_SAMPLE_COUNT, HedgedGets
from stratalog.remote.read.range_cache import CachedRange, RangeCache
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.store_faults import Operation
from tests.support.gate import Gate

BODY = bytes(range(200))
NORMAL_S = 0.02


class Late:
    """A cache whose read-ahead stands still at a gate, and whose waits end late as the test says. Each test
    has one."""

    def __init__(self, *, is_late: bool, hedge_percent: int = 50) -> None:
        self.clock = ManualClock()
        self.gate = Gate()
        self.failure: Exception | None = None
        self.rivals: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.is_waiting = threading.Event()
        self._is_late = is_late
        self._held = threading.local()
        store = MemoryObjectStore(self.clock)
        store.put("k", BODY)
        faulty = FaultyObjectStore(store, random.Random(0), before=self._before)
        self.gets = HedgedGets(faulty, self.clock, self.rivals.put, hedge_percent, least_delay_ms=5)
        for _ in range(MIN_SAMPLE_COUNT):
            self.gets.get_alone("k", 0, 100)
        # The reader waits by itself, in the time of the test.
        ahead = AheadGets(self.gets, self, self.rivals.put)
        self.cache = RangeCache(10_000, self.gets.get, None, ahead)

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def monotonic_s(self) -> float:
        return self.clock.monotonic_s()

    def sleep(self, duration_s: float) -> None:
        self.clock.sleep(duration_s)

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        self.is_waiting.set()
        if self._is_late and timeout_s is not None:
            return False
        return SystemClock().wait(condition, 30)

    def _before(self, _: Operation) -> None:
        if not getattr(self._held, "is_ahead", False):
            self.clock.advance(round(NORMAL_S * 1000))
        else:
            self.gate.pass_through()
            if self.failure is not None:
                raise self.failure

    @contextmanager
    def reading_ahead(self, *ends: int) -> Generator[CachedRange]:
        """A thread that loads [0, 100), and on up to these ends, and stands still at the gate; it has ended
        behind the block."""
        ranges: list[CachedRange] = []
        for start, end in pairwise((0, 100, *ends)):
            reserved = self.cache.reserve_ahead("k", start, end)
            assert reserved is not None
            ranges.append(reserved)
        self.gate.close()

        def load() -> None:
            self._held.is_ahead = True
            if self.failure is None:
                self.cache.load_ahead(ranges)
                return
            with pytest.raises(StoreUnavailableError):
                self.cache.load_ahead(ranges)

        thread = threading.Thread(target=load)
        thread.start()
        assert self.gate.is_reached.wait(30)
        try:
            yield ranges[-1]
        finally:
            self.gate.open()
            thread.join(30)
        assert not thread.is_alive()


def reader_of(late: Late, found: list[bytes]) -> threading.Thread:
    thread = threading.Thread(target=lambda: found.append(late.cache.get("k", 10, 100).data))
    thread.start()
    return thread


@pytest.mark.parametrize("failure", [None, StoreUnavailableError("cut off")])
def test_a_late_load_gets_a_rival_and_ends_without_effect(failure: Exception | None) -> None:
    late = Late(is_late=True)
    late.failure = failure
    found: list[bytes] = []
    with late.reading_ahead() as one:
        reader = reader_of(late, found)
        late.rivals.get(timeout=30)()
        reader.join(30)
        assert found == [BODY[:100]], "it does not wait for the first request"
    assert one.data == BODY[:100]
    assert (late.gets.stats.hedge_count, late.gets.stats.hedge_won_count) == (1, 1)
    assert late.cache.find_loaded("k", 50) is one, "a failure of the late one is none of its readers"
    late.cache.check()


def test_a_load_that_ends_before_its_rival_counts() -> None:
    late = Late(is_late=True)
    found: list[bytes] = []
    with late.reading_ahead():
        reader = reader_of(late, found)
        rival = late.rivals.get(timeout=30)
    reader.join(30)
    assert found == [BODY[:100]]
    rival()
    assert (late.gets.stats.hedge_count, late.gets.stats.hedge_won_count) == (1, 0)
    late.cache.check()


def test_a_load_that_fails_before_its_rival_is_loaded_again_by_its_reader() -> None:
    late = Late(is_late=True)
    late.failure = StoreUnavailableError("cut off")
    found: list[bytes] = []
    with late.reading_ahead() as one:
        reader = reader_of(late, found)
        rival = late.rivals.get(timeout=30)
    # The threads of the test run the reader's own request, too.
    while reader.is_alive():
        with suppress(Empty):
            late.rivals.get(timeout=0.1)()
    assert found == [BODY[10:100]]
    rival()
    assert late.cache.find_loaded("k", 50) is not one
    late.cache.check()


@pytest.mark.parametrize(("is_late", "hedge_percent"), [(False, 50), (True, 0)])
def test_a_load_in_time_gets_no_rival_and_none_is_sent_without_a_share(
    is_late: bool, hedge_percent: int
) -> None:
    late = Late(is_late=is_late, hedge_percent=hedge_percent)
    found: list[bytes] = []
    with late.reading_ahead():
        reader = reader_of(late, found)
        assert late.is_waiting.wait(30)
    reader.join(30)
    assert found == [BODY[:100]]
    assert late.rivals.empty()
    assert late.gets.stats.hedge_count == 0
    late.cache.check()


def test_a_load_that_began_long_ago_is_late_at_once() -> None:
    late = Late(is_late=False)
    found: list[bytes] = []
    with late.reading_ahead():
        late.clock.advance(60_000)
        reader = reader_of(late, found)
        late.rivals.get(timeout=30)()
        reader.join(30)
        assert found == [BODY[:100]]
    late.cache.check()


def test_a_reader_of_a_later_range_of_a_late_request_gets_a_rival_for_this_range() -> None:
    late = Late(is_late=True)
    found: list[bytes] = []
    with late.reading_ahead(127) as one:
        reader = threading.Thread(target=lambda: found.append(late.cache.get("k", 110, 127).data))
        reader.start()
        late.rivals.get(timeout=30)()
        reader.join(30)
        assert found == [BODY[100:127]], "it does not wait for the first request"
    assert one.data == BODY[100:127]
    assert late.gets.stats.get_count == MIN_SAMPLE_COUNT + 2, "one request for both ranges, and a rival"
    assert late.cache.find_loaded("k", 50) is not None, "the first request goes on"
    late.cache.check()
