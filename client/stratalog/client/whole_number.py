"""Checks whole numbers that callers give, before a message has to hold them."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from stratalog.base.errors import InvalidRequestError

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


def whole_number(name: str, value: object, least: int, most: int) -> int:
    """The value as an int; numpy's integers are accepted, too. Raises InvalidRequestError for another type,
    such as a bool or a float, and for a number outside of the range. `name` is that of the argument."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        number = operator.index(value)
        if least <= number <= most:
            return number
    raise InvalidRequestError(
        f"{name} must be a whole number in its range",
        **{name: shown(value)},
        allowed=f"{least} to {most}",
    )


def shown(value: object) -> str:
    """The value for an error. Python writes no number of more than 4300 digits, so large ones are in hex."""
    return hex(value) if isinstance(value, int) and value.bit_length() > 256 else repr(value)
