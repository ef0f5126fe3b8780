"""Printing: aligned tables for people, one JSON document for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from stratalog.base.errors import LogStoreError

if TYPE_CHECKING:
    from stratalog.client import values

Cell = str | int | None
_Field = Mapping[str, str | int] | tuple[Any, ...] | LogStoreError | str | float | None

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The last millisecond of the year 9999, where calendars of Python end.
_MAX_TIME_MS = 253_402_300_799_999
_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


def print_json(document: object) -> None:
    """Print a JSON document on one line."""
    click.echo(json.dumps(document, ensure_ascii=False))


def print_pieces(pieces: Iterable[str]) -> None:
    """Print the pieces as one line, which may be too long for memory."""
    last = None
    for piece in pieces:
        if last is not None:
            click.echo(last, nl=False)
        last = piece
    click.echo(last)


def print_table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print columns two spaces apart: numbers right-aligned, text left-aligned, no blanks inside a cell."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [
        max(len(header[column]), *(len(row[column]) for row in texts), 0) for column in range(len(header))
    ]
    numeric = [
        bool(rows) and all(isinstance(row[column], int) for row in rows) for column in range(len(header))
    ]
    for line in [list(header), *texts]:
        cells = [
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(line, widths, numeric, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def document_or_object(name: str) -> str:
    """The file of a finding without a partition: a document has the path of its file, an object only a
    name."""
    from stratalog.remote.store_layout import IDENTITY_KEY

    return f"{'document' if '/' in name or name == IDENTITY_KEY else 'object'} {name}"


def counted(count: int, noun: str) -> str:
    """A number and its noun, with an s unless the number is 1."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def print_rest(shown_count: int, count: int, noun: str, *, err: bool = False) -> None:
    """Print how many of the counted things are not shown, if any: a result lists the first ones only."""
    if count > shown_count:
        click.echo(f"and {counted(count - shown_count, f'more {noun}')}", err=err)


def utc_time(time_ms: int) -> str | None:
    """The time in ISO 8601, as positions take it; None if the calendar does not have it."""
    if not 0 <= time_ms <= _MAX_TIME_MS:
        return None
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration(time_ms: int) -> str:
    """A duration as hours, minutes and seconds."""
    return str(timedelta(seconds=round(time_ms / 1000)))


def age(age_ms: int) -> str | None:
    """An age in its largest unit; None if it is not known."""
    if age_ms < 0:
        return None
    for unit, unit_ms in _UNITS_MS:
        if age_ms >= unit_ms:
            return f"{age_ms / unit_ms:.1f}{unit}"
    return f"{age_ms}ms"


def clock_difference(skew_ms: int) -> str:
    """How far the clocks of a server and of its store differ. `skew_ms`: the server's minus the store's."""
    return f"the server's clock is {age(abs(skew_ms))} {'ahead of' if skew_ms > 0 else 'behind'} the store's"


def print_offline(partitions: Iterable[values.OfflinePartition], *, err: bool = False) -> None:
    """Print a line for each partition that is not served."""
    for offline in partitions:
        text = f"{offline.topic}-{offline.partition} is offline, path {offline.path}: {offline.reason}"
        click.echo(text, err=err)


def value_document(value: tuple[Any, ...]) -> dict[str, object]:
    """A value of the client as a JSON object: every field under its name, members of enums as words, an error
    with its code and its fields.
    """
    # A NamedTuple that is typed as such has no base class of its own.
    fields: dict[str, _Field] = getattr(value, "_asdict")()  # noqa: B009
    return {name: _plain(field) for name, field in fields.items()}


def _plain(value: _Field) -> object:
    if isinstance(value, LogStoreError):
        fields = {name: str(field) for name, field in value.fields.items()}
        return {"code": value.code, "message": value.message, "fields": fields}
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, tuple):
        return value
    return value_document(value) if hasattr(value, "_asdict") else [_plain(part) for part in value]


def _text(cell: Cell) -> str:
    return "-" if cell is None else str(cell)
