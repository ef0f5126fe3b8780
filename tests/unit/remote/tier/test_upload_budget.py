"""Uploads of segments and of tails that have one limit, and their waits."""

from __future__ import annotations

import queue
import random
import threading
from functools import partial

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

    def send(self, budget: UploadBudget, size_bytes: int, shard: int = 0) -> int:
        """The milliseconds for which the bytes wait."""
        begin_ms = self.clock.elapsed_ms
        budget.take_bytes(shard, size_bytes, go_on)
        return self.clock.elapsed_ms - begin_ms

    def request(self, budget: UploadBudget) -> int:
        """The milliseconds for which a request waits."""
        begin_ms = self.clock.elapsed_ms
        budget.take_request(0, go_on)
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


def test_a_long_wait_looks_at_the_stop_each_second() -> None:
    """One request in 100 seconds, or bytes behind many of tails: a server that stops does not wait for it."""

    class StoppedError(Exception):
        """The server stops."""

    def stop() -> None:
        if budgets.clock.elapsed_ms > begin_ms + 3_000:
            raise StoppedError

    budgets = Budgets(HastyClock(), requests_per_s=0.01)
    budgets.segments.owe(size_bytes=100 * BYTES_PER_S, request_count=1)
    for take in (
        partial(budgets.segments.take_request, 0, stop),
        partial(budgets.segments.take_bytes, 0, 1, stop),
    ):
        begin_ms = budgets.clock.elapsed_ms
        with pytest.raises(StoppedError):
            take()
        assert budgets.clock.elapsed_ms <= begin_ms + 4_010


def test_tails_wait_for_tails() -> None:
    """So what segments owe is bounded, and they go on soon after the tails have ended."""
    budgets = Budgets(HastyClock())
    for number in range(20):
        assert budgets.send(budgets.tails, PIECE_BYTES) == pytest.approx(1_000 if number else 0, abs=2)
    assert budgets.send(budgets.segments, 1) == pytest.approx(1_000, abs=20)


@pytest.mark.parametrize("seed", range(20))
def test_both_and_all_shards_together_keep_to_the_limit(seed: int) -> None:
    chance = random.Random(seed)
    budgets = Budgets(HastyClock())
    sent_bytes = 0
    for _ in range(300):
        is_tail = chance.random() < 0.7
        size_bytes = TAIL_BYTES if is_tail else chance.choice([1_000, 300_000, PIECE_BYTES])
        budget = budgets.tails if is_tail else budgets.segments
        waited_ms = budgets.send(budget, size_bytes, chance.randrange(3))
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
        budgets.tails.take_bytes(0, TAIL_BYTES, stop)
    assert budgets.send(budgets.segments, 1) == pytest.approx(1_000, abs=2), "nothing is owed for it"


class QueueClock(ManualClock):
    """A clock that knows when threads wait by it. Thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Semaphore(0)

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        self.waits.release()
        return super().wait(condition, timeout_s)


def test_shards_take_turns() -> None:
    """The first one has five pieces to send before the others come."""
    clock, done = QueueClock(), queue.Queue[int]()
    budget = UploadBudget(clock)
    budget.limit(PIECE_BYTES, 1e18)
    for shard in (1, 2, 0):
        budget.take_bytes(shard, 1, go_on)
    budget.take_bytes(0, PIECE_BYTES, go_on)

    def send(shard: int) -> None:
        budget.take_bytes(shard, PIECE_BYTES, go_on)
        done.put(shard)

    shards = [0, 0, 0, 0, 0, 1, 1, 2]
    threads = [threading.Thread(target=send, args=[shard], daemon=True) for shard in shards]
    for thread in threads:
        thread.start()
        assert clock.waits.acquire(timeout=60)
    order: list[int] = []
    for _ in shards:
        # Time pays for one piece.
        clock.advance(1_000)
        order.append(done.get(timeout=60))
    assert order == [0, 1, 2, 0, 1, 0, 0, 0]


def test_a_call_that_gives_up_leaves_its_turn_to_others() -> None:
    class StoppedError(Exception):
        """The upload has ended."""

    stopped: list[int] = []

    def stop() -> None:
        stopped.append(1)
        raise StoppedError

    budgets = Budgets(HastyClock())
    budgets.send(budgets.segments, PIECE_BYTES, shard=1)
    for _ in range(2):
        with pytest.raises(StoppedError):
            budgets.segments.take_bytes(0, PIECE_BYTES, stop)
    assert len(stopped) == 2
    assert budgets.send(budgets.segments, 1, shard=1) == pytest.approx(1_000, abs=2)


def test_shards_divide_the_objects_on_their_way() -> None:
    budget = UploadBudget(HastyClock())
    assert budget.object_count(0, 4) == 4
    assert [budget.object_count(shard, 4) for shard in (1, 0)] == [2, 2]
    assert [budget.object_count(shard, 4) for shard in range(6)][-1] == 1, "one in any case"
    for shard in range(1, 6):
        budget.end_sending(shard)
    assert budget.object_count(0, 4) == 4
