"""Columns of numbers: both kinds of kernels against JSON and plain sums, with any numbers and any text."""

from __future__ import annotations

import json
import struct
from array import array
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError, InvalidRequestError
from stratalog.record import pure_number_columns
from stratalog.record.number_columns import NUMBER, PAIRS, SKIPPED, PackedField
from tests.support.kernels import both_kinds, each_kind

SMALLEST, LARGEST = -(1 << 63), (1 << 63) - 1
KINDS = both_kinds(pure_number_columns)
each_kernel = each_kind(pure_number_columns)
EDGES = st.sampled_from((SMALLEST, SMALLEST + 1, -10, -9, -1, 0, 1, 9, 10, 99, LARGEST - 1, LARGEST))
NUMBERS = EDGES | st.integers(SMALLEST, LARGEST) | st.integers(-1000, 1000)


def column(*numbers: int) -> array[int]:
    return array("q", numbers)


def fits(numbers: list[int]) -> bool:
    return all(SMALLEST <= number <= LARGEST for number in numbers)


@each_kernel
@given(st.lists(NUMBERS, min_size=1))
def test_the_text_is_the_json_of_the_numbers(kernels: Any, numbers: list[int]) -> None:
    text = kernels.format_numbers(column(*numbers))
    assert text == json.dumps(numbers, separators=(",", ":"))
    assert kernels.parse_numbers(text, len(numbers)) == column(*numbers)


@each_kernel
def test_an_empty_column_has_a_text_and_no_reverse(kernels: Any) -> None:
    assert kernels.format_numbers(column()) == "[]"
    with pytest.raises(CorruptRecordError):
        kernels.parse_numbers("[]", 0)


@each_kernel
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 1),
        ("[", 1),
        ("]", 1),
        ("[]", 1),
        ("[1", 1),
        ("1]", 1),
        ("[1]]", 1),
        ("[1] ", 1),
        (" [1]", 1),
        ("[ 1]", 1),
        ("[1,]", 1),
        ("[1,]", 2),
        ("[,1]", 2),
        ("[1,2]", 1),
        ("[1,2]", 3),
        ("[1,2]", -1),
        ("[1,2]", 1 << 62),
        ("[-]", 1),
        ("[-0]", 1),
        ("[00]", 1),
        ("[01]", 1),
        ("[+1]", 1),
        ("[--1]", 1),
        ("[1.0]", 1),
        ("[1e3]", 1),
        ("[1_0]", 1),
        ("[\N{ARABIC-INDIC DIGIT ONE}]", 1),
        ("[\ud800]", 1),
        ("[null]", 1),
        ("[true]", 1),
        ('["1"]', 1),
        ("[9223372036854775808]", 1),
        ("[-9223372036854775809]", 1),
        ("[9999999999999999999]", 1),
        ("[18446744073709551617]", 1),
        (f"[{'1' * 5000}]", 1),
        ("[1\0]", 1),
    ],
)
def test_any_other_text_is_refused(kernels: Any, text: str, count: int) -> None:
    with pytest.raises(CorruptRecordError):
        kernels.parse_numbers(text, count)


@pytest.mark.parametrize("seed", range(100))
def test_both_kinds_agree_on_damaged_text(seed: int) -> None:
    random = Random(seed)
    count = random.randrange(1, 6)
    text = pure_number_columns.format_numbers(
        column(*(random.randrange(-(10**19), 10**19) >> random.choice((1, 8, 40, 62)) for _ in range(count)))
    )
    for _ in range(random.randrange(3)):
        at = random.randrange(len(text) + 1)
        text = text[:at] + random.choice("0123456789-,[] .e") + text[at + random.randrange(2) :]
    count = text.count(",") + 1 if random.random() < 0.9 else random.randrange(9)
    found: list[object] = []
    for kernels in KINDS:
        try:
            found.append(kernels.parse_numbers(text, count))
        except CorruptRecordError:
            found.append(None)
    assert found[1:] in ([], found[:1]), (text, count)
    if found[0] is not None:
        assert found[0] == column(*json.loads(text))


@each_kernel
@given(st.lists(st.tuples(NUMBERS, NUMBERS)), st.sampled_from((-1, 0, 1)))
def test_sums_and_differences(kernels: Any, rows: list[tuple[int, int]], shift: int) -> None:
    values, others = [value for value, _ in rows], [other for _, other in rows]
    met = {-1: [0, *others][: len(rows)], 0: others, 1: [*others, 0][1:]}[shift]
    for name, expected in (
        ("differences", [value - other for value, other in zip(values, met, strict=True)]),
        ("sums", [value + other for value, other in zip(values, met, strict=True)]),
    ):
        work = getattr(kernels, name)
        if fits(expected):
            assert work(column(*values), column(*others), shift) == column(*expected)
        else:
            with pytest.raises(InvalidRequestError):
                work(column(*values), column(*others), shift)


@each_kernel
@given(st.lists(NUMBERS))
def test_running_sums(kernels: Any, numbers: list[int]) -> None:
    expected = [sum(numbers[: index + 1]) for index in range(len(numbers))]
    if fits(expected):
        assert kernels.running_sums(column(*numbers)) == column(*expected)
    else:
        with pytest.raises(InvalidRequestError):
            kernels.running_sums(column(*numbers))


@each_kernel
@given(st.lists(st.tuples(NUMBERS, st.integers(0, 3), NUMBERS)))
def test_rows_behind_each_other(kernels: Any, rows: list[tuple[int, int, int]]) -> None:
    values, groups, sizes = ([row[at] for row in rows] for at in range(3))
    groups = [group % len(rows) for group in groups]
    ends: dict[int, int] = {}
    expected: list[int] = []
    seen_ends: list[int] = []
    for value, group, size in zip(values, groups, sizes, strict=True):
        expected.append(value - ends.get(group, 0))
        ends[group] = value + size
        seen_ends.append(value + size)
    columns = column(*groups), column(*sizes)
    if fits(expected) and fits(seen_ends):
        steps = kernels.steps_behind(column(*values), *columns)
        assert steps == column(*expected)
        assert kernels.places_behind(steps, *columns) == column(*values)
    else:
        with pytest.raises(InvalidRequestError):
            kernels.steps_behind(column(*values), *columns)


@each_kernel
@pytest.mark.parametrize("group", [-1, 2, SMALLEST, LARGEST])
@pytest.mark.parametrize("name", ["steps_behind", "places_behind"])
def test_a_group_that_is_none_of_the_column(kernels: Any, name: str, group: int) -> None:
    with pytest.raises(InvalidRequestError):
        getattr(kernels, name)(column(1, 2), column(0, group), column(1, 1))


@each_kernel
@pytest.mark.parametrize(
    ("step", "size"), [(LARGEST, 1), (SMALLEST, -1), (LARGEST - 1, 1), (SMALLEST + 1, -1)]
)
def test_places_at_the_ends_of_64_bits(kernels: Any, step: int, size: int) -> None:
    groups, sizes = column(0, 0), column(size, 0)
    steps = column(step, 0)
    if fits([step + size]):
        assert kernels.places_behind(steps, groups, sizes) == column(step, step + size)
    else:
        with pytest.raises(InvalidRequestError):
            kernels.places_behind(steps, groups, sizes)
    with pytest.raises(InvalidRequestError):
        kernels.places_behind(column(step, step), groups, column(0, 0))


@each_kernel
def test_columns_of_another_length_or_type_are_refused(kernels: Any) -> None:
    one, two = column(1), column(1, 2)
    for name in ("differences", "sums"):
        for shift in (-1, 0, 1):
            for columns in ((one, two), (two, one)):
                with pytest.raises(InvalidRequestError):
                    getattr(kernels, name)(*columns, shift)
    for name in ("steps_behind", "places_behind"):
        for three in ((one, two, one), (one, one, two), (two, one, one)):
            with pytest.raises(InvalidRequestError):
                getattr(kernels, name)(*three)
    for other in ([1], b"12345678", array("Q", [1]), array("d", [1.0]), array("i", [1]), None):
        with pytest.raises(InvalidRequestError):
            kernels.format_numbers(other)
        with pytest.raises(InvalidRequestError):
            kernels.running_sums(other)
        with pytest.raises(InvalidRequestError):
            kernels.sums(one, other, 0)
        with pytest.raises(InvalidRequestError):
            kernels.steps_behind(one, one, other)
    with pytest.raises(TypeError):
        kernels.parse_numbers(b"[1]", 1)


SHAPE = (SKIPPED, NUMBER, 3, -NUMBER, PAIRS, -2, PAIRS)
ANY_NUMBERS = NUMBERS | st.integers(LARGEST, 2 * LARGEST + 1) | st.booleans()
PAIR_LISTS = st.lists(st.tuples(ANY_NUMBERS, ANY_NUMBERS), max_size=3).map(tuple)
ROWS = st.lists(
    st.tuples(
        st.text(),
        ANY_NUMBERS,
        st.tuples(ANY_NUMBERS, ANY_NUMBERS, ANY_NUMBERS),
        st.none() | ANY_NUMBERS,
        PAIR_LISTS,
        st.none() | st.tuples(ANY_NUMBERS, ANY_NUMBERS),
        PAIR_LISTS,
    ),
    max_size=5,
)


class Row(NamedTuple):
    """A tuple with a class of its own."""

    number: int
    pairs: tuple[tuple[int, int], ...]


@each_kernel
@given(ROWS)
def test_numbers_of_tuples_are_columns(kernels: Any, rows: list[tuple[Any, ...]]) -> None:
    flat: list[list[int]] = []
    pairs, others = list[int](), list[int]()
    for _, number, three, maybe, some, two, more in rows:
        pairs += (number for pair in some for number in pair)
        others += (number for pair in more for number in pair)
        ends = len(pairs) // 2, len(others) // 2
        row = [
            number,
            *three,
            maybe is not None,
            maybe or 0,
            ends[0],
            two is not None,
            *(two or (0, 0)),
            ends[1],
        ]
        flat.append(row)
    expected = [number for place in range(11) for number in (row[place] for row in flat)]
    columns, lists = kernels.tuple_columns(rows, SHAPE)
    assert (columns.typecode, [number % (1 << 64) for number in columns]) == (
        "q",
        [number % (1 << 64) for number in expected],
    )
    assert [[number % (1 << 64) for number in one] for one in lists] == [
        [number % (1 << 64) for number in one] for one in (pairs, others)
    ]


@each_kernel
def test_tuples_of_a_class_have_columns(kernels: Any) -> None:
    rows = [Row(7, ()), Row(8, ((1, 2),))]
    assert kernels.tuple_columns(rows, (NUMBER, PAIRS)) == (column(7, 8, 0, 1), [column(1, 2)])
    assert kernels.tuple_columns((), (NUMBER, PAIRS)) == (column(), [column()])


@each_kernel
@pytest.mark.parametrize(
    ("shape", "row"),
    [
        (NUMBER, ("1",)),
        (NUMBER, (None,)),
        (NUMBER, (1.0,)),
        (NUMBER, ((1,),)),
        (NUMBER, (1 << 64,)),
        (NUMBER, (-(1 << 63) - 1,)),
        (NUMBER, ()),
        (NUMBER, (1, 2)),
        (NUMBER, [1]),
        (NUMBER, 1),
        (SKIPPED, ()),
        (2, (None,)),
        (2, (1,)),
        (2, ((1,),)),
        (2, ((1, 2, 3),)),
        (2, ([1, 2],)),
        (2, ((1, "2"),)),
        (-2, ((1, None),)),
        (-NUMBER, ("",)),
        (PAIRS, (None,)),
        (PAIRS, (1,)),
        (PAIRS, ([(1, 2)],)),
        (PAIRS, ((1, 2),)),
        (PAIRS, (((1, 2), (3,)),)),
        (PAIRS, (((1, 2), (3, 1 << 64)),)),
        (PAIRS, (((1, 2), [3, 4]),)),
    ],
)
def test_tuples_of_another_shape_are_refused(kernels: Any, shape: int, row: Any) -> None:
    sound = {NUMBER: (1,), 2: ((1, 2),), PAIRS: (((1, 2),),), SKIPPED: (0,)}[abs(shape)]
    assert kernels.tuple_columns([sound], (shape,))
    for rows in ([row], [sound, row], [row, sound]):
        with pytest.raises(InvalidRequestError):
            kernels.tuple_columns(rows, (shape,))


class Part(NamedTuple):
    """A field with two numbers."""

    first: int
    second: int


class Unpacked(NamedTuple):
    """A tuple of fields of all kinds."""

    given: str
    word: int
    signed: int
    part: Part | None
    wide: int | None


ROW = struct.Struct("<3xIiqQI")
UNPACKED_ROWS = st.lists(
    st.tuples(
        st.integers(0, 2**32 - 1),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(SMALLEST, LARGEST),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**32 - 1),
    )
)


@each_kernel
@given(UNPACKED_ROWS, st.integers(0, 3), st.integers(0, 5))
def test_rows_of_bytes_are_tuples(kernels: Any, rows: list[tuple[int, ...]], spare: int, first: int) -> None:
    data = bytes(first) + b"".join(ROW.pack(*row) + b"x" * spare for row in rows)
    names = [f"row-{number}" for number in range(len(rows))]
    fields = [
        names,
        PackedField(None, ((3, "I"),)),
        PackedField(None, ((7, "i"),)),
        PackedField(Part, ((11, "q"), (19, "Q")), 27, 6),
        PackedField(None, ((19, "Q"),), 27, 1),
    ]
    found = kernels.unpack_tuples(Unpacked, memoryview(data), first, ROW.size + spare, len(rows), fields)
    assert found == [
        Unpacked(
            given=name,
            word=word,
            signed=signed,
            part=Part(number, wide) if flags & 6 else None,
            wide=wide if flags & 1 else None,
        )
        for name, (word, signed, number, wide, flags) in zip(names, rows, strict=True)
    ]
    assert all(type(one) is Unpacked and type(one.part) in (Part, type(None)) for one in found)


@each_kernel
@pytest.mark.parametrize(
    ("position", "row_bytes", "count", "field"),
    [
        (1, 8, 2, PackedField(None, ((0, "q"),))),
        (17, 8, 0, PackedField(None, ((0, "q"),))),
        (0, 8, 3, PackedField(None, ((0, "q"),))),
        (0, 8, 2, PackedField(None, ((1, "q"),))),
        (0, 8, 2, PackedField(None, ((0, "I"),), 5, 1)),
        (0, 8, 2, [1]),
    ],
)
def test_rows_and_places_outside_of_the_data_are_refused(
    kernels: Any, position: int, row_bytes: int, count: int, field: Any
) -> None:
    with pytest.raises(AssertionError):
        kernels.unpack_tuples(tuple, bytes(16), position, row_bytes, count, [field])
