"""Reads as much of a JSON object as its text allows, for texts that are cut off or damaged."""

from __future__ import annotations

import json
import re
from typing import NamedTuple, cast

from stratalog.cli.records.record_json import JsonValue

_BLANKS = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class PartialObject(NamedTuple):
    """The beginning of a JSON object."""

    fields: dict[str, JsonValue]
    """The fields before the fault; of a list in which it lies, the items before it."""
    fault_position: int | None
    """The character at which the text is no JSON any more; None if the object is whole."""


def read_partial_object(text: str) -> PartialObject:
    """Read the fields of the object that the text begins with, up to the first fault."""
    fields: dict[str, JsonValue] = {}
    position = _after(text, _skip(text, 0), "{")
    while position is not None:
        try:
            name, end = _DECODER.raw_decode(text, _skip(text, position))
        except (ValueError, RecursionError):
            break
        begin = _after(text, _skip(text, end), ":")
        if not isinstance(name, str) or begin is None:
            break
        begin = _skip(text, begin)
        try:
            value, end = _DECODER.raw_decode(text, begin)
        except (ValueError, RecursionError):
            items, position = _items(text, begin)
            if items:
                fields[name] = items
            break
        if end == len(text):
            return PartialObject(fields, end)  # the end of a number may be missing
        fields[name] = cast("JsonValue", value)
        end = _skip(text, end)
        if text[end : end + 1] == "}":
            rest = _skip(text, end + 1)
            return PartialObject(fields, None if rest == len(text) else rest)
        position = _after(text, end, ",")
        if position is None:
            return PartialObject(fields, end)
    return PartialObject(fields, position or 0)


def read_partial_lines(text: str, name: str) -> PartialObject:
    """Read a text whose first line is an object and whose other lines are values each, up to the first fault.
    The values become the field `name`."""
    header, *lines = text.split("\n")
    found = read_partial_object(header)
    if found.fault_position is not None:
        return found
    items: list[JsonValue] = []
    position = len(header) + 1
    for line in lines:
        try:
            items.append(cast("JsonValue", json.loads(line)))
        except (ValueError, RecursionError):
            return PartialObject({**found.fields, name: items}, position)
        position += len(line) + 1
    return PartialObject({**found.fields, name: items}, None)


def _items(text: str, position: int) -> tuple[list[JsonValue], int]:
    """The items of a list before its fault, none for another value, and the position of the fault."""
    items: list[JsonValue] = []
    begin = _after(text, position, "[")
    if begin is None:
        return items, position
    while True:
        begin = _skip(text, begin)
        try:
            item, end = _DECODER.raw_decode(text, begin)
        except (ValueError, RecursionError):
            return items, begin
        if end == len(text):
            return items, end
        items.append(cast("JsonValue", item))
        end = _skip(text, end)
        after = _after(text, end, ",")
        if after is None:
            return items, end
        begin = after


def _skip(text: str, position: int) -> int:
    """The position behind blanks."""
    match = _BLANKS.match(text, position)
    return position if match is None else match.end()


def _after(text: str, position: int, sign: str) -> int | None:
    """The position behind the sign, if it stands there."""
    return position + len(sign) if text.startswith(sign, position) else None
