"""A pass over the shards of a server: each shard by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from stratalog.base.errors import NotOwnerError, StoppingError, StoreUnavailableError
from stratalog.server.background.pass_rounds import (
    HANG_S,
    MAX_AT_WORK_COUNT,
    PATIENCE_S,
    PassRounds,
    hanging_shard,
)
from stratalog.testing.manual_clock import ManualClock


class PassingClock(ManualClock):
    """Time passes while a thread waits."""

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        assert timeout_s is not None
        self.advance(round(timeout_s * 1000))
        return False


class Bench:
    """Rounds whose work is held until the test runs it, or runs at once."""

    def __init__(self, *, is_held: bool = False) -> None:
        self.clock = PassingClock()
        self.held: list[Callable[[], None]] = []
        self.is_held = is_held
        self.rounds = PassRounds[int](
            self.clock, lambda run: self.held.append(run) if self.is_held else run(), hanging_shard
        )

    def impatient(self, works: dict[int, Callable[[], str]]) -> tuple[dict[int, str], dict[int, str]]:
        """A round in which no shard ends by itself; returns results and messages of failures."""
        begin_s = self.clock.monotonic_s()
        done = self.rounds.run("upload", works)
        assert self.clock.monotonic_s() == begin_s + PATIENCE_S
        return dict(done.results), {number: error.message for number, error in done.failures.items()}


def failing(error: Exception) -> Callable[[], str]:
    def fail() -> str:
        raise error

    return fail


def test_a_failing_shard_is_reported_beside_the_others() -> None:
    error = StoreUnavailableError("away")
    done = Bench().rounds.run("upload", {0: lambda: "zero", 1: failing(error), 2: lambda: "two"})
    assert done.results == {0: "zero", 2: "two"}
    assert done.failures == {1: error}


def test_the_error_is_raised_if_all_shards_fail_and_where_there_is_one() -> None:
    works = {0: failing(StoreUnavailableError("a")), 1: failing(StoreUnavailableError("b"))}
    with pytest.raises(StoreUnavailableError) as caught:
        Bench().rounds.run("upload", works)
    assert caught.value.message == "a"
    with pytest.raises(NotOwnerError):
        Bench(is_held=True).rounds.run("upload", {3: failing(NotOwnerError("other"))})


@pytest.mark.parametrize("error", [StoppingError("stop"), ZeroDivisionError("a defect")])
def test_a_stop_and_a_defect_end_the_round(error: Exception) -> None:
    with pytest.raises(type(error)):
        Bench().rounds.run("upload", {0: lambda: "zero", 1: failing(error)})


def test_a_shard_at_work_is_left_to_it_and_reported_later() -> None:
    bench = Bench(is_held=True)
    works: dict[int, Callable[[], str]] = {0: lambda: "zero", 1: lambda: "one"}
    assert bench.impatient(works) == ({}, {})
    [first, second] = bench.held
    second()
    # The first shard is still at work: it does not begin again, the other one does.
    assert bench.impatient(works) == ({1: "one"}, {})
    assert len(bench.held) == 3
    first()
    bench.held[2]()
    assert bench.impatient(works) == ({0: "zero", 1: "one"}, {})


def test_a_shard_that_ends_twice_before_a_report_loses_none() -> None:
    """It ended between two rounds, and once more in the second one."""
    bench = Bench(is_held=True)
    values = iter(range(6))
    works = {number: lambda: str(next(values)) for number in (0, 1)}
    bench.impatient(works)
    while bench.held:
        bench.held.pop(0)()
    bench.is_held = False
    assert bench.rounds.run("upload", works).results == {0: "0", 1: "1"}
    bench.clock.advance(round(HANG_S * 1000))
    done = bench.rounds.run("upload", works)
    assert (done.results, done.failures) == ({0: "2", 1: "3"}, {})


def test_a_turn_that_outlasts_its_round_is_begun_again_in_the_next() -> None:
    bench = Bench(is_held=True)
    begun: list[int] = []

    def work() -> str:
        begun.append(1)
        return "done"

    works: dict[int, Callable[[], str]] = {0: work, 1: work}
    for round_count in range(1, 6):
        bench.impatient(works)
        while bench.held:
            bench.held.pop(0)()
        assert len(begun) == 2 * round_count


def test_a_shard_that_hangs_is_a_failure_until_it_ends() -> None:
    bench = Bench(is_held=True)
    works: dict[int, Callable[[], str]] = {0: lambda: "zero", 1: lambda: "one"}
    bench.impatient(works)
    bench.held.pop()()
    bench.clock.advance(round(HANG_S * 1000))
    results, failures = bench.impatient(works)
    assert results == {1: "one"}
    assert failures.keys() == {0}
    bench.held.pop(0)()
    results, failures = bench.impatient(works)
    assert results == {0: "zero"}
    assert failures == {}


def test_one_shard_is_not_begun_beside_itself() -> None:
    bench = Bench(is_held=True)
    bench.impatient({0: lambda: "zero", 1: lambda: "one"})
    # Another server took shard 1 over; of the other one the work goes on.
    assert bench.impatient({0: lambda: "again"}) == ({}, {})
    assert len(bench.held) == 2


def test_a_few_shards_are_at_work_and_all_get_their_turn() -> None:
    bench = Bench(is_held=True)
    begun: list[int] = []

    def work(number: int) -> Callable[[], str]:
        def run() -> str:
            begun.append(number)
            return str(number)

        return run

    works = {number: work(number) for number in range(2 * MAX_AT_WORK_COUNT)}
    for _ in range(2):
        bench.impatient(works)
        assert len(bench.held) == MAX_AT_WORK_COUNT
        while bench.held:
            bench.held.pop()()
    assert sorted(begun) == sorted(works)
    bench.rounds.run("compaction", works, 1)
    assert len(bench.held) == 1
