"""The lines of a page by columns: golden lines of each encoding, odd values, damage."""

from __future__ import annotations

import json
from array import array
from random import Random

import pytest

from stratalog.base.errors import StoreCorruptError
from stratalog.remote.metadata.head.page_columns import (
    Column,
    Encoding,
    Encodings,
    PartsColumn,
    decode_columns,
    encode_columns,
    joined,
    memory_bytes,
    packed,
)

BASE: Column = [10, 14, 20, 0]
GOLDEN: dict[str, tuple[Column, Encoding, str]] = {
    "each": ([7, None, "x", 7], Encoding("each"), '[7,null,"x",7]'),
    "same": (["a", "a", "a", "a"], Encoding("choice"), '"a"'),
    "choice": (["b", "a", "b", "c"], Encoding("choice"), '[["a","b","c"],[1,-1,1,1]]'),
    "steps": ([3, 5, 4, 4], Encoding("steps"), "[3,2,-1,0]"),
    "from": ([11, 15, 21, 1], Encoding("from", ("base",)), "1"),
    "until": ([14, 20, 25, 9], Encoding("until", ("base",)), "[0,0,25,9]"),
    "between": ([4, 6, 5, 9], Encoding("between", ("base", "end")), "[0,0,0,1]"),
    "behind": ([100, 130, 107, 140], Encoding("behind", ("group", "size")), "[100,130,0,0]"),
    "parts": (
        [[1, 2], None, [1, 4], [1, 5]],
        Encoding("parts", ("parts.one", "parts.two")),
        "[[1,null]]",
    ),
    "pair": (
        [[[1, 10]], [[1, 14]], [[1, 20], [2, 22]], [[1, 0]]],
        Encoding("pair", ("pair.one", "pair.two")),
        "[[2,[[1,20],[2,22]]]]",
    ),
}
ODD: list[list[object]] = [
    [None, 1, 2, 3],
    [True, 1, 1, 1],
    [1, True, 1, 1],
    [1.0, 1, 1, 1],
    ["1", 1, 2, 3],
    [[], [], [1], []],
    [[], [], [], []],
    [(), [], (), []],
    [{}, {}, {}, {}],
    [[1, 2], [1, 2], [1, 2], [1, 2]],
    [1 << 64, 0, -(1 << 70), 5],
    [-(1 << 63), (1 << 63) - 1, -(1 << 63), 5],
    [[1 << 64, 0], [[1], 2], ["x", None], [1.5, True]],
    [[[1 << 64, 0]], [[[1], 2]], [["x", None]], [[]]],
]
OTHERS: dict[str, Column] = {
    "base": BASE,
    "end": [14, 20, 25, 8],
    "group": ["x", "y", "x", "y"],
    "size": [7, 10, 3, 1],
}


def round_trip(columns: dict[str, Column], encodings: Encodings) -> dict[str, Column]:
    encoded = encode_columns(columns, encodings)
    count = len(next(iter(columns.values())))
    lines = json.loads(json.dumps(encoded.lines))
    return decode_columns(lines, encoded.texts, count, "page")


def plain(column: Column) -> list[object]:
    """The values as JSON has them."""
    return [json.loads(json.dumps(value)) for value in column]


@pytest.mark.parametrize("name", GOLDEN)
def test_the_line_of_each_encoding(name: str) -> None:
    values, encoding, line = GOLDEN[name]
    encoded = encode_columns({**OTHERS, name: values}, {name: encoding})
    [number] = [at for at, words in enumerate(encoded.lines) if words[0] == name]
    assert encoded.texts[number] == line
    assert encoded.lines[number] == (name, name, *(() if name == "same" else encoding.columns))
    assert plain(round_trip({**OTHERS, name: values}, {name: encoding})[name]) == values


@pytest.mark.parametrize("values", ODD)
@pytest.mark.parametrize("name", GOLDEN)
def test_odd_values_stay_as_they_are(values: list[object], name: str) -> None:
    """An encoding that does not suit a column does not change its values, or their types."""
    encoding = GOLDEN[name][1]
    found = plain(round_trip({**OTHERS, "odd": values}, {"odd": encoding})["odd"])
    assert found == plain(values)
    assert [type(value) for value in found] == [type(value) for value in plain(values)]


def test_numbers_are_in_arrays() -> None:
    found = round_trip({**OTHERS, "x": GOLDEN["behind"][0]}, {"x": GOLDEN["behind"][1]})
    assert isinstance(found["x"], array)
    assert isinstance(found["size"], array)


def test_the_memory_of_a_column_counts_each_object_once() -> None:
    text, others = "a" * 20, [[1], [2], [3]]
    rows = 8 * 3
    assert memory_bytes(packed([1, 2, 3])) == rows
    assert memory_bytes([text, text, text]) == rows + 100
    assert memory_bytes([None, text, None]) == rows + 200
    assert memory_bytes(others) == rows + 300
    assert memory_bytes([]) == 0
    assert memory_bytes(PartsColumn.of([(1, text), (2, text), None], 2, is_pair=False)) == 2 * rows + 100 * 3
    assert memory_bytes(packed(["ab" * n for n in (1, 1, 1)])) == rows + 100


@pytest.mark.parametrize("name", ["parts", "pair"])
def test_parts_are_cut_and_joined_as_lists(name: str) -> None:
    values, encoding, _ = GOLDEN[name]
    column = round_trip({**OTHERS, name: values}, {name: encoding})[name]
    assert isinstance(column, PartsColumn)
    for start in range(5):
        for end in range(start, 5):
            assert list(column[start:end]) == values[start:end]
            assert list(joined([column[:start], column[start:end], column[end:]])) == values
    assert list(joined([column[1:3], [values[0], (9, 9)]]))[:3] == [*values[1:3], values[0]]
    assert column[-1] == values[-1]
    with pytest.raises(IndexError):
        column[4]


def damaged_texts(texts: list[str], random: Random) -> list[str]:
    number = random.randrange(len(texts))
    text = texts[number]
    at = random.randrange(len(text) + 1)
    sign = random.choice(('"', "0", "9", "-", ",", "[", "]", "[]", "null", "true", "1e9", "{", "e"))
    changed = random.choice((text[:at] + sign + text[at:], text[:at] + text[at + 1 :], sign))
    return [*texts[:number], changed, *texts[number + 1 :]]


@pytest.mark.parametrize("seed", range(300))
def test_a_damaged_line_is_an_error_or_other_values(seed: int) -> None:
    random = Random(seed)
    columns = {**OTHERS, **{name: values for name, (values, _, _) in GOLDEN.items()}}
    encoded = encode_columns(columns, {name: encoding for name, (_, encoding, _) in GOLDEN.items()})
    texts = damaged_texts(list(encoded.texts), random)
    try:
        found = decode_columns(encoded.lines, texts, 4, "page")
    except StoreCorruptError:
        return
    assert {len(list(column)) for column in found.values()} == {4}


@pytest.mark.parametrize(
    ("lines", "texts"),
    [
        ([("a", "what")], ["[1,2]"]),
        ([("a", "from", "b")], ["[1,2]"]),
        ([("a", "each")], ["[1]"]),
        ([("a", "steps")], ["[1,true]"]),
        ([("a", "choice")], ['[["x"],[0,1]]']),
        ([("a", "choice")], ['[["x","y"],[0,-1]]']),
        ([("a", "choice")], ['[["x","x"],[0,1]]']),
        ([("a", "choice")], ['[["x",1],[0,1]]']),
        ([("a", "each"), ("b", "parts", "a")], ["[1,2]", "[[2,null]]"]),
        ([("a", "parts")], ["[]"]),
        ([("a", "same"), ("b", "behind", "a", "a")], ["[]", "[1,2]"]),
    ],
)
def test_lines_that_contradict_themselves_are_found(lines: list[tuple[str, ...]], texts: list[str]) -> None:
    with pytest.raises(StoreCorruptError) as caught:
        decode_columns(lines, texts, 2, "page")
    assert caught.value.fields["what"] == "page"
