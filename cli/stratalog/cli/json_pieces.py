"""JSON in pieces: a text of a hundred mebibytes may become six hundred, too much for memory at once."""

from __future__ import annotations

import json
from collections.abc import Iterator

from stratalog.cli.records.record_json import JsonValue

_PIECE_CHARS = 1 << 20
_PIECE_COUNT = 4096
"""A longer list is written value by value."""


def json_pieces(value: JsonValue, *, sort_keys: bool = False) -> Iterator[str]:
    """Yield the text of `json.dumps(ensure_ascii=False)` in pieces. A short value is one piece."""
    if not is_long(value):
        yield json.dumps(value, ensure_ascii=False, sort_keys=sort_keys)
    elif isinstance(value, str):
        yield '"'
        for position in range(0, len(value), _PIECE_CHARS):
            # JSON escapes each character by itself.
            yield json.dumps(value[position : position + _PIECE_CHARS], ensure_ascii=False)[1:-1]
        yield '"'
    elif isinstance(value, dict):
        before = "{"
        for name in sorted(value) if sort_keys else value:
            yield f"{before}{json.dumps(name, ensure_ascii=False)}: "
            yield from json_pieces(value[name], sort_keys=sort_keys)
            before = ", "
        yield "}"
    else:
        assert isinstance(value, list)
        before = "["
        for item in value:
            yield before
            yield from json_pieces(item, sort_keys=sort_keys)
            before = ", "
        yield "]"


def is_long(value: JsonValue) -> bool:
    """Whether the value takes more than one piece."""
    if isinstance(value, str):
        return len(value) > _PIECE_CHARS
    if isinstance(value, dict):
        return any(is_long(item) for item in value.values())
    return isinstance(value, list) and (len(value) > _PIECE_COUNT or any(is_long(item) for item in value))
