"""JSON of any size, a piece at a time: a text of a hundred mebibytes may become six hundred, which are not to
be in memory at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from stratalog.cli.record_json import JsonValue

_PIECE_CHARS = 1 << 20
_PIECE_COUNT = 4096
"""A list of more values is written value by value."""


def json_pieces(value: JsonValue, *, sort_keys: bool = False) -> Iterator[str]:
    """What `json.dumps` makes of it, characters beyond ASCII as they are. Short values are one piece."""
    if not is_long(value):
        yield json.dumps(value, ensure_ascii=False, sort_keys=sort_keys)
    elif isinstance(value, str):
        yield '"'
        for position in range(0, len(value), _PIECE_CHARS):
            # Each character is escaped, or is not, by itself.
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
    """More than one piece."""
    if isinstance(value, str):
        return len(value) > _PIECE_CHARS
    if isinstance(value, dict):
        return any(is_long(item) for item in value.values())
    return isinstance(value, list) and (len(value) > _PIECE_COUNT or any(is_long(item) for item in value))
