"""The benchmark of the log cleaner runs: at sizes that say nothing of speed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import log_cleaner
from lock_holds import LockHolds, ProbeMissingError
from log_cleaner import (
    LOADS,
    beside_a_clean,
    fill,
    fill_with_transactions,
    in_memory,
    lock_held,
    whole_clean,
    windows,
)
from log_engine import MIB
from stratalog.record.batch import decode_all


def test_windows_are_of_batches_that_follow_each_other() -> None:
    first, second = windows(LOADS[0], 2 * MIB)
    offsets = [record.offset for record in decode_all(first + second)]

    assert offsets == list(range(len(offsets)))
    assert 0.9 * MIB < len(first) <= MIB


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_everything_is_measured(load: log_cleaner.Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_cleaner, "APPENDS", 20)
    rows = [in_memory(load, MIB), *whole_clean(load, 2 * MIB, None), *beside_a_clean(load, 2 * MIB)]

    assert len({row.work for row in rows}) == len(rows) == 4
    assert all(row.ours > 0 for row in rows)


def test_holds_of_the_lock_are_those_of_a_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    longest_s = iter([0.002, 0.0005, 0.001])

    def holds_of(work: Callable[[], object]) -> LockHolds:
        work()
        return LockHolds([0.0001, next(longest_s)], [0.5])

    monkeypatch.setattr(log_cleaner, "holds_of", holds_of)
    (row,) = lock_held("transactions", lambda log: fill_with_transactions(log, LOADS[0], 20_000))

    assert row.ours == pytest.approx(2000)
    assert row.met


def test_without_probes_there_is_no_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def holds_of(_: object) -> LockHolds:
        raise ProbeMissingError("there is no perf")

    monkeypatch.setattr(log_cleaner, "holds_of", holds_of)

    assert list(lock_held("batches", lambda log: fill(log, LOADS[0], MIB))) == []
    assert "there is no perf" in capsys.readouterr().err
