"""Positions in partitions: an offset, a name, a time, or a distance from the end.

Callers write a position as Python's own value: `"earliest"`, `"latest"` or another name of `SPECS`; an
offset; a negative number, so many offsets before the end; a `datetime` with a zone, or its ISO 8601 text;
and, where partitions may differ, a mapping of partitions to these. The classes of this module are accepted,
too.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import SupportsIndex, cast

from stratalog.base.errors import InvalidRequestError
from stratalog.client.errors import refusing_misfits
from stratalog.client.whole_number import INT32_MAX, INT64_MAX, shown, whole_number
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


@dataclass(frozen=True, slots=True)
class NamedPosition:
    """The offset that has a name."""

    spec: log_pb2.OffsetSpec.ValueType


@dataclass(frozen=True, slots=True)
class OffsetPosition:
    """An offset, the same in each partition."""

    offset: int

    def __post_init__(self) -> None:
        whole_number("offset", self.offset, 0, INT64_MAX)


@dataclass(frozen=True, slots=True)
class DistancePosition:
    """So many offsets before the end of each partition."""

    offset_count: int

    def __post_init__(self) -> None:
        whole_number("offset_count", self.offset_count, 0, INT64_MAX)


@dataclass(frozen=True, slots=True)
class TimePosition:
    """The first record with this time, or a later one."""

    timestamp_ms: int

    def __post_init__(self) -> None:
        whole_number("timestamp_ms", self.timestamp_ms, 0, INT64_MAX)


Position = NamedPosition | OffsetPosition | DistancePosition | TimePosition

EARLIEST = NamedPosition(log_pb2.OFFSET_SPEC_EARLIEST)
LATEST = NamedPosition(log_pb2.OFFSET_SPEC_LATEST)

Place = str | int | datetime | Position
"""A position as callers write it."""

Places = Place | Mapping[int, Place]
"""One position for all partitions, or one for each of some partitions."""

Positions = Position | Mapping[int, Position]
"""The same, once it is understood."""

_ALLOWED = (
    f"a name ({', '.join(SPECS)}), an offset up to 2^63 - 1, a negative number for that many offsets before"
    " the end, or a datetime or an ISO 8601 text with a zone, not before 1970"
)


def position_of(place: object) -> Position:
    """The position that a caller wrote as a `Place`. Raises InvalidRequestError for anything else."""
    if isinstance(place, str) and place in SPECS:
        return NamedPosition(SPECS[place])
    if isinstance(place, str | datetime):
        moment = _moment(place) if isinstance(place, str) else place
        if moment is not None and moment.tzinfo is not None and moment >= _EPOCH:
            return time_position(moment)
    elif isinstance(place, Position):
        return place
    elif isinstance(place, SupportsIndex) and not isinstance(place, bool):
        number = operator.index(place)
        if -INT64_MAX <= number <= INT64_MAX:
            return OffsetPosition(number) if number >= 0 else DistancePosition(-number)
    raise InvalidRequestError(
        "this is no position; write it in another way", position=shown(place), allowed=_ALLOWED
    )


def _moment(text: str) -> datetime | None:
    """The time of an ISO 8601 text; None for another text."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def positions_of(places: object) -> Positions:
    """The positions that a caller wrote as `Places`. Raises InvalidRequestError for anything else."""
    if not isinstance(places, Mapping):
        return position_of(places)
    items = cast(Mapping[object, object], places).items()
    return {whole_number("partition", number, 0, INT32_MAX): position_of(place) for number, place in items}


def position_in(positions: Positions, partition: int) -> Position:
    """The position in one partition: the log start, where a mapping does not name the partition."""
    return positions.get(partition, EARLIEST) if isinstance(positions, Mapping) else positions


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
    """The first record that is not before the moment, which has a zone."""
    # Records have whole milliseconds: of those not before that time this is the first.
    return TimePosition(-((_EPOCH - moment) // timedelta(milliseconds=1)))
