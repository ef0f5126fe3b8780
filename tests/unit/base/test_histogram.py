"""Histograms count each value in one bucket, and their sum."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.histogram import (
    COUNT_BOUNDS,
    DURATION_BOUNDS_S,
    SIZE_BOUNDS_BYTES,
    Histogram,
)


@given(st.lists(st.one_of(st.sampled_from(DURATION_BOUNDS_S), st.floats(0, 100))))
def test_each_value_is_counted_below_the_first_bound_that_it_does_not_exceed(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    found = histogram.counts()
    for index, bound in enumerate(DURATION_BOUNDS_S):
        assert sum(found.counts[: index + 1]) == sum(value <= bound for value in values)
    assert sum(found.counts) == len(values)
    assert found.total == pytest.approx(sum(values))


def test_counts_of_another_histogram_are_added() -> None:
    one, other = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    for value in (0.5, 2.5):
        one.add(value)
    other.add(1.5)
    other.add_counts(one.counts())
    assert other.counts() == ((1.0, 2.0), (1, 1, 1), 4.5)
    assert one.counts() == ((1.0, 2.0), (1, 0, 1), 3.0)
    with pytest.raises(AssertionError):
        one.add_counts(Histogram().counts())


@pytest.mark.parametrize("bounds", [DURATION_BOUNDS_S, COUNT_BOUNDS, SIZE_BOUNDS_BYTES])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))
