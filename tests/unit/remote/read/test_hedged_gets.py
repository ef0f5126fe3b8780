"""Second requests for slow ones: when they go out, which answer counts, and how many there are."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable

import pytest

from stratalog.base.errors import StoreUnavailableError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.remote.read.hedged_gets import MIN_SAMPLE_COUNT, HedgedGets
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.store_faults import Fault, Operation

BODY = bytes(range(200)) * 10
NORMAL_S, SLOW_S = 0.02, 1.0


class Network:
    """The threads and the time of requests: each takes as long as the script says, and a wait lets time pass
    to the next arrival. Not thread-safe: one test uses it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.durations_s: list[float] = []
        """The next requests take so long; later ones take `NORMAL_S`."""
        self.arrivals: list[tuple[float, Callable[[], None]]] = []
        self.sent_count = 0
        self.fails: list[bool] = []

    def run_beside(self, task: Callable[[], None]) -> None:
        duration_s = self.durations_s.pop(0) if self.durations_s else NORMAL_S
        self.sent_count += 1
        self.arrivals.append((self.clock.monotonic_s() + duration_s, task))
        self.arrivals.sort(key=lambda one: one[0])

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def monotonic_s(self) -> float:
        return self.clock.monotonic_s()

    def sleep(self, duration_s: float) -> None:
        self.clock.advance(max(1, math.ceil(duration_s * 1000 - 1e-6)))

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        arrival_s, task = self.arrivals[0]
        left_s = arrival_s - self.monotonic_s()
        if timeout_s is not None and timeout_s < left_s:
            self.sleep(timeout_s)
            return False
        self.sleep(max(0.0, left_s))
        self.arrivals.pop(0)
        condition.release()
        try:
            task()
        finally:
            condition.acquire()
        return True

    def after(self, _: Operation) -> None:
        """A hook of the store: requests on the caller's own thread take their time, and may fail."""
        if not self.sent_count:
            self.sleep(NORMAL_S)
        if self.fails and self.fails.pop(0):
            raise StoreUnavailableError("cut off")


def gets_of(network: Network, *, hedge_percent: int = 5) -> HedgedGets:
    store = MemoryObjectStore(network.clock)
    store.put("k", BODY)
    faulty = FaultyObjectStore(store, random.Random(0), after=network.after)
    return HedgedGets(faulty, network, network.run_beside, hedge_percent, least_delay_ms=5)


def learn(gets: HedgedGets) -> None:
    """Requests of the usual duration, as many as are needed for more."""
    for _ in range(MIN_SAMPLE_COUNT):
        assert gets.get("k", 10, 1000) == BODY[10:1000]


def test_a_slow_request_gets_a_rival_that_wins() -> None:
    network = Network()
    gets = gets_of(network)
    learn(gets)
    assert network.sent_count == 0, "too few samples for another thread"
    network.durations_s = [SLOW_S, NORMAL_S]
    begin_s = network.monotonic_s()
    assert gets.get("k", 5, 1000) == BODY[5:1000]
    assert network.monotonic_s() - begin_s == pytest.approx(2 * NORMAL_S)
    assert network.sent_count == 2
    assert (gets.stats.hedge_count, gets.stats.hedge_won_count) == (1, 1)
    # The abandoned request ends without a read of its body.
    _, abandoned = network.arrivals.pop()
    abandoned()


def test_the_first_answer_counts_also_if_it_is_that_of_the_slow_request() -> None:
    network = Network()
    gets = gets_of(network)
    learn(gets)
    network.durations_s = [2 * NORMAL_S, SLOW_S]
    begin_s = network.monotonic_s()
    assert gets.get("k", 5, 1000) == BODY[5:1000]
    assert network.monotonic_s() - begin_s == pytest.approx(2 * NORMAL_S)
    assert (gets.stats.hedge_count, gets.stats.hedge_won_count) == (1, 0)


@pytest.mark.parametrize("failures", [[True, False], [True, True]])
def test_a_failure_does_not_win(failures: list[bool]) -> None:
    network = Network()
    gets = gets_of(network)
    learn(gets)
    network.durations_s = [2 * NORMAL_S, 2 * NORMAL_S]
    network.fails = failures.copy()
    if all(failures):
        with pytest.raises(StoreUnavailableError):
            gets.get("k", 5, 1000)
    else:
        assert gets.get("k", 5, 1000) == BODY[5:1000]
    assert gets.stats.failed_count == all(failures)
    assert gets.stats.hedge_count == 1


def test_a_quick_failure_is_raised_without_a_second_request() -> None:
    network = Network()
    gets = gets_of(network)
    learn(gets)
    network.fails = [True]
    network.durations_s = [NORMAL_S / 2]
    with pytest.raises(StoreUnavailableError):
        gets.get("k", 5, 1000)
    assert network.sent_count == 1


def test_rivals_are_a_small_share_of_all_requests() -> None:
    """A store that becomes slower and slower as a whole gets no storm of them."""
    network = Network()
    gets = gets_of(network)
    learn(gets)
    for number in range(200):
        network.durations_s = [NORMAL_S * 1.05**number, SLOW_S * 1.05**number]
        gets.get("k", 0, 1000)
        network.arrivals.clear()
    assert 6 <= gets.stats.hedge_count <= 0.05 * gets.stats.get_count
    assert gets.stats.get_count == 200 + MIN_SAMPLE_COUNT


def test_without_a_share_no_request_gets_a_rival() -> None:
    network = Network()
    gets = gets_of(network, hedge_percent=0)
    learn(gets)
    gets.get("k", 0, 1000)
    assert network.sent_count == 0


def test_requests_of_another_size_do_not_tell() -> None:
    network = Network()
    gets = gets_of(network)
    learn(gets)
    gets.get("k", 0, 10)
    assert network.sent_count == 0


def test_pieces_come_by_one_request_and_tell_how_long_one_of_their_size_takes() -> None:
    network = Network()
    gets = gets_of(network)
    for _ in range(MIN_SAMPLE_COUNT):
        assert list(gets.pieces_alone("k", 10, [20, 1000])) == [BODY[10:20], BODY[20:1000]]
    assert network.sent_count == 0
    assert gets.stats.get_count == MIN_SAMPLE_COUNT
    assert gets.stats.size_bytes == MIN_SAMPLE_COUNT * 990
    assert gets.stats.duration_s == pytest.approx(MIN_SAMPLE_COUNT * NORMAL_S)
    assert gets.rival_delay_s(10) == gets.rival_delay_s(990) == pytest.approx(NORMAL_S)
    network.fails = [True]
    with pytest.raises(StoreUnavailableError):
        list(gets.pieces_alone("k", 10, [20, 1000]))
    assert gets.stats.failed_count == 1
    assert gets.stats.size_bytes == MIN_SAMPLE_COUNT * 990


def test_a_request_that_ends_early_has_failed_and_keeps_the_pieces_that_came() -> None:
    clock = ManualClock()
    store = MemoryObjectStore(clock)
    store.put("k", BODY)
    cut = FaultyObjectStore(store, random.Random(1), lambda _: Fault.IS_CUT_OFF)
    gets = HedgedGets(cut, clock, Network().run_beside, 5, least_delay_ms=5)
    pieces: list[bytes] = []
    with pytest.raises(StoreUnavailableError):
        pieces.extend(gets.pieces_alone("k", 0, [*range(100, 2000, 100), 2000]))
    assert 0 < len(pieces) < 20
    assert b"".join(pieces) == BODY[: 100 * len(pieces)]
    assert (gets.stats.get_count, gets.stats.failed_count, gets.stats.size_bytes) == (1, 1, 0)
