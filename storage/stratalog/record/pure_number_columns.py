"""The kernels for columns of numbers in plain Python: twins of the compiled ones.

``number_columns`` documents them.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from operator import add, sub
from typing import Any, NamedTuple, TypeVar

from stratalog.base.errors import CorruptRecordError, InvalidRequestError
from stratalog.base.filesystem import Buffer

NOT_NUMBERS = "the text is not a list of so many numbers"
NUMBER_TOO_LARGE = "a number does not fit 64 bits, or a group is not one of the column's"
OTHER_LENGTH = "columns differ in length"
NO_COLUMN = "a column of 64-bit numbers is expected"
OTHER_SHAPE = "a tuple does not have the shape of the others"
SKIPPED = 0
NUMBER = 1
PAIRS = 100
T = TypeVar("T", bound=tuple[Any, ...])
_NUMBER = "(?:0|-?[1-9][0-9]{0,18})"
_NUMBERS = re.compile(rf"\[{_NUMBER}(?:,{_NUMBER})*\]")


class PackedField(NamedTuple):
    """The places of a field in a row of bytes."""

    kind: type[tuple[Any, ...]] | None
    """The type of a field that is a tuple of numbers; None: it is a number."""
    places: tuple[tuple[int, str], ...]
    """For each number its position in the row and its code, as ``struct`` has them: I, i, q or Q."""
    flags_position: int = 0
    """The position of 32 flags."""
    mask: int = 0
    """The field is None unless one of these flags is set; 0: it is always there."""


def format_numbers(numbers: array[int]) -> str:
    """The plain-Python form of ``number_columns.format_numbers``."""
    return f"[{','.join(map(str, _checked(numbers)))}]"


def parse_numbers(text: str, count: int) -> array[int]:
    """The plain-Python form of ``number_columns.parse_numbers``."""
    if _NUMBERS.fullmatch(text) is None:
        raise CorruptRecordError(NOT_NUMBERS)
    try:
        numbers = array("q", map(int, text[1:-1].split(",")))
    except OverflowError as error:
        raise CorruptRecordError(NOT_NUMBERS) from error
    if len(numbers) != count:
        raise CorruptRecordError(NOT_NUMBERS)
    return numbers


def differences(values: array[int], others: array[int], shift: int) -> array[int]:
    """The plain-Python form of ``number_columns.differences``."""
    return _fitting(map(sub, values, _shifted(values, others, shift)))


def sums(values: array[int], others: array[int], shift: int) -> array[int]:
    """The plain-Python form of ``number_columns.sums``."""
    return _fitting(map(add, values, _shifted(values, others, shift)))


def running_sums(values: array[int]) -> array[int]:
    """The plain-Python form of ``number_columns.running_sums``."""
    return _fitting(accumulate(_checked(values)))


def steps_behind(values: array[int], groups: array[int], sizes: array[int]) -> array[int]:
    """The plain-Python form of ``number_columns.steps_behind``."""
    ends = _ends(values, groups, sizes)

    def step(value: int, group: int, size: int) -> int:
        result = value - ends[group]
        ends[group] = value + size
        return result

    return _fitting(map(step, values, groups, sizes))


def places_behind(steps: array[int], groups: array[int], sizes: array[int]) -> array[int]:
    """The plain-Python form of ``number_columns.places_behind``."""
    ends = _ends(steps, groups, sizes)

    def place(number: int, group: int, size: int) -> int:
        value = number + ends[group]
        ends[group] = value + size
        return value

    return _fitting(map(place, steps, groups, sizes))


def tuple_columns(rows: Sequence[Any], shape: Sequence[int]) -> tuple[array[int], list[array[int]]]:
    """The plain-Python form of ``number_columns.tuple_columns``."""
    columns: array[int] = array("q")
    lists: list[array[int]] = []
    _require_tuples(rows)
    if any(len(row) != len(shape) for row in rows):
        raise InvalidRequestError(OTHER_SHAPE)
    for place, kind in enumerate(shape):
        values = [row[place] for row in rows]
        if kind == PAIRS:
            _require_tuples(values)
            pairs = [pair for value in values for pair in value]
            columns += array("q", accumulate(map(len, values)))
            lists.append(array("q", chain.from_iterable(zip(*_numbers_of(pairs, 2), strict=True))))
            continue
        if kind < 0:
            columns += array("q", [value is not None for value in values])
            none = 0 if kind == -NUMBER else (0,) * -kind
            values = [none if value is None else value for value in values]
        if abs(kind) == NUMBER:
            columns.extend(_signed(values))
        elif kind != SKIPPED:
            for column in _numbers_of(values, abs(kind)):
                columns += column
    return columns, lists


def unpack_tuples(
    kind: type[T],
    data: Buffer,
    position: int,
    row_bytes: int,
    count: int,
    fields: Sequence[PackedField | list[Any]],
) -> list[T]:
    """The plain-Python form of ``number_columns.unpack_tuples``."""
    places = range(position, position + count * row_bytes, row_bytes)
    assert row_bytes > 0, "rows have bytes"
    assert max(position, places.stop) <= len(data), "rows lie in the data"
    columns = [_column_of(field, data, row_bytes, places) for field in fields]
    return _named(kind, columns)


def _named(kind: Any, columns: Sequence[Sequence[Any]]) -> list[Any]:
    """Named tuples of that kind from columns."""
    return [kind._make(row) for row in zip(*columns, strict=True)]


def _column_of(
    field: PackedField | list[Any], data: Buffer, row_bytes: int, places: Sequence[int]
) -> Sequence[Any]:
    if isinstance(field, list):
        assert len(field) == len(places), "a column has a value for each row"
        return field
    ends = [position + struct.calcsize(f"<{code}") for position, code in field.places]
    assert max(ends) <= row_bytes, "places lie in their row"
    assert field.flags_position + 4 <= row_bytes, "flags lie in their row"
    numbers = [
        [struct.unpack_from(f"<{code}", data, place + position)[0] for place in places]
        for position, code in field.places
    ]
    values: Sequence[Any] = numbers[0] if field.kind is None else _named(field.kind, numbers)
    if not field.mask:
        return values
    flags = [struct.unpack_from("<I", data, place + field.flags_position)[0] for place in places]
    return [value if bits & field.mask else None for value, bits in zip(values, flags, strict=True)]


def _numbers_of(tuples: Sequence[Any], size: int) -> list[array[int]]:
    """The columns of tuples of that size."""
    _require_tuples(tuples)
    if any(len(one) != size for one in tuples):
        raise InvalidRequestError(OTHER_SHAPE)
    return [_signed([one[place] for one in tuples]) for place in range(size)]


def _require_tuples(values: Sequence[object]) -> None:
    if not all(isinstance(value, tuple) for value in values):
        raise InvalidRequestError(OTHER_SHAPE)


def _signed(values: Sequence[Any]) -> array[int]:
    if not all(isinstance(value, int) for value in values):
        raise InvalidRequestError(OTHER_SHAPE)
    if not all(-(1 << 63) <= value < 1 << 64 for value in values):
        raise InvalidRequestError(NUMBER_TOO_LARGE)
    return array("q", [value - (value >> 63 << 64) if value > 0 else value for value in values])


def _ends(values: array[int], groups: array[int], sizes: array[int]) -> array[int]:
    """The end of each group, which is 0 before its first row."""
    _shifted(values, groups, 0)
    _shifted(values, sizes, 0)
    if len(groups) > 0 and not 0 <= min(groups) <= max(groups) < len(groups):
        raise InvalidRequestError(NUMBER_TOO_LARGE)
    return array("q", [0]) * len(values)


def _shifted(values: array[int], others: array[int], shift: int) -> array[int]:
    """The number that each row meets."""
    if len(_checked(values)) != len(_checked(others)):
        raise InvalidRequestError(OTHER_LENGTH)
    outside = array("q", [0])
    if shift < 0:
        return outside + others[:-1]
    return others[1:] + outside if shift > 0 else others


def _checked(column: array[int]) -> array[int]:
    if type(column) is not array or column.typecode != "q":
        raise InvalidRequestError(NO_COLUMN)
    return column


def _fitting(numbers: Iterable[int]) -> array[int]:
    try:
        return array("q", numbers)
    except OverflowError as error:
        raise InvalidRequestError(NUMBER_TOO_LARGE) from error
