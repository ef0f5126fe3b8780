"""Printing: aligned tables for people, one JSON document for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import cast

import click
from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message

from stratalog.v1 import admin_pb2

Cell = str | int | None

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The last millisecond of the year 9999, where calendars of Python end.
_MAX_TIME_MS = 253_402_300_799_999


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


def counted(count: int, noun: str) -> str:
    """A number and its noun, with an s unless the number is 1."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def utc_time(time_ms: int) -> str | None:
    """The time in ISO 8601, as positions take it; None if the calendar does not have it."""
    if not 0 <= time_ms <= _MAX_TIME_MS:
        return None
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def print_offline(partitions: Iterable[admin_pb2.OfflinePartition], *, err: bool = False) -> None:
    """Print a line for each partition that is not served."""
    for offline in partitions:
        text = f"{offline.topic}-{offline.partition} is offline, path {offline.path}: {offline.reason}"
        click.echo(text, err=err)


def message_document(message: Message) -> dict[str, object]:
    """A message as a JSON object: every field under its name in the .proto file, numbers as numbers, values
    of enums as words, null for a message that is not set. Maps are sorted by key.
    """
    document: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            document[field.name] = dict(sorted(value.items()))
        elif field.enum_type is not None:
            document[field.name] = enum_word(cast("EnumDescriptor", field.enum_type), value)
        elif field.is_repeated:
            document[field.name] = [_plain(item) for item in value]
        elif field.message_type is not None and not message.HasField(field.name):
            document[field.name] = None
        else:
            document[field.name] = _plain(value)
    return document


def enum_word(enum: EnumDescriptor, number: int) -> str:
    """The value's name without the prefix of its enum, as in `full-disk`; the number if it is unknown."""
    return kafka_word(enum, number).lower().replace("_", "-")


def kafka_word(enum: EnumDescriptor, number: int) -> str:
    """The value's name without the prefix of its enum, as Kafka writes it; the number if it is unknown."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    value = enum.values_by_number.get(number)
    return str(number) if value is None else value.name.removeprefix(prefix)


def _plain(value: object) -> object:
    return message_document(value) if isinstance(value, Message) else value


def _text(cell: Cell) -> str:
    return "-" if cell is None else str(cell)
