"""A scan whose batches go through a function in the task that reads them, on the way to Spark.

The cost of a scan is the way of its values into the JVM. A function that counts, parses or filters in the
task sends only what it makes of them: such a scan has the speed of the decoder.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from stratalog.pipeline.option_names import wrong_option
from stratalog.pipeline.source.read_options import (
    ReadOptions,
    is_pushdown_wanted,
    parse_options,
    wanted_columns,
)
from stratalog.pipeline.source.topic_reader import TopicReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BatchFunction = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]

_NUMBERS = itertools.count(1)


def map_scan(
    spark: SparkSession, options: Mapping[str, str], function: BatchFunction, schema: str
) -> DataFrame:
    """The batches that `function` makes of the record batches of each task, as a table with this schema.

    `options` are those of the source, without `pushdown`: Spark pushes no filters below the function. With
    `columns` only these are decoded. The function runs once for each
    task, and is pickled to it. Its batches must have exactly the Arrow types of the schema, every field
    nullable, timestamps in microseconds with the zone UTC. Raises InvalidConfigError for a malformed option,
    when the query is planned.
    """
    name = f"stratalog-map-{next(_NUMBERS)}"

    class MappedSource(DataSource):
        """A source of this one query: Spark makes sources from options alone, and pickles their class."""

        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            del schema
            given = mapped_options(self.options)
            return MappedReader(given, wanted_columns(self.options), function)

    spark.dataSource.register(MappedSource)
    return spark.read.format(name).options(**options).load()


def mapped_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a mapped scan. Raises InvalidConfigError as `parse_options`, and for `pushdown`."""
    given = parse_options(options, is_stream=False)
    if is_pushdown_wanted(options):
        raise wrong_option(
            "pushdown",
            options["pushdown"],
            "not in map_scan, whose function reads all records of the options' bounds: narrow those",
        )
    return given


class MappedReader(TopicReader):
    """A reader with a function behind it. Not thread-safe, as its base."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...], function: BatchFunction) -> None:
        super().__init__(options, names)
        self._function = function

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches that the function makes of the records of a task."""
        return iter(self._function(super().read(partition)))
