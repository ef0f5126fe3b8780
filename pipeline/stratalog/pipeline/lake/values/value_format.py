"""How the values of a topic become a column of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    AnyArray = pa.Array[Any]


class BadValue(NamedTuple):
    """A value that could not be decoded."""

    place: int
    """Among the values of the call, from 0."""
    error: str


class DecodedValues(NamedTuple):
    """Decoded values."""

    column: AnyArray
    """One for each value; null where the value is bad."""
    bad: Sequence[BadValue]
    """In the order of their places."""


class ValueFormat(Protocol):
    """Decodes values. Immutable, pickled to the tasks."""

    @property
    def encoding(self) -> str:
        """Names the format and its schema: two formats that decode differently have different encodings."""
        ...

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column."""
        ...

    def decode(self, values: AnyArray) -> DecodedValues:
        """Binary values, none of which is null, as a column."""
        ...


class RawValues:
    """Implements `ValueFormat` by the bytes as they are. Immutable."""

    encoding = "raw"
    arrow_type: pa.DataType = pa.binary()

    def decode(self, values: AnyArray) -> DecodedValues:
        """All values; none is bad."""
        return DecodedValues(values, ())
