"""Arrow record batches from decoded columns, mostly without copying the decoder's buffers.

Spark refuses a batch from a Python data source unless its Arrow schema is exactly the one that Spark derives:
microsecond UTC timestamps, 32-bit binary, every field nullable. So one column changes its form here:
timestamps, from milliseconds to microseconds.
"""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.record.columns import ColumnBuffers
from stratalog.record.reading.arrow_arrays import (
    HEADER_TYPE,
    bits_of,
    headers_of,
    keys_of,
    numbers_of,
    values_of,
)

if TYPE_CHECKING:
    AnyArray = pa.Array[Any]

EXACT_TIMESTAMP = "timestampMs"
"""A column that no query has: times as they are in the log, for copies of a topic."""
ARROW_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(HEADER_TYPE),
    "tombstone": pa.bool_(),
    EXACT_TIMESTAMP: pa.timestamp("ms", tz="UTC"),
}
"""The type of each column of ``schema``, and of the exact timestamp."""

# The range of Spark's timestamps, and of Python's: 0001-01-01T00:00:00.000Z to 9999-12-31T23:59:59.999Z.
_FIRST_TIMESTAMP_MS = -62_135_596_800_000
_LAST_TIMESTAMP_MS = 253_402_300_799_999


class RowOrigin(NamedTuple):
    """The values that consecutive rows share."""

    topic: str
    partition: int
    timestamp_type: int
    """0 create time, 1 log append time; 0 if the column is not wanted."""


class ArrowRows:
    """Rows that are being collected for the next record batch. Not thread-safe: belongs to one scan."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """Begin without rows, with the columns `names`. Raises KeyError for a name that is not a column of
        ``schema``."""
        self._names = names
        self._schema = arrow_schema(names)
        self.has_timestamp_type = "timestampType" in names
        self.columns = ColumnBuffers(keys="key" in names, values="value" in names, headers="headers" in names)
        """The decoder adds rows here; `note_origin` follows."""
        self._origins: list[tuple[RowOrigin, int]] = []
        self._noted_count = 0

    def note_origin(self, origin: RowOrigin) -> None:
        """The rows since the last call have this origin."""
        count = self.columns.row_count - self._noted_count
        if count == 0:
            return
        self._noted_count += count
        if self._origins and self._origins[-1][0] == origin:
            count += self._origins.pop()[1]
        self._origins.append((origin, count))

    def take(self) -> pa.RecordBatch:
        """The rows so far; begins anew."""
        assert self._noted_count == self.columns.row_count, "rows have an origin"
        arrays = [self._array(name) for name in self._names]
        self.columns.clear()
        self._origins.clear()
        self._noted_count = 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, name: str) -> AnyArray:
        rows = self.columns
        makers: dict[str, Callable[[], AnyArray]] = {
            "key": lambda: keys_of(rows),
            "value": lambda: values_of(rows),
            "topic": lambda: self._shared(lambda origin: _text(origin.topic)),
            "partition": lambda: self._shared(lambda origin: _number(pa.int32(), origin.partition)),
            "offset": lambda: numbers_of(pa.int64(), rows.offset),
            "timestamp": lambda: _timestamps(rows.timestamp_ms),
            "timestampType": lambda: self._shared(lambda origin: _number(pa.int32(), origin.timestamp_type)),
            "headers": lambda: headers_of(rows, null_without=True),
            "tombstone": lambda: _tombstones(rows),
            EXACT_TIMESTAMP: lambda: numbers_of(ARROW_TYPES[EXACT_TIMESTAMP], rows.timestamp_ms),
        }
        return makers[name]()

    def _shared(self, value_of: Callable[[RowOrigin], Any]) -> AnyArray:
        """A column of values that the rows of an origin share."""
        parts: list[AnyArray] = [pa.repeat(value_of(origin), count) for origin, count in self._origins]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    """The Arrow schema of these columns, in this order. Raises KeyError for a name that is not a column."""
    return pa.schema([pa.field(name, ARROW_TYPES[name], nullable=True) for name in names])


def _timestamps(milliseconds: array[int]) -> AnyArray:
    """Milliseconds as Spark's microseconds. Null outside of Spark's range, so that a producer that wrote
    nanoseconds spoils a field and not the topic. Kafka's "no timestamp" (-1) is the millisecond before 1970,
    as in Spark's Kafka source.
    """
    raw = numbers_of(pa.int64(), milliseconds)
    extremes = cast("Any", pc.min_max(raw)).as_py()
    if extremes["min"] < _FIRST_TIMESTAMP_MS or extremes["max"] > _LAST_TIMESTAMP_MS:
        first, last = (_number(pa.int64(), bound) for bound in (_FIRST_TIMESTAMP_MS, _LAST_TIMESTAMP_MS))
        is_held = pc.and_(pc.greater_equal(raw, first), pc.less_equal(raw, last))
        raw = pc.if_else(is_held, raw, _NULL)
    return raw.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def _number(kind: pa.DataType, number: int) -> Any:
    """An Arrow scalar. `pa.scalar` would import pandas, which costs each task a quarter of a second."""
    data = number.to_bytes(kind.bit_width // 8, sys.byteorder, signed=True)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(data)])[0]


def _text(text: str) -> Any:
    """An Arrow string, as `_number`."""
    data = text.encode()
    offsets = array("i", (0, len(data)))
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])[0]


_NULL: Any = pa.Array.from_buffers(pa.int64(), 1, [pa.py_buffer(bytes(1)), pa.py_buffer(bytes(8))])[0]


def _tombstones(rows: ColumnBuffers) -> AnyArray:
    return pc.and_(bits_of(rows.key_validity), pc.invert(bits_of(rows.value_validity)))
