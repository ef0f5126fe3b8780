"""Kernels for columns of numbers, compiled if possible: their text as JSON, and how they follow from others.

A column is an ``array("q")``: signed integers of 64 bits. Pages of checkpoints consist of such columns. The
compiled functions hold the interpreter lock, because a call takes microseconds; without them come their
twins, ``pure_number_columns``. Both have the same results and raise the same errors. All are safe on
any text and numbers. A result that does not fit 64 bits, columns of different lengths, and another object
than such an array raise InvalidRequestError. Thread-safe as long as no other thread changes the columns.

format_numbers(numbers) -> str
    A JSON list without white space.
parse_numbers(text, count) -> array
    The reverse. Raises CorruptRecordError unless the text is exactly what `format_numbers` writes for `count`
    numbers, of which there is one at least.
differences(values, others, shift) -> array
    values[i] - others[i + shift]; `shift` is -1, 0 or 1, and outside of a column is 0.
sums(values, others, shift) -> array
    values[i] + others[i + shift], in the same way.
running_sums(values) -> array
    values[0] + ... + values[i].
steps_behind(values, groups, sizes) -> array
    The difference of each value from the end of the last row before in its group: that row's value + size; 0
    before the first one. A group is a number below the number of rows; others raise InvalidRequestError.
places_behind(steps, groups, sizes) -> array
    The reverse: the values from the differences.
tuple_columns(rows, shape) -> (columns, lists)
    The numbers in tuples that are alike, as the columns of one array, one behind the other. `shape` says how
    many each field has: `SKIPPED` for none, `NUMBER` for a field that is one, more for a tuple of so many. A
    negative count is for a field that may also be None: before its columns comes one with 1, or 0 for None,
    and then its numbers are 0. `PAIRS` is for a tuple of any number of pairs: its column has the number of
    pairs up to and with those of the row, and `lists` has an array of all pairs for each such field. Unsigned
    numbers become the signed ones with the same 64 bits. Tuples of another shape, and numbers of more bits,
    raise InvalidRequestError.
unpack_tuples(kind, data, position, row_bytes, count, fields) -> list
    A tuple of that kind from each of `count` rows of `row_bytes` bytes, of which the first begins at
    `position`. `fields` has for each of its fields a `PackedField`, or a list with its values. The rows lie
    in the data, and all places in their row: the caller has looked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.record.native.kernels import NATIVE
from stratalog.record.pure_number_columns import NUMBER, PAIRS, SKIPPED, PackedField

__all__ = (
    "NUMBER",
    "PAIRS",
    "SKIPPED",
    "PackedField",
    "differences",
    "format_numbers",
    "parse_numbers",
    "places_behind",
    "running_sums",
    "steps_behind",
    "sums",
    "tuple_columns",
    "unpack_tuples",
)

if TYPE_CHECKING or not NATIVE:
    from stratalog.record.pure_number_columns import (
        differences,
        format_numbers,
        parse_numbers,
        places_behind,
        running_sums,
        steps_behind,
        sums,
        tuple_columns,
        unpack_tuples,
    )
else:
    from stratalog.record.native._kernels import (
        differences,
        format_numbers,
        parse_numbers,
        places_behind,
        running_sums,
        steps_behind,
        sums,
        tuple_columns,
        unpack_tuples,
    )
