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

from datetime import datetime

import click

from stratalog.cli.int_ranges import COUNT, OFFSET, TIMESTAMP_MS
from stratalog.client.position import (
    SPECS,
    DistancePosition,
    NamedPosition,
    OffsetPosition,
    Position,
    TimePosition,
    time_position,
)

POSITION_HELP = (
    "earliest, latest, an offset, -N for N offsets before the end of each partition, a time in ISO 8601"
    " such as 2013-01-01T05:00:00Z (UTC without a zone), or @MILLIS since 1970."
)


def parse_position(context: click.Context, parameter: click.Parameter, text: str | None) -> Position | None:
    """Parse the notation, as the callback of an option. Raises click.BadParameter."""
    if text is None:
        return None
    if text in SPECS:
        return NamedPosition(SPECS[text])
    if text.startswith("@"):
        return TimePosition(int(TIMESTAMP_MS(text.removeprefix("@"), parameter, context)))
    if text.isdecimal():
        return OffsetPosition(int(OFFSET(text, parameter, context)))
    if text.startswith("-") and text[1:].isdecimal():
        return DistancePosition(int(COUNT(text[1:], parameter, context)))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no position; use {POSITION_HELP}") from None
    return time_position(moment)


def parse_time_or_name(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> Position | None:
    """Parse the notation where an offset has no meaning: a number is a time in milliseconds."""
    return parse_position(context, parameter, f"@{text}" if text is not None and text.isdecimal() else text)
