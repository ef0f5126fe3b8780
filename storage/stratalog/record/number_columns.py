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
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.record.native.kernels import NATIVE

__all__ = (
    "differences",
    "format_numbers",
    "parse_numbers",
    "places_behind",
    "running_sums",
    "steps_behind",
    "sums",
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
    )
