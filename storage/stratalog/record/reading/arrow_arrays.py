"""Arrow arrays over the buffers of `ColumnBuffers`, without a copy; validity becomes one bit a row.

Needs pyarrow, so it is imported where columns are asked for.
"""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.record.columns import ColumnBuffers

if TYPE_CHECKING:
    AnyArray = pa.Array[Any]

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])


def keys_of(rows: ColumnBuffers) -> AnyArray:
    """The key of each row, as binary."""
    return _binary(pa.binary(), rows.row_count, rows.key_offsets, rows.key_data, rows.key_validity)


def values_of(rows: ColumnBuffers) -> AnyArray:
    """The value of each row, as binary."""
    return _binary(pa.binary(), rows.row_count, rows.value_offsets, rows.value_data, rows.value_validity)


def numbers_of(kind: pa.DataType, numbers: array[int]) -> AnyArray:
    """A column of numbers, of a type of 64 bits."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def headers_of(rows: ColumnBuffers, *, null_without: bool) -> AnyArray:
    """A list of headers for each row. With `null_without` a record without headers has null, not an empty
    list."""
    count = rows.header_count
    names = _binary(pa.string(), count, rows.header_name_offsets, rows.header_name_data, None)
    values = _binary(
        pa.binary(), count, rows.header_value_offsets, rows.header_value_data, rows.header_value_validity
    )
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADER_TYPE))
    present: pa.Buffer | None = None
    if null_without and not count:
        present = pa.py_buffer(bytes((rows.row_count + 7) // 8))
    elif null_without:
        ends = pa.Array.from_buffers(
            pa.int32(), rows.row_count + 1, [None, pa.py_buffer(rows.header_list_offsets)]
        )
        present = pc.not_equal(ends[1:], ends[:-1]).buffers()[1]
    return pa.ListArray.from_buffers(
        pa.list_(HEADER_TYPE),
        rows.row_count,
        [present, pa.py_buffer(rows.header_list_offsets)],
        children=cast("list[AnyArray]", [pairs]),
    )


def bits_of(validity: bytearray) -> AnyArray:
    """One boolean a row from one byte a row."""
    bytes_ = pa.Array.from_buffers(pa.uint8(), len(validity), [None, pa.py_buffer(validity)])
    return bytes_.cast(pa.bool_())


def _binary(
    kind: pa.DataType, count: int, offsets: array[int], data: bytearray, validity: bytearray | None
) -> AnyArray:
    bits = None
    if validity is not None and 0 in validity:
        bits = bits_of(validity).buffers()[1]
    return pa.Array.from_buffers(kind, count, [bits, pa.py_buffer(offsets), pa.py_buffer(data)])
