"""The benchmark of what the cleaner keeps from other threads runs: at sizes that say nothing of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cleaner_lock
import lock_holds
from lock_holds import ProbeMissingError
from log_engine import MIB

SCRIPT = """
 1.000000: PERF_RECORD_SWITCH IN
 1.000100: probe_stratalog_1:taken__return:
 1.000300:        probe_stratalog_1:let_go:
 1.000400: probe_stratalog_1:taken__return:
 1.000500: PERF_RECORD_SWITCH OUT preempt
 1.900000: PERF_RECORD_SWITCH IN
 1.900050:        probe_stratalog_1:let_go:
 1.900100:        probe_stratalog_1:let_go:
 1.900200: PERF_RECORD_SWITCH OUT
"""


@pytest.fixture(autouse=True)
def switch_interval() -> Iterator[None]:
    interval_s = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval_s)


def test_every_load_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    longest_s = iter([0.002, 0.0005, 0.001] * 10)

    def holds_of(work: Callable[[], object]) -> list[float]:
        work()
        return [0.0001, next(longest_s)]

    monkeypatch.setattr(cleaner_lock, "holds_of", holds_of)
    monkeypatch.setattr(cleaner_lock, "MIB", MIB // 24)
    rows = list(cleaner_lock.measure(quick=True))
    assert len({row.work for row in rows}) == len(rows) == 7
    assert all(row.ours == pytest.approx(2000) for row in rows)
    assert all(row.met for row in rows)


def test_time_off_the_processor_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"_TAKEN": "probe_stratalog_1:taken__return", "_LET_GO": "probe_stratalog_1:let_go"}
    for name, event in names.items():
        monkeypatch.setattr(lock_holds, name, event)

    def perf(*_arguments: str) -> str:
        return SCRIPT

    monkeypatch.setattr(lock_holds, "_perf", perf)
    assert lock_holds.read_holds(Path("recording")) == [pytest.approx(0.00015), pytest.approx(0.0002)]


def test_without_probes_there_is_no_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def holds_of(_: object) -> list[float]:
        raise ProbeMissingError("there is no perf")

    monkeypatch.setattr(cleaner_lock, "holds_of", holds_of)
    monkeypatch.setattr(cleaner_lock, "MIB", MIB // 24)
    assert list(cleaner_lock.measure(quick=True)) == []
    assert "there is no perf" in capsys.readouterr().err
