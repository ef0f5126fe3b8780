"""Quotas by a manual clock, and against a plain account of what was let through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import OverloadedError
from stratalog.server.access.access_policy import Principal, Quota
from stratalog.server.access.permissions import Permissions
from stratalog.server.access.quotas import MAX_WAIT_S, Quotas, Use
from stratalog.testing.manual_clock import ManualClock

NOTHING = Permissions((), frozenset())


def principal(name: str = "p", *, bytes_in: int | None = None, requests: int | None = None) -> Principal:
    return Principal(name, NOTHING, Quota(bytes_in_per_s=bytes_in, requests_per_s=requests))


def test_a_large_use_passes_and_those_behind_it_wait() -> None:
    clock = ManualClock()
    quotas = Quotas(clock)
    one = principal(bytes_in=100)
    assert quotas.charge(one, Use(bytes_in=300)) == 0.0
    assert quotas.charge(one, Use(bytes_in=100)) == pytest.approx(3.0)
    assert quotas.charge(one, Use(bytes_in=100)) == pytest.approx(4.0)
    assert quotas.charge(principal("other", bytes_in=100), Use(bytes_in=100)) == 0.0
    assert quotas.counts["p"].throttled_count == 2
    assert quotas.counts["p"].throttled_s == pytest.approx(7.0)


def test_a_wait_that_is_too_long_is_refused_and_not_charged() -> None:
    clock = ManualClock()
    quotas = Quotas(clock)
    one = principal(bytes_in=100)
    quotas.charge(one, Use(bytes_in=1000))
    for _ in range(3):
        with pytest.raises(OverloadedError) as refusal:
            quotas.charge(one, Use(bytes_in=1))
        assert refusal.value.fields == {"principal": "p", "quota": "bytes_in_per_s", "limit": 100}
        assert refusal.value.retry_delay_s == pytest.approx(10 - MAX_WAIT_S / 2)
    clock.advance(7_500)
    assert quotas.charge(one, Use(bytes_in=1)) == pytest.approx(2.5)


def test_what_is_saved_up_is_a_second_at_most() -> None:
    clock = ManualClock()
    quotas = Quotas(clock)
    one = principal(requests=10)
    quotas.charge(one, Use(requests=1))
    clock.advance(60_000)
    waits_s = [quotas.charge(one, Use(requests=1)) for _ in range(12)]
    assert waits_s[:11] == [0.0] * 11
    assert waits_s[11] == pytest.approx(0.1)


def test_the_fullest_of_several_limits_counts_and_a_missing_one_does_not() -> None:
    quotas = Quotas(ManualClock())
    one = principal(bytes_in=100, requests=1)
    quotas.charge(one, Use(bytes_in=50, bytes_out=1 << 40, requests=3))
    assert quotas.charge(one, Use(bytes_in=1, requests=0)) == pytest.approx(3.0)
    assert quotas.charge(one, Use(bytes_in=1)) == pytest.approx(0.51)


def test_a_reload_keeps_debts_and_forgets_principals() -> None:
    quotas = Quotas(ManualClock())
    quotas.charge(principal(bytes_in=100), Use(bytes_in=400))
    quotas.keep({"p": None})
    assert quotas.charge(principal(bytes_in=200), Use(bytes_in=0)) == pytest.approx(2.0)
    quotas.keep({})
    assert quotas.charge(principal(bytes_in=100), Use(bytes_in=0)) == 0.0
    assert quotas.counts == {}


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 2_000)), min_size=1, max_size=40),
)
def test_no_more_passes_than_the_limit_allows(limit: int, uses: list[tuple[int, int]]) -> None:
    """All that begins by any time is at most the limit times that time, a second's savings, and one use."""
    clock = ManualClock()
    quotas = Quotas(clock)
    one = principal(bytes_in=limit)
    start_s = clock.monotonic_s()
    passed: list[tuple[float, int]] = []
    for amount, pause_ms in uses:
        clock.advance(pause_ms)
        try:
            wait_s = quotas.charge(one, Use(bytes_in=amount))
        except OverloadedError:
            continue
        assert 0 <= wait_s <= MAX_WAIT_S
        passed.append((clock.monotonic_s() + wait_s, amount))
        begun = sum(done for _, done in passed[:-1])
        assert begun <= limit * (passed[-1][0] - start_s + 1) + max(done for _, done in passed) + 1e-3
