"""The bounds that a query's filters set, for the slices and indexes that a scan can leave out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from stratalog.pipeline.source.scan_plan import NO_BOUNDS, RowBounds

_MILLISECOND = dt.timedelta(milliseconds=1)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def bounds_of(filters: Iterable[Filter]) -> RowBounds:
    """Bounds that hold for each row for which all filters are true. They may be wider."""
    bounds = NO_BOUNDS
    for one in filters:
        match one:
            case EqualTo(attribute=(name,), value=value):
                bounds = _among(bounds, name, [value])
            case In(attribute=(name,), value=values):
                bounds = _among(bounds, name, [value for value in values if value is not None])
            case (
                GreaterThan(attribute=(name,), value=value)
                | GreaterThanOrEqual(attribute=(name,), value=value)
            ):
                bounds = _at_least(bounds, name, value)
            case LessThan(attribute=(name,), value=value) | LessThanOrEqual(attribute=(name,), value=value):
                bounds = _at_most(bounds, name, value)
            case _:
                pass
    return bounds


def _among(bounds: RowBounds, name: str, values: Sequence[object]) -> RowBounds:
    if not values:
        return bounds
    if name == "topic":
        texts = frozenset(value for value in values if isinstance(value, str))
        return replace(bounds, topics=texts if bounds.topics is None else bounds.topics & texts)
    if name == "partition":
        wanted = frozenset(value for value in values if isinstance(value, int))
        return replace(bounds, partitions=wanted if bounds.partitions is None else bounds.partitions & wanted)
    numbers = [value for value in values if isinstance(value, int)]
    instants = [value for value in values if isinstance(value, dt.datetime) and value.tzinfo is not None]
    for ordered in (numbers, instants):
        if len(ordered) == len(values):
            bounds = _at_most(_at_least(bounds, name, min(ordered)), name, max(ordered))
    return bounds


def _at_least(bounds: RowBounds, name: str, value: object) -> RowBounds:
    if name == "offset" and isinstance(value, int):
        return replace(bounds, first_offset=max(bounds.first_offset, value))
    if name == "timestamp" and isinstance(value, dt.datetime) and value.tzinfo is not None:
        return replace(bounds, first_ms=max(bounds.first_ms, (value - _EPOCH) // _MILLISECOND))
    return bounds


def _at_most(bounds: RowBounds, name: str, value: object) -> RowBounds:
    if name == "offset" and isinstance(value, int):
        return replace(bounds, end_offset=min(bounds.end_offset, value + 1))
    if name == "timestamp" and isinstance(value, dt.datetime) and value.tzinfo is not None:
        return replace(bounds, last_ms=min(bounds.last_ms, -((_EPOCH - value) // _MILLISECOND)))
    return bounds
