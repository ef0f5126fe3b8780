"""Positions in partitions: an offset, a name, a time, or a distance from the end.

Callers write a position as Python's own value: `"earliest"`, `"latest"` or another name of `SPECS`; an
offset; a negative number, so many offsets before the end; a `datetime` (UTC if it has no zone); and, where
partitions may differ, a mapping of partitions to these.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from stratalog.base.errors import InvalidRequestError
from stratalog.client.errors import refusing_misfits
from stratalog.v1 import log_pb2

SPECS = {
    "earliest": log_pb2.OFFSET_SPEC_EARLIEST,
    "latest": log_pb2.OFFSET_SPEC_LATEST,
    "earliest-local": log_pb2.OFFSET_SPEC_EARLIEST_LOCAL,
    "latest-tiered": log_pb2.OFFSET_SPEC_LATEST_TIERED,
    "earliest-pending-upload": log_pb2.OFFSET_SPEC_EARLIEST_PENDING_UPLOAD,
    "compacted-upto": log_pb2.OFFSET_SPEC_COMPACTED_UPTO,
    "max-timestamp": log_pb2.OFFSET_SPEC_MAX_TIMESTAMP,
}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NamedPosition(NamedTuple):
    """The offset that has a name."""

    spec: log_pb2.OffsetSpec.ValueType


class OffsetPosition(NamedTuple):
    """An offset, the same in each partition."""

    offset: int


class DistancePosition(NamedTuple):
    """So many offsets before the end of each partition."""

    offset_count: int


class TimePosition(NamedTuple):
    """The first record with this time, or a later one."""

    timestamp_ms: int


Position = NamedPosition | OffsetPosition | DistancePosition | TimePosition

EARLIEST = NamedPosition(log_pb2.OFFSET_SPEC_EARLIEST)
LATEST = NamedPosition(log_pb2.OFFSET_SPEC_LATEST)

Place = str | int | datetime
"""A position as callers write it."""

Places = Place | Mapping[int, Place]
"""One position for all partitions, or one for each of some partitions."""


def position_of(place: Place | Position) -> Position:
    """The position that a caller wrote. Raises InvalidRequestError."""
    if isinstance(place, Position):
        return place
    if isinstance(place, str):
        if place not in SPECS:
            raise InvalidRequestError(
                "the position has no such name", position=place, allowed=", ".join(SPECS)
            )
        return NamedPosition(SPECS[place])
    if isinstance(place, datetime):
        return time_position(place)
    return OffsetPosition(place) if place >= 0 else DistancePosition(-place)


def wire_position(position: Position) -> log_pb2.Position:
    """The position as a message. Raises InvalidRequestError for a number that it cannot hold."""
    with refusing_misfits():
        match position:
            case NamedPosition(spec):
                return log_pb2.Position(spec=spec)
            case OffsetPosition(offset):
                return log_pb2.Position(offset=offset)
            case DistancePosition(offset_count):
                return log_pb2.Position(tail_count=offset_count)
            case TimePosition(timestamp_ms):
                return log_pb2.Position(timestamp_ms=timestamp_ms)


def time_position(moment: datetime) -> TimePosition:
    """The first record that is not before the moment. A moment without a zone is in UTC, on every machine."""
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    # Records have whole milliseconds: of those not before that time this is the first.
    return TimePosition(-((_EPOCH - moment) // timedelta(milliseconds=1)))
