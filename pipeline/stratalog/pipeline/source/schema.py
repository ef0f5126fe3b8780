"""The columns of a topic in Spark: those of Spark's Kafka source, in its order, and `tombstone`.

Light to import: Spark imports the data source in processes that only plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Column(NamedTuple):
    """A column under its Spark name, with its type as Spark shows it."""

    name: str
    spark_type: str

    @property
    def ddl(self) -> str:
        """The type in Spark's DDL, where `timestamp` is another one by spark.sql.timestampType."""
        return "timestamp_ltz" if self.spark_type == "timestamp" else self.spark_type


COLUMNS: tuple[Column, ...] = (
    Column("key", "binary"),
    Column("value", "binary"),
    Column("topic", "string"),
    Column("partition", "int"),
    Column("offset", "bigint"),
    Column("timestamp", "timestamp"),
    Column("timestampType", "int"),
    Column("headers", "array<struct<key:string,value:binary>>"),
    # A keyed record without a value, which deletes its key.
    Column("tombstone", "boolean"),
)

COLUMNS_BY_NAME = {column.name: column for column in COLUMNS}


def spark_schema(names: Iterable[str]) -> str:
    """These columns as Spark's DDL. Raises KeyError for a name that is not a column."""
    return ", ".join(f"{name} {COLUMNS_BY_NAME[name].ddl}" for name in names)


ALL_COLUMNS = spark_schema(COLUMNS_BY_NAME)
