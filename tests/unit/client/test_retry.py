"""Trying again, and giving up."""

from __future__ import annotations

import asyncio

import pytest

from stratalog.base.errors import (
    LogStoreError,
    OverloadedError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from stratalog.client.retry import Patience, RetryPolicy, retrying

QUICK = RetryPolicy(deadline_s=5.0, first_pause_s=0.0001, max_pause_s=0.0002)


class Flaky:
    """Fails as often as told, then succeeds."""

    def __init__(self, failures: int, error: LogStoreError) -> None:
        self.failures = failures
        self.error = error
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return "done"


async def test_a_retriable_failure_is_tried_again() -> None:
    flaky = Flaky(3, StoreUnavailableError("away"))
    assert await retrying(QUICK, flaky) == "done"
    assert flaky.calls == 4


async def test_any_other_failure_is_raised_at_once() -> None:
    flaky = Flaky(3, UnknownTopicOrPartitionError("no such topic"))
    with pytest.raises(UnknownTopicOrPartitionError):
        await retrying(QUICK, flaky)
    assert flaky.calls == 1


async def test_a_change_is_tried_again_only_after_what_changed_nothing() -> None:
    refused = Flaky(3, OverloadedError("no room"))
    assert await retrying(QUICK, refused, after=OverloadedError) == "done"
    unknown = Flaky(3, StoreUnavailableError("away"))
    with pytest.raises(StoreUnavailableError):
        await retrying(QUICK, unknown, after=OverloadedError)
    assert (refused.calls, unknown.calls) == (4, 1)


async def test_the_deadline_ends_the_tries() -> None:
    flaky = Flaky(1_000_000, StoreUnavailableError("away"))
    with pytest.raises(StoreUnavailableError):
        await retrying(RetryPolicy(deadline_s=0.02, first_pause_s=0.001, max_pause_s=0.002), flaky)
    assert flaky.calls > 1


def test_pauses_double_up_to_their_bound() -> None:
    policy = RetryPolicy(first_pause_s=1.0, max_pause_s=4.0)
    for attempt, whole_s in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 4.0), (500, 4.0)):
        assert whole_s / 2 <= policy.pause_s(attempt) <= whole_s


def steady(deadline_s: float) -> Patience:
    return Patience(RetryPolicy(deadline_s=deadline_s, first_pause_s=1.0, max_pause_s=2.0))


def test_patience_runs_from_the_first_failure_in_a_row() -> None:
    patience = steady(10.0)
    for now_s in (1000.0, 1004.0, 1008.0):
        assert patience.next_pause_s(now_s) is not None
    assert patience.next_pause_s(1009.5) is None
    patience.succeed()
    assert patience.next_pause_s(1009.5) is not None


def test_what_worked_for_longer_than_any_pause_worked() -> None:
    patience = steady(10.0)
    assert patience.next_pause_s(0.0) is not None
    patience.begin(5.0)
    assert patience.next_pause_s(100.0) is not None
    assert patience.failure_count == 1


def test_what_breaks_at_once_again_and_again_uses_patience_up() -> None:
    patience = steady(10.0)
    for now_s in (0.0, 3.0, 6.0):
        assert patience.next_pause_s(now_s) is not None
        patience.begin(now_s + 1.5)
    assert patience.next_pause_s(9.9) is not None, "this one stood for 2.4 s"
    patience.begin(18.0)
    assert patience.next_pause_s(19.5) is None


def test_no_patience_means_one_attempt() -> None:
    assert steady(0.0).next_pause_s(1000.0) is None


async def test_no_pause_is_shorter_than_the_server_asks_for() -> None:
    error = StoreUnavailableError("away")
    error.retry_delay_s = 0.03
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    assert await retrying(QUICK, Flaky(2, error)) == "done"
    assert loop.time() - begin_s >= 0.06
    # The deadline still holds.
    error.retry_delay_s = QUICK.deadline_s + 1
    with pytest.raises(StoreUnavailableError):
        await retrying(QUICK, Flaky(2, error))
    patience = Patience(QUICK)
    assert patience.next_pause_s(0.0, 0.5) == 0.5
    assert patience.next_pause_s(0.0, QUICK.deadline_s + 1) is None
    assert (patience.next_pause_s(0.0) or 0) < 0.5
