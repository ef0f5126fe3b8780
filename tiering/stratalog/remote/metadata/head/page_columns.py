"""The columns of a page as text: a line for each column, most of them as differences from what one expects.

Slices tile, lie behind each other in their objects, and end where their records end. So most numbers of a row
follow from its neighbours, and a column holds only the difference, which is small or zero. A line is a JSON
value all the same; a column of one kind of value compresses well. docs/formats/metadata.md has the encodings.

    each                  the values
    same                  the one value of all rows
    choice                [the different texts, ascending; the step from one row's index to the next one's]
    steps                 the difference from the row before
    from A                the difference from column A
    until A               the difference from column A in the next row
    between A B           the difference from B - A
    behind A B            the difference from the end of the row before with the same A: its value + its B
    parts A B ...         short arrays, whose items are columns A, B, ...; the line has [row, value] of others
    pair A B              the same for lists of one pair

A line of numbers that are all equal is that number. A column may refer to columns of earlier lines only. The
row before the first and the one behind the last count as 0. All numbers of these encodings have 64 bits, and
kernels work on them; where a difference needs more, the values are stored as they are.
"""

from __future__ import annotations

import contextlib
import json
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeGuard, cast, overload

from stratalog.base.errors import CorruptRecordError, InvalidRequestError, StoreCorruptError
from stratalog.record.number_columns import (
    differences,
    format_numbers,
    parse_numbers,
    places_behind,
    running_sums,
    steps_behind,
    sums,
)
from stratalog.remote.json_document import format_json, to_integer, to_items, to_row

Column = Sequence[object]
Numbers: TypeAlias = "array[int]"
"""Signed numbers of 64 bits."""
MAX_ROWS = 1 << 20
"""A page that claims to have more rows is refused as damaged."""
_VALUE_BYTES = 100
"""About the size of a text or of a short list."""
_FAULTS = (
    ArithmeticError,
    InvalidRequestError,
    LookupError,
    RecursionError,
    StoreCorruptError,
    TypeError,
    ValueError,
)


class Encoding(NamedTuple):
    """How a line holds a column."""

    name: str
    columns: tuple[str, ...] = ()
    """The columns that it refers to; of `parts`, the names of the parts."""


Encodings = Mapping[str, Encoding]
"""The encodings of columns, and of their parts, by name; `each` for all others."""
EACH = Encoding("each")
SAME = Encoding("same")


class EncodedColumns(NamedTuple):
    """The columns of a page as text."""

    lines: Sequence[tuple[str, ...]]
    """The name of each line's column, the name of its encoding, and the columns that it refers to."""
    texts: Sequence[str]


class PartsColumn(Sequence[object]):
    """A column of short arrays, in memory as a column for each of their items. Immutable."""

    __slots__ = ("is_pair", "others", "parts")

    def __init__(self, parts: Sequence[Column], others: Mapping[int, object], *, is_pair: bool) -> None:
        """`others`: values of rows that are no such array. `is_pair`: a value is a list with one array."""
        self.parts = parts
        self.others = others
        self.is_pair = is_pair

    @staticmethod
    def of(values: Column, count: int, *, is_pair: bool) -> PartsColumn:
        """The column of these values, whose arrays have `count` items."""
        if isinstance(values, PartsColumn):
            return values
        others: dict[int, object] = {}
        rows: list[Sequence[object]] = []
        for index, value in enumerate(values):
            row = _only_item(value) if is_pair else value
            if isinstance(row, (list, tuple)) and len(cast("Column", row)) == count:
                rows.append(cast("Column", row))
            else:
                others[index] = value
                rows.append((0,) * count)
        return PartsColumn([packed(part) for part in zip(*rows, strict=True)], others, is_pair=is_pair)

    def __len__(self) -> int:
        return len(self.parts[0])

    @overload
    def __getitem__(self, index: int) -> object: ...
    @overload
    def __getitem__(self, index: slice) -> PartsColumn: ...
    def __getitem__(self, index: int | slice) -> object:
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            others = {at - start: value for at, value in self.others.items() if start <= at < stop}
            return PartsColumn([part[start:stop] for part in self.parts], others, is_pair=self.is_pair)
        at = range(len(self))[index]
        if at in self.others:
            return self.others[at]
        row = [part[at] for part in self.parts]
        return [row] if self.is_pair else row


class ChosenColumn(list[object]):
    """A column of a few different texts, with the index of each row's text among them. Immutable."""

    __slots__ = ("indexes", "text_count")

    def __init__(self, texts: Sequence[str], indexes: Numbers) -> None:
        super().__init__(map(texts.__getitem__, indexes))
        self.indexes = indexes
        self.text_count = len(texts)


def packed(values: Column) -> Column:
    """The same values in less memory: integers in an array, equal texts once."""
    values = _with_array(values)
    if not _is_array(values) and not isinstance(values, PartsColumn) and set(map(type, values)) == {str}:
        texts: dict[object, object] = {}
        return [*map(texts.setdefault, values, values)]
    return values


def _with_array(values: Column) -> Column:
    """The values; integers in an array, if all of them fit."""
    if _is_array(values) or isinstance(values, PartsColumn) or len(values) == 0:
        return values
    if type(values[0]) is not int or set(map(type, values)) != {int}:
        return values
    try:
        return array("q", cast("Sequence[int]", values))
    except OverflowError:
        return values


def memory_bytes(column: Column) -> int:
    """About the size of a column in memory."""
    if isinstance(column, PartsColumn):
        return sum(map(memory_bytes, column.parts)) + _VALUE_BYTES * len(column.others)
    if isinstance(column, ChosenColumn):
        return 16 * len(column) + _VALUE_BYTES * column.text_count
    return 8 * len(column) + _VALUE_BYTES * _object_count(column)


def _object_count(column: Column) -> int:
    """The number of different objects that a column refers to."""
    if _is_array(column) or len(column) == 0:
        return 0
    first = column[0]
    if column[-1] is first and column.count(first) == len(column):
        return 1
    return len(set(map(id, column)))


def joined(columns: Sequence[Column]) -> Column:
    """One column behind the other."""
    columns = [column for column in columns if len(column)]
    if len(columns) <= 1:
        return columns[0] if columns else ()
    first = next((column for column in columns if isinstance(column, PartsColumn)), None)
    if first is not None:
        return _joined_parts(columns, len(first.parts), is_pair=first.is_pair)
    return _chained(columns)


def taken(column: Column, ranges: Sequence[range]) -> Column:
    """The values of these ranges of rows, one behind the other."""
    if isinstance(column, PartsColumn):
        parts = [taken(part, ranges) for part in column.parts]
        known = column.others
        rows = chain.from_iterable(ranges) if known else ()
        others = {at: known[row] for at, row in enumerate(rows) if row in known}
        return PartsColumn(parts, others, is_pair=column.is_pair)
    pieces = [column[rows.start : rows.stop] for rows in ranges]
    return _chained_numbers(cast("Sequence[Numbers]", pieces)) if _is_array(column) else _chained(pieces)


def _chained(columns: Sequence[Column]) -> Column:
    """One column behind the other, none of them of parts."""
    if all(map(_is_array, columns)):
        return _chained_numbers(cast("Sequence[Numbers]", columns))
    return [*chain.from_iterable(columns)]


def _chained_numbers(columns: Sequence[Numbers]) -> Numbers:
    numbers = array("q")
    for column in columns:
        numbers += column
    return numbers


def _joined_parts(columns: Sequence[Column], count: int, *, is_pair: bool) -> PartsColumn:
    shaped = [PartsColumn.of(column, count, is_pair=is_pair) for column in columns]
    others: dict[int, object] = {}
    row_count = 0
    for column in shaped:
        others |= {row_count + at: value for at, value in column.others.items()}
        row_count += len(column)
    parts = [joined([column.parts[number] for column in shaped]) for number in range(count)]
    return PartsColumn(parts, others, is_pair=is_pair)


def _only_item(value: object) -> object:
    if isinstance(value, (list, tuple)) and len(items := cast("Column", value)) == 1:
        return items[0]
    return None


def _is_array(column: Column) -> TypeGuard[Numbers]:
    return isinstance(column, array)


def encode_columns(columns: Mapping[str, Column], encodings: Encodings) -> EncodedColumns:
    """The lines of these columns, which are of one length that is not 0. A column whose values its encoding
    does not suit is stored as it is."""
    encoder = _Encoder(columns, encodings)
    for name in columns:
        encoder.take(name)
    return EncodedColumns(encoder.lines, encoder.texts)


def decode_columns(
    lines: Sequence[Sequence[str]], texts: Sequence[str], row_count: int, what: str
) -> dict[str, Column]:
    """The columns in these lines by name, parts among them. Raises StoreCorruptError."""
    found: dict[str, Column] = {}
    for (name, encoding, *references), text in zip(lines, texts, strict=True):
        try:
            others = [found[reference] for reference in references]
            found[name] = _DECODERS[encoding](text, others, row_count)
        except _FAULTS as error:
            raise StoreCorruptError(
                "a column of a page cannot be decoded; keep the page and investigate",
                what=what,
                column=name,
                reason=repr(error),
            ) from error
        if len(found[name]) != row_count:
            raise StoreCorruptError(
                "a column of a page has another number of rows; keep the page and investigate",
                what=what,
                column=name,
                rows=len(found[name]),
                expected=row_count,
            )
    return found


class _Encoder:
    """Encodes the columns of one page, each behind those that it refers to. Not thread-safe: one call uses
    it."""

    def __init__(self, columns: Mapping[str, Column], encodings: Encodings) -> None:
        self._columns = dict(columns)
        self._encodings = encodings
        self._taken: set[str] = set()
        self.lines: list[tuple[str, ...]] = []
        self.texts: list[str] = []

    def take(self, name: str) -> None:
        """Append the line of a column, unless it is there."""
        if name in self._taken:
            return
        self._taken.add(name)
        values = self._columns[name] = _with_array(self._columns[name])
        encoding = self._encodings.get(name, EACH)
        if _is_same(values):
            self._append(name, SAME, format_json(values[0]))
        elif encoding.name in (_PARTS, _PAIR):
            self._take_parts(name, encoding, values)
        else:
            for reference in encoding.columns:
                self.take(reference)
            text = self._encoded(encoding, values)
            if text is None:
                encoding = EACH
                text = format_numbers(values) if _is_array(values) else format_json([*values])
            self._append(name, encoding, text)

    def _encoded(self, encoding: Encoding, values: Column) -> str | None:
        """The line of a column; None if the encoding does not suit its values."""
        others = [self._columns[reference] for reference in encoding.columns]
        if encoding.name == _CHOICE:
            return _encode_choice(values)
        if encoding.name not in _ENCODERS or not all(map(_is_array, (values, *others[-1:]))):
            return None
        try:
            return _format_numbers(_ENCODERS[encoding.name](cast("Numbers", values), others))
        except InvalidRequestError:
            return None

    def _take_parts(self, name: str, encoding: Encoding, values: Column) -> None:
        column = PartsColumn.of(values, len(encoding.columns), is_pair=encoding.name == _PAIR)
        self._columns.update(zip(encoding.columns, column.parts, strict=True))
        for part in encoding.columns:
            self.take(part)
        self._append(name, encoding, format_json([*column.others.items()]))

    def _append(self, name: str, encoding: Encoding, text: str) -> None:
        self.lines.append((name, encoding.name, *encoding.columns))
        self.texts.append(text)


def _is_same(values: Column) -> bool:
    """Whether all rows have one plain value, or an empty list each."""
    if isinstance(values, PartsColumn):
        return False
    if _is_array(values):
        return _is_constant(values)
    first = values[0]
    if isinstance(first, (list, tuple)):
        return not any(values) and set(map(type, values)) <= {list, tuple}
    if isinstance(first, dict) or values[-1] != first or values.count(first) != len(values):
        return False
    return len(set(map(type, values))) == 1


def _is_constant(numbers: Numbers) -> bool:
    return numbers[-1] == numbers[0] and numbers == numbers[:1] * len(numbers)


def _format_numbers(numbers: Numbers) -> str:
    """The line of numbers."""
    return str(numbers[0]) if _is_constant(numbers) else format_numbers(numbers)


def _parse_numbers(text: str, count: int) -> Numbers:
    """The numbers of a line. Raises one of `_FAULTS`."""
    if text.startswith("["):
        with contextlib.suppress(CorruptRecordError):
            return parse_numbers(text, count)
    return _to_numbers(json.loads(text), count)


def _to_numbers(value: object, count: int) -> Numbers:
    """The numbers of a parsed line. Raises one of `_FAULTS`."""
    if type(value) is int:
        return array("q", [value]) * count
    items = to_row(value, "numbers", count)
    if set(map(type, items)) != {int}:
        raise StoreCorruptError("a number is expected in each row")
    return array("q", cast("Sequence[int]", items))


def _encode_choice(values: Column) -> str | None:
    if set(map(type, values)) != {str}:
        return None
    texts = sorted(set(cast("Sequence[str]", values)))
    indexes = _indexes(values, texts)
    return f"[{format_json(texts)},{_format_numbers(differences(indexes, indexes, -1))}]"


def _decode_choice(text: str, _: Sequence[Column], count: int) -> Column:
    stored, steps = to_row(json.loads(text), "choice", 2)
    texts = to_items(stored, "choice")
    if set(map(type, texts)) != {str} or len(set(texts)) != len(texts):
        raise StoreCorruptError("different texts are expected")
    indexes = running_sums(_to_numbers(steps, count))
    if min(indexes) < 0:
        raise StoreCorruptError("an index is negative")
    return ChosenColumn(cast("Sequence[str]", texts), indexes)


def _indexes(values: Column, different: Iterable[object]) -> Numbers:
    """The index of each value among the different ones."""
    indexes = {value: index for index, value in enumerate(different)}
    return array("q", map(indexes.__getitem__, values))


def _between(others: Sequence[Numbers]) -> Numbers:
    first, second = others
    return differences(second, first, 0)


def _behind(others: Sequence[Column]) -> tuple[Numbers, Numbers]:
    """The groups of rows as numbers, and the sizes."""
    groups, sizes = others
    numbers = groups.indexes if isinstance(groups, ChosenColumn) else _indexes(groups, dict.fromkeys(groups))
    return numbers, cast("Numbers", sizes)


def _decode_each(text: str, _: Sequence[Column], count: int) -> Column:
    if text.startswith("["):
        with contextlib.suppress(CorruptRecordError):
            return parse_numbers(text, count)
    return packed(to_row(json.loads(text), "values", count))


def _decode_same(text: str, _: Sequence[Column], count: int) -> Column:
    value: object = json.loads(text)
    one = _with_array([value])
    return one * count if _is_array(one) else [value] * count


def _decode_parts(text: str, others: Sequence[Column], count: int, *, is_pair: bool) -> Column:
    if not others:
        raise StoreCorruptError("an array has no items")
    rows = [to_row(item, "other rows", 2) for item in to_items(json.loads(text), "other rows")]
    exceptions = {to_integer(at, "other rows", 0, count - 1): value for at, value in rows}
    return PartsColumn(others, exceptions, is_pair=is_pair)


_Combine = Callable[[Numbers, Sequence[Any]], Numbers]
_Decode = Callable[[str, Sequence[Column], int], Column]


def _decoding_numbers(combine: _Combine) -> _Decode:
    return lambda text, others, count: combine(_parse_numbers(text, count), others)


_CHOICE = "choice"
_PARTS = "parts"
_PAIR = "pair"
_ENCODERS: Mapping[str, _Combine] = {
    "steps": lambda values, _: differences(values, values, -1),
    "from": lambda values, others: differences(values, others[0], 0),
    "until": lambda values, others: differences(values, others[0], 1),
    "between": lambda values, others: differences(values, _between(others), 0),
    "behind": lambda values, others: steps_behind(values, *_behind(others)),
}
"""The encodings of numbers by columns, the last of which has numbers, too."""
_DECODERS: Mapping[str, _Decode] = {
    "each": _decode_each,
    "same": _decode_same,
    _CHOICE: _decode_choice,
    "steps": _decoding_numbers(lambda numbers, _: running_sums(numbers)),
    "from": _decoding_numbers(lambda numbers, others: sums(numbers, others[0], 0)),
    "until": _decoding_numbers(lambda numbers, others: sums(numbers, others[0], 1)),
    "between": _decoding_numbers(lambda numbers, others: sums(numbers, _between(others), 0)),
    "behind": _decoding_numbers(lambda numbers, others: places_behind(numbers, *_behind(others))),
    _PARTS: lambda text, others, count: _decode_parts(text, others, count, is_pair=False),
    _PAIR: lambda text, others, count: _decode_parts(text, others, count, is_pair=True),
}
