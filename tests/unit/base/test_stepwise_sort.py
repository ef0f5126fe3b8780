"""Sorting in steps against sorting at once."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.base.stepwise_sort import sorted_stepwise


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 1000, 20_003])
def test_values_come_as_sorted_gives_them(count: int) -> None:
    random = Random(count)
    values = [(random.randrange(100), random.randrange(100)) for _ in range(count)]
    assert list(sorted_stepwise(values, key=lambda value: value[0])) == sorted(
        values, key=lambda value: value[0]
    ), "stable, too"


def test_no_step_compares_many() -> None:
    """After the first value, each value costs a few comparisons, not a sort."""
    compared = 0

    class Counted(int):
        def __lt__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) < int(other)

    random = Random(1)
    values = [Counted(random.randrange(10**9)) for _ in range(5000)]
    found = sorted_stepwise(values, key=lambda value: value)
    worst = 0
    next(found)
    for _ in range(4999):
        before = compared
        next(found)
        worst = max(worst, compared - before)
    assert worst < 30
