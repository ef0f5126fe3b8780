"""Positions in partitions, as options take them: one notation.

| text | position |
|---|---|
| `earliest`, `latest`, another name of `SPECS` | the offset with this name |
| `105823` | this offset |
| `-10` | ten offsets before the end of each partition |
| `2013-01-01T05:00:00Z` | the first record with this time or a later one; UTC without a zone |
| `@1357016400000` | the same, in milliseconds since 1970 |
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import click

from stratalog.base.errors import InvalidRequestError
from stratalog.client.position import (
    SPECS,
    DistancePosition,
    OffsetPosition,
    Position,
    TimePosition,
    position_of,
)

NUMBER_OR_TIME_HELP = (
    "an offset up to 2^63 - 1, -N for N offsets before the end of each partition, a time in ISO 8601 from"
    " 1970 on, such as 2013-01-01T05:00:00Z (UTC without a zone), or @MILLIS since 1970."
)
POSITION_HELP = f"a name ({', '.join(SPECS)}), {NUMBER_OR_TIME_HELP}"

_SHOWN_CHARACTERS = 60


def parse_position(
    _context: click.Context, _parameter: click.Parameter, text: str | None, allowed: str = POSITION_HELP
) -> Position | None:
    """Parse the notation, as the callback of an option. Raises click.BadParameter, which lists the allowed
    notations."""
    return _parsed(text, OffsetPosition, allowed)


def parse_time_or_name(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> Position | None:
    """Parse the notation where an offset has no meaning: a number is a time in milliseconds."""
    return _parsed(text, TimePosition, POSITION_HELP)


def no_position(text: str, allowed: str) -> click.BadParameter:
    """The error for a text that is no position there. `allowed` is a list of notations, with a full stop."""
    is_long = len(text) > _SHOWN_CHARACTERS
    shown = f"{text[:_SHOWN_CHARACTERS]!r}..." if is_long else repr(text)
    return click.BadParameter(f"{shown} is no position; give {allowed}")


def _parsed(text: str | None, of_number: Callable[[int], Position], allowed: str) -> Position | None:
    if text is None:
        return None
    try:
        return _position_of_text(text, of_number)
    except (ValueError, InvalidRequestError):
        raise no_position(text, allowed) from None


def _position_of_text(text: str, of_number: Callable[[int], Position]) -> Position:
    """The position; `of_number` makes that of a plain number. Raises ValueError and InvalidRequestError."""
    if text in SPECS:
        return position_of(text)
    if text.startswith("@"):
        return TimePosition(_number(text.removeprefix("@")))
    if text.startswith("-"):
        count = _number(text.removeprefix("-"))
        if count == 0:
            raise ValueError("0 is an offset, and not a distance")
        return DistancePosition(count)
    if text.isdecimal():
        return of_number(_number(text))
    moment = datetime.fromisoformat(text)
    return position_of(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def _number(digits: str) -> int:
    """The number of the digits. Raises ValueError for another text, and for more digits than Python reads."""
    if not digits.isdecimal():
        raise ValueError("a number has digits only")
    return int(digits)
