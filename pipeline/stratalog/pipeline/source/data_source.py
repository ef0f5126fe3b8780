"""`format("stratalog")` in Spark: topics from the object store, and rows to the service.

``read_options`` has the options, ``schema`` the columns. The driver and every executor find credentials as
boto3 does. Spark does not tell a Python source which columns a query uses, so a query that needs few of
them names them, in its own `.schema(...)` or in the option `columns`; only those are decoded and moved.
``sink_options`` has the options of writes, which go through a running service.

Light to import, because Spark imports it in each process that looks for a data source: it needs pyspark and
the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource
except ImportError as error:
    raise ImportError(f"the source needs PySpark 4: {error}") from error
from pyspark.sql.types import StructType

from stratalog.base.errors import InvalidConfigError, UnsupportedOperationError
from stratalog.pipeline.sink.sink_options import SinkOptions, parse_sink_options, require_columns
from stratalog.pipeline.source.read_options import (
    is_pushdown_wanted,
    limits_of,
    parse_options,
    require_schema_alone,
    wanted_columns,
)
from stratalog.pipeline.source.schema import ALL_COLUMNS, COLUMNS_BY_NAME, spark_schema
from stratalog.pipeline.source.topic_reader import FilteringTopicReader, TopicReader
from stratalog.pipeline.spark_interface import SparkPart

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )


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
        unknown column, UnsupportedOperationError for an option that this version of Spark cannot heed."""
        kind = TopicReader
        if is_pushdown_wanted(self.options):
            SparkPart.FILTERS.require("pushdown")
            kind = FilteringTopicReader
        return kind(parse_options(self.options, is_stream=False), self._column_names(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Make the reader of a stream. Raises as `reader`."""
        from stratalog.pipeline.source.stream_reader import TopicStreamReader, UnlimitedStreamReader

        options = parse_options(self.options, is_stream=True)
        kind = TopicStreamReader if SparkPart.LIMITS.is_there else UnlimitedStreamReader
        for name in limits_of(options):
            SparkPart.LIMITS.require(name)
        return kind(options, self._column_names(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Make the writer of a batch job. Raises InvalidConfigError for an option or a column that cannot be
        written, UnsupportedOperationError for another mode than append."""
        from stratalog.pipeline.sink.topic_writer import TopicWriter

        return TopicWriter(self._sink_options(schema, is_overwrite=overwrite, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Make the writer of a stream. Raises as `writer`."""
        from stratalog.pipeline.sink.topic_writer import TopicStreamWriter

        return TopicStreamWriter(self._sink_options(schema, is_overwrite=overwrite, is_stream=True))

    def _column_names(self, schema: StructType) -> tuple[str, ...]:
        for field in schema.fields:
            column = COLUMNS_BY_NAME.get(field.name)
            if column is None or field.dataType.simpleString() != column.spark_type:
                raise InvalidConfigError(
                    "a topic has no such column; correct the schema",
                    name=field.name,
                    value=field.dataType.simpleString(),
                    allowed=ALL_COLUMNS,
                )
        names = tuple(field.name for field in schema.fields)
        require_schema_alone(self.options, names)
        return names

    def _sink_options(self, schema: StructType, *, is_overwrite: bool, is_stream: bool) -> SinkOptions:
        if is_overwrite:
            raise UnsupportedOperationError(
                'a log is only appended to; use .outputMode("append"), or foreachBatch with jobId and batchId'
                if is_stream
                else 'a log is only appended to; use .mode("append")'
            )
        options = parse_sink_options(self.options, is_stream=is_stream)
        require_columns(((one.name, one.dataType.simpleString()) for one in schema.fields), options)
        return options
