"""Counts values by size, for metrics: how many were at most so large, and their sum.

The bounds are fixed, so that the counts of several histograms can be added: those of threads, of processes,
and those that a monitoring system has read at different times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

DURATION_BOUNDS_S = (
    *(0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Bounds for durations: from a call in memory to the longest wait of a fetch."""

COUNT_BOUNDS = tuple(float(1 << exponent) for exponent in range(0, 15, 2))
"""Bounds for numbers of things: 1 to 16,384."""

SIZE_BOUNDS_BYTES = tuple(float(256 << exponent) for exponent in range(0, 18, 2))
"""Bounds for sizes: 256 bytes to 16 MiB."""


class HistogramCounts(NamedTuple):
    """The values of a histogram at one time."""

    bounds: Sequence[float]
    counts: Sequence[int]
    """The values up to each bound and above the one before it, and at the end those above all bounds."""
    total: float
    """The sum of the values."""


class Histogram:
    """Counts values by size. One thread, or the holder of its owner's lock, adds; any thread may read."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float] = DURATION_BOUNDS_S) -> None:
        """`bounds` rise."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count a value. One that equals a bound is below it, as in Prometheus."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def add_counts(self, other: HistogramCounts) -> None:
        """Count the values of another histogram with the same bounds."""
        assert tuple(other.bounds) == tuple(self._bounds), "only equal bounds can be added"
        for index, count in enumerate(other.counts):
            self._counts[index] += count
        self._total += other.total

    def counts(self) -> HistogramCounts:
        """The values as of now. A value that is being added may be in one of the two and not in the other."""
        return HistogramCounts(self._bounds, tuple(self._counts), self._total)
