"""JSON in pieces is the JSON that comes in one, and no piece is large."""

from __future__ import annotations

import json
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from stratalog.cli import json_pieces as module
from stratalog.cli.json_pieces import json_pieces
from stratalog.cli.records.record_json import JsonValue

TEXTS = st.text(max_size=12) | st.sampled_from(["\x00" * 9, 'a"b\\c' * 4, "ü€😀" * 4])
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(value=VALUES, sort_keys=st.booleans(), chars=st.integers(1, 8), count=st.integers(0, 4))
def test_the_pieces_are_the_whole(value: JsonValue, sort_keys: bool, chars: int, count: int) -> None:
    with mock.patch.multiple(module, _PIECE_CHARS=chars, _PIECE_COUNT=count):
        pieces = list(json_pieces(value, sort_keys=sort_keys))
    assert "".join(pieces) == json.dumps(value, ensure_ascii=False, sort_keys=sort_keys)


def test_a_long_text_comes_in_pieces() -> None:
    size = 3 << 20
    pieces = list(json_pieces({"key": None, "value": "\x01" * size}))
    assert "".join(pieces) == '{"key": null, "value": "' + "\\u0001" * size + '"}'
    assert max(map(len, pieces)) == 6 << 20
