"""Uploads of segments and of tails that have one limit, and their waits."""

from __future__ import annotations

import random

import pytest

from stratalog.remote.tier.upload_budget import UploadBudget
from stratalog.testing.manual_clock import ManualClock
from tests.support.cleaner.hasty_clock import HastyClock

BYTES_PER_S = 8_000_000
PIECE_BYTES = 8_000_000
TAIL_BYTES = 20_000


def go_on() -> None:
    """No caller stops it."""


class Budgets:
    """The budgets of a shard. Used by one thread."""

    def __init__(self, clock: ManualClock, requests_per_s: float = 1e18) -> None:
        self.clock = clock
        self.segments = UploadBudget(clock)
        self.tails = UploadBudget(clock, payer=self.segments)
        for budget in (self.segments, self.tails):
            budget.limit(BYTES_PER_S, requests_per_s)

    def send(self, budget: UploadBudget, size_bytes: int) -> int:
        """The milliseconds for which the bytes wait."""
        begin_ms = self.clock.elapsed_ms
        budget.take_bytes(size_bytes, go_on)
        return self.clock.elapsed_ms - begin_ms

    def request(self, budget: UploadBudget) -> int:
        """The milliseconds for which a request waits."""
        begin_ms = self.clock.elapsed_ms
        budget.take_request(go_on)
        return self.clock.elapsed_ms - begin_ms


def test_tails_do_not_wait_for_segments_which_pay_for_them() -> None:
    budgets = Budgets(HastyClock())
    budgets.send(budgets.segments, PIECE_BYTES)
    assert budgets.send(budgets.tails, BYTES_PER_S // 2) == 0
    waited_ms = budgets.send(budgets.segments, PIECE_BYTES)
    assert waited_ms == pytest.approx(1_500, abs=2), "for the piece before it, and for the tail"


def test_requests_for_tails_do_not_wait_for_those_for_segments() -> None:
    budgets = Budgets(HastyClock(), requests_per_s=2)
    budgets.request(budgets.segments)
    assert budgets.request(budgets.tails) == 0
    assert budgets.request(budgets.segments) == pytest.approx(1_000, abs=2)


def test_tails_wait_for_tails() -> None:
    """So what segments owe is bounded, and they go on soon after the tails have ended."""
    budgets = Budgets(HastyClock())
    for number in range(20):
        assert budgets.send(budgets.tails, PIECE_BYTES) == pytest.approx(1_000 if number else 0, abs=2)
    assert budgets.send(budgets.segments, 1) == pytest.approx(1_000, abs=20)


@pytest.mark.parametrize("seed", range(20))
def test_both_together_keep_to_the_limit(seed: int) -> None:
    chance = random.Random(seed)
    budgets = Budgets(HastyClock())
    sent_bytes = 0
    for _ in range(300):
        is_tail = chance.random() < 0.7
        size_bytes = TAIL_BYTES if is_tail else chance.choice([1_000, 300_000, PIECE_BYTES])
        waited_ms = budgets.send(budgets.tails if is_tail else budgets.segments, size_bytes)
        if is_tail:
            assert waited_ms <= 1 + 1000 * TAIL_BYTES / BYTES_PER_S
        else:
            # Time has paid for all before it.
            assert sent_bytes <= BYTES_PER_S * (budgets.clock.elapsed_ms / 1000 + 0.002)
        sent_bytes += size_bytes


def test_a_wait_of_a_tail_ends_with_its_upload() -> None:
    class StoppedError(Exception):
        """The upload has ended."""

    def stop() -> None:
        raise StoppedError

    budgets = Budgets(HastyClock())
    budgets.send(budgets.tails, PIECE_BYTES)
    with pytest.raises(StoppedError):
        budgets.tails.take_bytes(TAIL_BYTES, stop)
    assert budgets.send(budgets.segments, 1) == pytest.approx(1_000, abs=2), "nothing is owed for it"
