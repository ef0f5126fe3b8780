"""The benchmark of the log cleaner runs: at sizes that say nothing of speed."""

from __future__ import annotations

import pytest

import log_cleaner
from log_cleaner import (
    LOADS,
    beside_a_clean,
    in_memory,
    whole_clean,
)
from log_engine import MIB


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_everything_is_measured(load: log_cleaner.Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_cleaner, "APPENDS", 20)
    rows = [in_memory(load, MIB), *whole_clean(load, 2 * MIB, None), *beside_a_clean(load, 2 * MIB)]

    assert len({row.work for row in rows}) == len(rows) == 4
    assert all(row.ours > 0 for row in rows)
