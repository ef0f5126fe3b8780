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
row before the first and the one behind the last count as 0.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from operator import add, sub
from typing import NamedTuple, cast, overload

from stratalog.base.errors import StoreCorruptError
from stratalog.remote.json_document import format_json, to_integer, to_items, to_row, to_text

Column = Sequence[object]
Numbers = Sequence[int]
MAX_ROWS = 1 << 20
"""A page that claims to have more rows is refused as damaged."""
_FAULTS = (ArithmeticError, LookupError, RecursionError, StoreCorruptError, TypeError, ValueError)


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


def packed(values: Column) -> Column:
    """The same values in less memory: integers in an array, equal texts once."""
    if _is_array(values) or isinstance(values, PartsColumn):
        return values
    kinds = set(map(type, values))
    if kinds == {int}:
        return _array(cast("Numbers", values))
    if kinds == {str}:
        texts: dict[object, object] = {}
        return [texts.setdefault(value, value) for value in values]
    return values


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
    return _chained([column[rows.start : rows.stop] for rows in ranges])


def _chained(columns: Sequence[Column]) -> Column:
    """One column behind the other, none of them of parts."""
    if all(map(_is_array, columns)):
        numbers = array("q")
        for part in cast("Sequence[array[int]]", columns):
            numbers += part
        return numbers
    values: list[object] = []
    for column in columns:
        values += column
    return values


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


def _is_array(column: Column) -> bool:
    return isinstance(column, array)


def _array(numbers: Numbers) -> Numbers:
    """The numbers as an array; as they are where one is too large for that."""
    try:
        return array("q", numbers)
    except OverflowError:
        return numbers


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
            line: object = json.loads(text)
            others = [found[reference] for reference in references]
            found[name] = _DECODERS[encoding](line, others, row_count)
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
        values = self._columns[name]
        encoding = self._encodings.get(name, EACH)
        if _is_same(values):
            self._append(name, SAME, values[0])
        elif encoding.name in (_PARTS, _PAIR):
            self._take_parts(name, encoding, values)
        elif encoding.name in _ENCODERS:
            self._take_encoded(name, encoding, values)
        else:
            self._append(name, EACH, list(values))

    def _take_encoded(self, name: str, encoding: Encoding, values: Column) -> None:
        for reference in encoding.columns:
            self.take(reference)
        others = [self._columns[reference] for reference in encoding.columns]
        line = _ENCODERS[encoding.name](values, others)
        if line is None:
            self._append(name, EACH, list(values))
        else:
            self._append(name, encoding, line)

    def _take_parts(self, name: str, encoding: Encoding, values: Column) -> None:
        column = PartsColumn.of(values, len(encoding.columns), is_pair=encoding.name == _PAIR)
        self._columns.update(zip(encoding.columns, column.parts, strict=True))
        for part in encoding.columns:
            self.take(part)
        self._append(name, encoding, [*column.others.items()])

    def _append(self, name: str, encoding: Encoding, line: object) -> None:
        self.lines.append((name, encoding.name, *encoding.columns))
        self.texts.append(format_json(line))


def _is_same(values: Column) -> bool:
    """Whether all rows have one plain value, or an empty list each."""
    if isinstance(values, PartsColumn):
        return False
    first = values[0]
    if isinstance(first, (list, tuple)):
        return not any(values) and all(isinstance(value, (list, tuple)) for value in values)
    if isinstance(first, dict) or values[-1] != first or values.count(first) != len(values):
        return False
    return _is_array(values) or len(set(map(type, values))) == 1


def _is_numbers(column: Column) -> bool:
    return _is_array(column) or set(map(type, column)) == {int}


def _short(numbers: Numbers) -> object:
    """The line of numbers."""
    first = numbers[0]
    return first if numbers[-1] == first and numbers.count(first) == len(numbers) else numbers


def _numbers(line: object, count: int) -> Numbers:
    """The numbers of a line. Raises StoreCorruptError."""
    if type(line) is int:
        return [line] * count
    items = to_row(line, "numbers", count)
    if not _is_numbers(items):
        raise StoreCorruptError("a number is expected in each row")
    return cast("Numbers", items)


def _encode_choice(values: Column, _: Sequence[Column]) -> object:
    if set(map(type, values)) != {str}:
        return None
    texts = sorted(set(cast("Sequence[str]", values)))
    indexes = {text: index for index, text in enumerate(texts)}
    return [texts, _short(_steps([indexes[text] for text in cast("Sequence[str]", values)]))]


def _decode_choice(line: object, _: Sequence[Column], count: int) -> Column:
    stored, steps = to_row(line, "choice", 2)
    texts = [to_text(text, "choice") for text in to_items(stored, "choice")]
    indexes = list(accumulate(_numbers(steps, count)))
    if min(indexes) < 0:
        raise StoreCorruptError("an index is negative")
    return [texts[index] for index in indexes]


def _steps(values: Numbers) -> Numbers:
    return [values[0], *map(sub, values[1:], values)]


def _next_row(values: Column) -> Iterator[int]:
    """The values of the next rows, 0 for the last one."""
    return chain(cast("Numbers", values[1:]), (0,))


def _between(others: Sequence[Column]) -> Iterator[int]:
    first, second = cast("Sequence[Numbers]", others)
    return map(sub, second, first)


def _encode_behind(values: Numbers, others: Sequence[Column]) -> Numbers:
    ends: dict[object, int] = {}
    result: list[int] = []
    for value, group, size in zip(values, others[0], cast("Numbers", others[1]), strict=True):
        result.append(value - ends.get(group, 0))
        ends[group] = value + size
    return result


def _decode_behind(numbers: Numbers, others: Sequence[Column]) -> Numbers:
    ends: dict[object, int] = {}
    result: list[int] = []
    for number, group, size in zip(numbers, others[0], cast("Numbers", others[1]), strict=True):
        value = number + ends.get(group, 0)
        ends[group] = value + size
        result.append(value)
    return _array(result)


def _decode_each(line: object, _: Sequence[Column], count: int) -> Column:
    return packed(to_row(line, "values", count))


def _decode_same(line: object, _: Sequence[Column], count: int) -> Column:
    return packed([line] * count)


def _decode_parts(line: object, others: Sequence[Column], count: int, *, is_pair: bool) -> Column:
    if not others:
        raise StoreCorruptError("an array has no items")
    rows = [to_row(item, "other rows", 2) for item in to_items(line, "other rows")]
    exceptions = {to_integer(at, "other rows", 0, count - 1): value for at, value in rows}
    return PartsColumn(others, exceptions, is_pair=is_pair)


_Encode = Callable[[Column, Sequence[Column]], object]
_Decode = Callable[[object, Sequence[Column], int], Column]


def _encoding_numbers(encode: Callable[[Numbers, Sequence[Column]], Iterator[int] | Numbers]) -> _Encode:
    """An encoder of integers by columns, the last of which hold integers, too."""

    def encode_numbers(values: Column, others: Sequence[Column]) -> object:
        if not _is_numbers(values) or not all(map(_is_numbers, others[-1:])):
            return None
        return _short([*encode(cast("Numbers", values), others)])

    return encode_numbers


def _decoding_numbers(decode: Callable[[Numbers, Sequence[Column]], Iterator[int] | Numbers]) -> _Decode:
    return lambda line, others, count: _array([*decode(_numbers(line, count), others)])


_PARTS = "parts"
_PAIR = "pair"
_ENCODERS: Mapping[str, _Encode] = {
    "choice": _encode_choice,
    "steps": _encoding_numbers(lambda values, _: _steps(values)),
    "from": _encoding_numbers(lambda values, others: map(sub, values, cast("Numbers", others[0]))),
    "until": _encoding_numbers(lambda values, others: map(sub, values, _next_row(others[0]))),
    "between": _encoding_numbers(lambda values, others: map(sub, values, _between(others))),
    "behind": _encoding_numbers(_encode_behind),
}
_DECODERS: Mapping[str, _Decode] = {
    "each": _decode_each,
    "same": _decode_same,
    "choice": _decode_choice,
    "steps": _decoding_numbers(lambda numbers, _: accumulate(numbers)),
    "from": _decoding_numbers(lambda numbers, others: map(add, numbers, cast("Numbers", others[0]))),
    "until": _decoding_numbers(lambda numbers, others: map(add, numbers, _next_row(others[0]))),
    "between": _decoding_numbers(lambda numbers, others: map(add, numbers, _between(others))),
    "behind": _decoding_numbers(_decode_behind),
    _PARTS: lambda line, others, count: _decode_parts(line, others, count, is_pair=False),
    _PAIR: lambda line, others, count: _decode_parts(line, others, count, is_pair=True),
}
