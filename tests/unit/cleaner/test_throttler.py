"""How much is moved in how much time, by a clock that the test moves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from stratalog.cleaner.throttler import AHEAD_S, Throttler
from stratalog.testing.manual_clock import ManualClock
from tests.support.cleaner.cleaner_machine import WaitingClock
from tests.support.cleaner.hasty_clock import HastyClock

RATE = 1_000_000


def go_on() -> None:
    """No caller stops it."""


def test_without_a_bound_no_thread_waits() -> None:
    throttler = Throttler(ManualClock())
    for _ in range(100):
        throttler.take(1 << 40, go_on)


@pytest.mark.parametrize("chunk_bytes", [300, 10_000, 333_333, 4_000_000])
def test_the_rate_is_kept(chunk_bytes: int) -> None:
    clock = HastyClock()
    throttler = Throttler(clock, RATE)
    count = 20_000_000 // chunk_bytes
    for number in range(count):
        throttler.take(chunk_bytes, go_on)
        # At no moment is more moved than time has paid for, but for the chunk that is being moved.
        assert number * chunk_bytes <= RATE * (clock.elapsed_ms / 1000 + 0.002)
    assert clock.elapsed_ms == pytest.approx((count - 1) * chunk_bytes / RATE * 1000, abs=3)


def test_idle_time_pays_for_little() -> None:
    clock = HastyClock()
    throttler = Throttler(clock, RATE)
    clock.advance(3_600_000)
    begun_ms = clock.elapsed_ms
    moved_bytes = 0
    while clock.elapsed_ms - begun_ms < 1000:
        throttler.take(1000, go_on)
        moved_bytes += 1000
    assert moved_bytes == pytest.approx(RATE * (1 + AHEAD_S), abs=2000)


def test_another_rate_holds_at_once() -> None:
    clock = WaitingClock()
    throttler = Throttler(clock, RATE)
    throttler.take(60 * RATE, go_on)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(throttler.take, 1, go_on)
        clock.until_waiting()
        clock.advance(30_000)
        assert not waiting.done()
        throttler.set_max_bytes_per_s(30 * RATE)
        clock.until_waiting()
        clock.advance(1_000)
        waiting.result(30)
    assert throttler.max_bytes_per_s == 30 * RATE


def test_a_caller_that_may_not_wait_learns_the_time() -> None:
    clock = ManualClock()
    throttler = Throttler(clock, RATE)
    assert throttler.wait_s() == 0
    throttler.owe(RATE)
    assert throttler.wait_s() == pytest.approx(1)
    clock.advance(999)
    assert throttler.wait_s() == pytest.approx(0.001)
    clock.advance(1)
    assert throttler.wait_s() == 0
