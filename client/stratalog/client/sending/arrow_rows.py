"""Tables of Apache Arrow as rows that a producer sends. Imports pyarrow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.base.errors import InvalidRequestError
from stratalog.base.filesystem import Buffer
from stratalog.record.record_rows import BytesColumn, HeadersColumn, RecordRows

COLUMNS = frozenset(("key", "value", "timestamp", "headers", "partition"))


def rows_of(table: Any) -> list[RecordRows]:
    """The rows of a Table or RecordBatch with the columns value and, if need be, key, timestamp, headers and
    partition, in pieces. Raises InvalidRequestError for other columns and types.
    """
    if isinstance(table, pa.RecordBatch):
        batches = [table]
    elif isinstance(table, pa.Table):
        batches = table.to_batches()
    else:
        raise InvalidRequestError(
            "send_many takes a Table or a RecordBatch of pyarrow", given=type(table).__name__
        )
    names = table.schema.names
    if not COLUMNS.issuperset(names) or len(set(names)) < len(names) or "value" not in names:
        raise InvalidRequestError(
            "the columns are value and, if need be, key, timestamp, headers, partition; drop others",
            columns=", ".join(names),
        )
    return [_rows(batch) for batch in batches if batch.num_rows]


def _rows(batch: Any) -> RecordRows:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    try:
        return RecordRows(
            row_count=batch.num_rows,
            key=_bytes_column(columns["key"]) if "key" in columns else None,
            value=_bytes_column(columns["value"]),
            timestamp_ms=_timestamps(columns["timestamp"]) if "timestamp" in columns else None,
            partition=_not_negative(columns["partition"], pa.int32()) if "partition" in columns else None,
            headers=_headers(columns["headers"]) if "headers" in columns else None,
        )
    except pa.ArrowException as error:
        raise InvalidRequestError("a column cannot be sent as records; convert it", reason=error) from None


def _bytes_column(array: Any) -> BytesColumn:
    """Text and binary as bytes; null columns as nulls."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not (
        pa.types.is_binary(array.type)
        or pa.types.is_string(array.type)
        or pa.types.is_large_binary(array.type)
        or pa.types.is_large_string(array.type)
        or pa.types.is_fixed_size_binary(array.type)
        or pa.types.is_null(array.type)
    ):
        raise InvalidRequestError("keys, values and headers are text or binary", type=str(array.type))
    array = array.cast(pa.binary())
    _, offsets, data = array.buffers()
    return BytesColumn(
        offsets=_slice(offsets, array.offset, len(array) + 1, 4),
        data=b"" if data is None else memoryview(data),
        validity=None if array.null_count == 0 else _numbers(array.is_valid(), pa.uint8()),
    )


def _timestamps(array: Any) -> Buffer:
    """Times as milliseconds; numbers are milliseconds."""
    if pa.types.is_timestamp(array.type):
        # A part of a millisecond is cut off.
        array = array.cast(pa.timestamp("ms", array.type.tz), safe=False)
    return _not_negative(array, pa.int64())


def _not_negative(array: Any, kind: Any) -> Buffer:
    array = array.cast(kind)
    lowest = pc.min(array).as_py()
    if lowest is not None and lowest < 0:
        raise InvalidRequestError("timestamps and partitions are at least 0, or null", lowest=lowest)
    return _numbers(array, kind)


def _numbers(array: Any, kind: Any) -> Buffer:
    """Numbers, with -1 for null."""
    array = array.cast(kind)
    if array.null_count:
        array = array.fill_null(-1)
    return _slice(array.buffers()[1], array.offset, len(array), kind.bit_width // 8)


def _headers(array: Any) -> HeadersColumn:
    """A column of maps, or of lists of pairs of a name and a value."""
    if pa.types.is_map(array.type):
        names, values = array.keys, array.items
    elif pa.types.is_list(array.type) and pa.types.is_struct(array.type.value_type):
        pairs = array.values
        if pairs.type.num_fields != 2:
            raise InvalidRequestError("a header is a pair of a name and a value", type=str(array.type))
        names, values = pairs.flatten()
    else:
        raise InvalidRequestError("headers are maps, or lists of pairs", type=str(array.type))
    if array.null_count:
        # The list of a null may have any length.
        raise InvalidRequestError("headers are not null; use an empty map", null_count=array.null_count)
    if names.null_count:
        raise InvalidRequestError("the name of a header is not null", null_count=names.null_count)
    return HeadersColumn(
        list_offsets=_slice(array.buffers()[1], array.offset, len(array) + 1, 4),
        name=_bytes_column(names),
        value=_bytes_column(values),
    )


def _slice(buffer: Any, first: int, count: int, width_bytes: int) -> Buffer:
    if buffer is None:
        return bytes(count * width_bytes)
    return memoryview(buffer)[first * width_bytes : (first + count) * width_bytes]
