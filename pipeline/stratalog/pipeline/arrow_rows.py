"""Arrow record batches from decoded columns, mostly without copying the decoder's buffers.

Two columns change their form: validity from one byte to one bit a row, by an Arrow cast, and timestamps from
milliseconds to microseconds.
"""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.pipeline.schema import HEADER_TYPE, arrow_schema
from stratalog.record.columns import ColumnBuffers

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
            "key": lambda: _binary(pa.binary(), count, rows.key_offsets, rows.key_data, rows.key_validity),
            "value": lambda: _binary(
                pa.binary(), count, rows.value_offsets, rows.value_data, rows.value_validity
            ),
            "topic": lambda: pa.repeat(pa.scalar(self._topic), count),
            "partition": lambda: pa.repeat(pa.scalar(self._partition, pa.int32()), count),
            "offset": lambda: pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(rows.offset)]),
            "timestamp": lambda: _timestamps(rows.timestamp_ms),
            "timestampType": lambda: pa.repeat(pa.scalar(timestamp_type, pa.int32()), count),
            "headers": lambda: _headers(rows),
            "tombstone": lambda: _tombstones(rows),
        }
        return makers[name]()


def _bits(validity: bytearray) -> AnyArray:
    """One boolean a row from one byte a row."""
    bytes_ = pa.Array.from_buffers(pa.uint8(), len(validity), [None, pa.py_buffer(validity)])
    return bytes_.cast(pa.bool_())


def _binary(
    kind: pa.DataType, count: int, offsets: array[int], data: bytearray, validity: bytearray | None
) -> AnyArray:
    bits = None
    if validity is not None and 0 in validity:
        bits = _bits(validity).buffers()[1]
    return pa.Array.from_buffers(kind, count, [bits, pa.py_buffer(offsets), pa.py_buffer(data)])


def _timestamps(milliseconds: array[int]) -> AnyArray:
    """Milliseconds as Spark's microseconds. Null outside of Spark's range, so that a producer that wrote
    nanoseconds spoils a field and not the topic. Kafka's "no timestamp" (-1) is the millisecond before 1970,
    as in Spark's Kafka source.
    """
    raw = pa.Array.from_buffers(pa.int64(), len(milliseconds), [None, pa.py_buffer(milliseconds)])
    is_held = pc.and_(pc.greater_equal(raw, _FIRST_TIMESTAMP_MS), pc.less_equal(raw, _LAST_TIMESTAMP_MS))
    held: AnyArray = pc.if_else(is_held, raw, pa.scalar(None, pa.int64()))
    return held.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def _headers(rows: ColumnBuffers) -> AnyArray:
    """A list for each row; null for a record without headers, as in Spark's Kafka source."""
    count = rows.header_count
    names = _binary(pa.string(), count, rows.header_name_offsets, rows.header_name_data, None)
    values = _binary(
        pa.binary(), count, rows.header_value_offsets, rows.header_value_data, rows.header_value_validity
    )
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADER_TYPE))
    ends = pa.Array.from_buffers(
        pa.int32(), rows.row_count + 1, [None, pa.py_buffer(rows.header_list_offsets)]
    )
    present = pc.not_equal(ends[1:], ends[:-1]).buffers()[1] if count else _no_bits(rows.row_count)
    return pa.ListArray.from_buffers(
        pa.list_(HEADER_TYPE),
        rows.row_count,
        [present, pa.py_buffer(rows.header_list_offsets)],
        children=cast("list[AnyArray]", [pairs]),
    )


def _no_bits(count: int) -> pa.Buffer:
    return pa.py_buffer(bytes((count + 7) // 8))


def _tombstones(rows: ColumnBuffers) -> AnyArray:
    return pc.and_(_bits(rows.key_validity), pc.invert(_bits(rows.value_validity)))
