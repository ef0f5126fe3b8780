"""The columns of a topic in Spark: those of Spark's Kafka source, in its order, and `tombstone`.

Each column has its Spark type and its Arrow type side by side. Spark refuses a batch from a Python data
source unless its Arrow schema is exactly the one that Spark derives: microsecond UTC timestamps, 32-bit
binary, every field nullable.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from stratalog.record.reading.arrow_arrays import HEADER_TYPE


class Column(NamedTuple):
    """A column under its Spark name, with its type in Spark's DDL and in Arrow."""

    name: str
    spark_type: str
    arrow_type: pa.DataType


COLUMNS: tuple[Column, ...] = (
    Column("key", "binary", pa.binary()),
    Column("value", "binary", pa.binary()),
    Column("topic", "string", pa.string()),
    Column("partition", "int", pa.int32()),
    Column("offset", "bigint", pa.int64()),
    Column("timestamp", "timestamp", pa.timestamp("us", tz="UTC")),
    Column("timestampType", "int", pa.int32()),
    Column("headers", "array<struct<key:string,value:binary>>", pa.list_(HEADER_TYPE)),
    # A keyed record without a value, which deletes its key.
    Column("tombstone", "boolean", pa.bool_()),
)

COLUMNS_BY_NAME = {column.name: column for column in COLUMNS}

SPARK_SCHEMA = ", ".join(f"{column.name} {column.spark_type}" for column in COLUMNS)


def arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    """The Arrow schema of these columns, in this order. Raises KeyError for a name that is not a column."""
    return pa.schema([pa.field(name, COLUMNS_BY_NAME[name].arrow_type, nullable=True) for name in names])
