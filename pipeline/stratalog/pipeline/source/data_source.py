"""`spark.read.format("stratalog")` and `spark.readStream.format("stratalog")`: topics from the object store.

``read_options`` has the options, ``schema`` the columns. The driver and every executor find credentials as
boto3 does. Spark 4.3 does not tell a Python source which columns a query uses, so a query that needs few of
them names them, in its own `.schema(...)` or in the option `columns`; only those are decoded and moved.

Light to import, because Spark imports it in each process that looks for a data source: it needs pyspark and
the standard library.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from stratalog.base.errors import InvalidConfigError
from stratalog.pipeline.source.read_options import is_pushdown_wanted, parse_options, wanted_columns
from stratalog.pipeline.source.schema import ALL_COLUMNS, COLUMNS_BY_NAME, spark_schema
from stratalog.pipeline.source.topic_reader import FilteringTopicReader, TopicReader


class StratalogDataSource(DataSource):
    """The source of queries and streams. Spark makes it from the options of each."""

    @classmethod
    def name(cls) -> str:
        return "stratalog"

    def schema(self) -> str:
        """The columns of a query that gives none. Raises InvalidConfigError."""
        return spark_schema(wanted_columns(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of a query. Raises InvalidConfigError for a missing or malformed option, and for an
        unknown column."""
        kind = FilteringTopicReader if is_pushdown_wanted(self.options) else TopicReader
        return kind(parse_options(self.options, is_stream=False), _column_names(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Make the reader of a stream. Raises InvalidConfigError as `reader`."""
        from stratalog.pipeline.source.stream_reader import TopicStreamReader

        return TopicStreamReader(parse_options(self.options, is_stream=True), _column_names(schema))


def _column_names(schema: StructType) -> tuple[str, ...]:
    for field in schema.fields:
        column = COLUMNS_BY_NAME.get(field.name)
        if column is None or field.dataType.simpleString() != column.spark_type:
            raise InvalidConfigError(
                "a topic has no such column; correct the schema",
                name=field.name,
                value=field.dataType.simpleString(),
                allowed=ALL_COLUMNS,
            )
    return tuple(field.name for field in schema.fields)
