"""Arrow record batches from decoded columns, mostly without copying the decoder's buffers.

One column changes its form here: timestamps, from milliseconds to microseconds.
"""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.pipeline.schema import arrow_schema
from stratalog.record.columns import ColumnBuffers
from stratalog.record.reading.arrow_arrays import bits_of, headers_of, keys_of, numbers_of, values_of

if TYPE_CHECKING:
    AnyArray = pa.Array[Any]

# The range of Spark's timestamps, and of Python's: 0001-01-01T00:00:00.000Z to 9999-12-31T23:59:59.999Z.
_FIRST_TIMESTAMP_MS = pa.scalar(-62_135_596_800_000, pa.int64())
_LAST_TIMESTAMP_MS = pa.scalar(253_402_300_799_999, pa.int64())


class ArrowRows:
    """Makes record batches of one partition's rows with the requested columns. Immutable, so thread-safe."""

    def __init__(self, topic: str, partition: int, names: tuple[str, ...]) -> None:
        """Begin without rows, with the columns `names`. Raises KeyError for a name that is not a column of
        ``schema``."""
        self._topic = topic
        self._partition = partition
        self._names = names
        self._schema = arrow_schema(names)

    def batch(self, rows: ColumnBuffers, timestamp_type: int) -> pa.RecordBatch:
        """The rows, all of one timestamp type (0 create time, 1 log append time)."""
        arrays = [self._array(name, rows, timestamp_type) for name in self._names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, name: str, rows: ColumnBuffers, timestamp_type: int) -> AnyArray:
        count = rows.row_count
        makers: dict[str, Callable[[], AnyArray]] = {
            "key": lambda: keys_of(rows),
            "value": lambda: values_of(rows),
            "topic": lambda: pa.repeat(pa.scalar(self._topic), count),
            "partition": lambda: pa.repeat(pa.scalar(self._partition, pa.int32()), count),
            "offset": lambda: numbers_of(pa.int64(), rows.offset),
            "timestamp": lambda: _timestamps(rows.timestamp_ms),
            "timestampType": lambda: pa.repeat(pa.scalar(timestamp_type, pa.int32()), count),
            "headers": lambda: headers_of(rows, null_without=True),
            "tombstone": lambda: _tombstones(rows),
        }
        return makers[name]()


def _timestamps(milliseconds: array[int]) -> AnyArray:
    """Milliseconds as Spark's microseconds. Null outside of Spark's range, so that a producer that wrote
    nanoseconds spoils a field and not the topic. Kafka's "no timestamp" (-1) is the millisecond before 1970,
    as in Spark's Kafka source.
    """
    raw = numbers_of(pa.int64(), milliseconds)
    is_held = pc.and_(pc.greater_equal(raw, _FIRST_TIMESTAMP_MS), pc.less_equal(raw, _LAST_TIMESTAMP_MS))
    held: AnyArray = pc.if_else(is_held, raw, pa.scalar(None, pa.int64()))
    return held.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def _tombstones(rows: ColumnBuffers) -> AnyArray:
    return pc.and_(bits_of(rows.key_validity), pc.invert(bits_of(rows.value_validity)))
