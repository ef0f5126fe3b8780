"""The bounds that Spark's filters set for slices and indexes."""

from __future__ import annotations

import datetime as dt

import pytest

pytest.importorskip("pyspark")
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from stratalog.pipeline.source.row_filters import bounds_of
from stratalog.pipeline.source.scan_plan import NO_BOUNDS, RowBounds

LATE_MS = 1_700_000_000_002
LATE = dt.datetime.fromtimestamp(LATE_MS / 1000, dt.UTC)


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        (
            [EqualTo(("partition",), 0), GreaterThanOrEqual(("offset",), 2)],
            RowBounds(partitions=frozenset({0}), first_offset=2),
        ),
        (
            [In(("partition",), (1, None)), In(("offset",), (4, 2))],
            RowBounds(partitions=frozenset({1}), first_offset=2, end_offset=5),
        ),
        ([GreaterThanOrEqual(("timestamp",), LATE)], RowBounds(first_ms=LATE_MS)),
        ([LessThan(("timestamp",), LATE + dt.timedelta(microseconds=1))], RowBounds(last_ms=LATE_MS + 1)),
        (
            [LessThanOrEqual(("offset",), 7), GreaterThan(("offset",), 3)],
            RowBounds(first_offset=3, end_offset=8),
        ),
        ([EqualTo(("topic",), "t"), In(("topic",), ("t", "u"))], RowBounds(topics=frozenset({"t"}))),
        ([IsNotNull(("offset",)), EqualTo(("key",), b"k")], NO_BOUNDS),
    ],
)
def test_bounds_hold_for_each_row_of_the_filters(filters: list[Filter], bounds: RowBounds) -> None:
    assert bounds_of(filters) == bounds
