"""The turns of a compactor without a server: its health, its metrics, and the log."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Callable

import pytest

from stratalog.base.errors import InvalidConfigError, StoreUnavailableError
from stratalog.cli.store_access.standing_compactor import StandingCompactor, serving_metrics
from stratalog.cli.store_access.store_compaction import StoreRun
from stratalog.client import values
from stratalog.compaction.plan.job_time import MAX_JOB_S
from stratalog.server.background.pass_outcome import PassOutcome
from stratalog.testing.manual_clock import ManualClock

LOCAL = "127.0.0.1:0"


def healthy(compactor: StandingCompactor) -> tuple[bool, bool]:
    """Whether it is live, and ready."""
    live, ready = compactor.answer("/healthz"), compactor.answer("/readyz")
    assert live is not None
    assert ready is not None
    return live.status == "200 OK", ready.status == "200 OK"


def done(outcome: PassOutcome) -> StoreRun:
    return StoreRun(values.CompactionResult((), 0, ()), outcome)


def test_it_is_ready_while_turns_reach_the_store(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    compactor = StandingCompactor(ManualClock())
    assert healthy(compactor) == (True, False)
    assert compactor.answer("/metrics") is None
    run = done(PassOutcome({"jobs": 2}, {"left-alone": 1}, ("orders-0: damaged",)))
    assert compactor.turn(lambda _: run) == run
    assert healthy(compactor) == (True, True), "a job that has failed is no reason to start it again"
    assert "compaction: 2 jobs" in caplog.text
    assert "compaction failed, and is tried again: orders-0: damaged" in caplog.text

    def unavailable(_: object) -> StoreRun:
        raise StoreUnavailableError("the store does not answer")

    assert compactor.turn(unavailable) is None
    assert healthy(compactor) == (True, False)
    assert "the store does not answer" in caplog.text
    assert compactor.turn(lambda _: run) == run
    assert healthy(compactor) == (True, True)


def test_a_turn_without_a_step_for_as_long_as_a_job_may_take_hangs() -> None:
    clock = ManualClock()
    compactor = StandingCompactor(clock)
    seen: list[tuple[bool, bool]] = []

    def hanging(step: Callable[[], None]) -> StoreRun:
        for _ in range(2):
            clock.advance(1000 * MAX_JOB_S)
            seen.append(healthy(compactor))
            step()
        clock.advance(1000 * MAX_JOB_S + 1000)
        seen.append(healthy(compactor))
        step()
        seen.append(healthy(compactor))
        return done(PassOutcome())

    compactor.turn(lambda _: done(PassOutcome()))
    clock.advance(5000 * MAX_JOB_S)
    assert healthy(compactor) == (True, True), "it waits for the next turn"
    compactor.turn(hanging)
    assert seen == [(True, True), (True, True), (False, False), (True, True)]


def test_metrics_of_the_turns_are_served_before_the_store_is_open() -> None:
    compactor = StandingCompactor(ManualClock())
    with serving_metrics(compactor, LOCAL, is_insecure=False) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
            assert answer.status == 200
    assert 'stratalog_pass_turns_total{pass="compaction"} 0.0' in text
    assert "process_cpu_seconds_total" in text
    assert "stratalog_compaction" not in text


def test_an_address_for_others_has_to_be_wanted() -> None:
    compactor = StandingCompactor(ManualClock())
    with (
        pytest.raises(InvalidConfigError) as refused,
        serving_metrics(compactor, "0.0.0.0:0", is_insecure=False),
    ):
        pass
    assert refused.value.fields == {"name": "metrics-listen", "value": "0.0.0.0:0"}
    with serving_metrics(compactor, "0.0.0.0:0", is_insecure=True) as port:
        assert port
    with serving_metrics(compactor, "", is_insecure=False) as port:
        assert not port
