"""The registry of passes: the state of each, and which runs have a line in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import pytest

from stratalog.base.errors import (
    LogStoreError,
    NotOwnerError,
    StoppingError,
    StoreNotUsableError,
    StoreUnavailableError,
)
from stratalog.server.background.pass_outcome import NOTHING, Backlog, PassOutcome
from stratalog.server.background.pass_registry import MAX_ERROR_LENGTH, PassRegistry, PassStatus
from stratalog.testing.manual_clock import ManualClock

BEGIN_MS = ManualClock().now_ms()


class Bench:
    """A pass that a test lets run. A turn takes 100 ms, and 900 ms pass until the next one."""

    def __init__(
        self, caplog: pytest.LogCaptureFixture, measure: Callable[[], Backlog] | None = None
    ) -> None:
        caplog.set_level(logging.DEBUG, "stratalog.server.background.pass_registry")
        self._caplog = caplog
        self.clock = ManualClock()
        self.passes = PassRegistry(self.clock)
        self.result: PassOutcome | Exception | None = None
        self.task = self.passes.task("upload", self._work, measure)

    def _work(self) -> PassOutcome | None:
        self.clock.advance(100)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def run(self, result: PassOutcome | Exception | None) -> list[int]:
        """Let the pass run with this result; returns the levels of its lines above DEBUG."""
        self.result = result
        self._caplog.clear()
        self.task()
        self.clock.advance(900)
        assert all(isinstance(one.args, tuple) and one.args[0] == "upload" for one in self._caplog.records)
        return [one.levelno for one in self._caplog.records if one.levelno > logging.DEBUG]

    @property
    def status(self) -> PassStatus:
        [found] = self.passes.statuses()
        return found


def failed(*failures: str, done: Mapping[str, int] = NOTHING) -> PassOutcome:
    return PassOutcome(done, failures=failures)


def test_a_pass_is_known_before_its_first_run(caplog: pytest.LogCaptureFixture) -> None:
    assert Bench(caplog).status == PassStatus("upload")


def test_a_run_with_work_has_a_line_and_an_idle_one_has_none(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    assert bench.run(PassOutcome({"objects": 2, "bytes": 10})) == [logging.INFO]
    assert bench.run(PassOutcome({"objects": 0})) == []
    assert bench.run(None) == []
    status = bench.status
    assert (status.last_work_ms, status.last_success_ms) == (BEGIN_MS + 100, BEGIN_MS + 2100)
    assert (status.last_begin_ms, status.last_end_ms) == (BEGIN_MS + 2000, BEGIN_MS + 2100)
    assert (status.turn_count, status.failed_turn_count) == (3, 0)
    assert status.last_outcome == PassOutcome({"objects": 0})
    assert bench.run(PassOutcome({"objects": 1})) == [logging.INFO]
    assert bench.status.total_done == {"objects": 3, "bytes": 10}


def test_a_failure_has_a_line_when_it_begins_and_one_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    lines = [bench.run(StoreUnavailableError("away", key=number)) for number in range(40)]
    assert lines == [[logging.WARNING], *[[]] * 39]
    status = bench.status
    assert (status.consecutive_failure_count, status.failed_turn_count) == (40, 40)
    assert status.last_success_ms == -1
    assert "away" in status.last_error
    assert bench.run(StoreNotUsableError("no bucket")) == [logging.WARNING], "it changes"
    assert bench.run(StoreUnavailableError("away")) == [], "this one has lasted"
    assert bench.run(PassOutcome()) == [logging.INFO]
    [again] = [one for one in caplog.records if one.levelno == logging.INFO]
    assert again.args == ("upload", 42, pytest.approx(42.0))
    status = bench.status
    assert (status.consecutive_failure_count, status.last_error) == (0, "")
    assert bench.run(StoreUnavailableError("away")) == [logging.WARNING], "it begins anew"


def test_what_failed_and_is_left_alone_since_does_not_work_again(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    bench.run(PassOutcome(refusals={"kept-by-store": 6}, failures=("locked",)))
    assert bench.run(PassOutcome(refusals={"kept-by-store": 6, "pinned": 0})) == [logging.INFO]
    [line] = [one.getMessage() for one in caplog.records if one.levelno == logging.INFO]
    assert line == "upload goes on after 1 failures in 1 s, without what is refused: 6 kept-by-store"
    assert bench.status.consecutive_failure_count == 0


def test_failures_of_partitions_are_logged_each_once_while_they_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(caplog)
    runs: tuple[tuple[str, ...], ...] = (("a",), ("a", "b", "b"), ("b",), (), ("a",), ("a",))
    lines = [bench.run(failed(*met)).count(logging.WARNING) for met in runs]
    assert lines == [1, 1, 0, 0, 1, 0]
    assert bench.status.consecutive_failure_count == 2
    assert bench.run(failed("a", done={"objects": 1})) == [logging.INFO], "what it did is said"


def test_a_defect_has_a_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    assert bench.run(ValueError("x" * 600)) == [logging.ERROR]
    assert caplog.records[-1].exc_info is not None
    assert bench.run(ValueError("x" * 600)) == []
    assert len(bench.status.last_error) == MAX_ERROR_LENGTH


def test_refusals_are_said_when_their_reasons_change(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    results = ({"clock": 3}, {"clock": 4}, {"clock": 4, "pinned": 1}, {"clock": 0}, {"clock": 1})
    lines = [bench.run(PassOutcome(refusals=refusals)) for refusals in results]
    assert lines == [[logging.INFO], [], [logging.INFO], [], [logging.INFO]]
    assert bench.status.total_refusals == {"clock": 12, "pinned": 1}
    assert bench.status.consecutive_failure_count == 0, "a refusal is no failure"


def test_the_backlog_is_measured_after_a_failure_too(caplog: pytest.LogCaptureFixture) -> None:
    backlog = Backlog(1, 10)
    bench = Bench(caplog, lambda: backlog)
    bench.run(PassOutcome())
    assert bench.status.backlog == Backlog(1, 10)
    backlog = Backlog(2, 20)
    bench.run(StoreUnavailableError("away"))
    assert bench.status.backlog == Backlog(2, 20)


def test_a_backlog_without_a_measure_is_that_of_the_last_outcome(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    bench.run(PassOutcome(backlog=Backlog(3)))
    bench.run(StoreUnavailableError("away"))
    assert bench.status.backlog == Backlog(3)


def test_a_stop_is_neither_a_success_nor_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    assert bench.run(StoppingError("the server stops")) == []
    status = bench.status
    assert (status.turn_count, status.failed_turn_count, status.last_success_ms) == (0, 0, -1)
    assert status.last_end_ms == BEGIN_MS + 100


def test_a_pass_that_waits_is_neither_a_success_nor_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """A shard that rested after a long plan made a compaction that fails look like one that works."""
    bench = Bench(caplog)
    bench.run(PassOutcome(failures=("orders-0 cannot be read",), backlog=Backlog(1, 10)))
    before = bench.status
    assert bench.run(PassOutcome(is_postponed=True)) == []
    after = bench.status
    assert after.last_end_ms > before.last_end_ms
    assert after == before._replace(last_begin_ms=after.last_begin_ms, last_end_ms=after.last_end_ms)


@pytest.mark.parametrize("error", [NotOwnerError("another"), StoreUnavailableError("away"), ValueError("x")])
def test_an_operation_gets_the_error_and_counts(caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    bench = Bench(caplog)
    with pytest.raises(type(error)), bench.passes.turn("upload"):
        raise error
    assert bench.status.consecutive_failure_count == 1
    with bench.passes.turn("upload") as one:
        one.outcome = PassOutcome({"objects": 1})
    assert (bench.status.consecutive_failure_count, bench.status.total_done) == (0, {"objects": 1})


def test_runs_at_the_same_time_count_from_the_oldest(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    with bench.passes.turn("upload"):
        bench.clock.advance(5)
        with bench.passes.turn("upload"):
            assert (bench.status.running_since_ms, bench.status.last_begin_ms) == (BEGIN_MS, BEGIN_MS + 5)
        assert bench.status.running_since_ms == BEGIN_MS
    assert bench.status.running_since_ms == -1


def test_a_pass_that_is_not_known_has_never_run(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    assert bench.passes.status("compaction") == PassStatus("compaction")
    assert [one.name for one in bench.passes.statuses()] == ["upload"]


def test_a_backlog_that_cannot_be_measured_keeps_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    def measure() -> Backlog:
        raise LogStoreError("the disk failed")

    bench = Bench(caplog, measure)
    assert bench.run(PassOutcome({"objects": 1}, backlog=Backlog(4))) == [logging.INFO]
    assert bench.status.backlog == Backlog(4)
