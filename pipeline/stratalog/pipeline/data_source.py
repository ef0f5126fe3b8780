"""`spark.read.format("stratalog")`: reads a topic from the object store on Spark's executors.

Options (names are case-insensitive):

    store                required; its URL, as for the server: `s3://bucket/prefix` or `file:///dir`
    topic                required; its name
    maxPartitionBytes    approximate bytes of the log that one task reads, default 128 MiB
    isolationLevel       `read_uncommitted` (default, as in Kafka) or `read_committed`: no records of
                         transactions that are aborted, or undecided in the object store. The name in Spark's
                         Kafka source, `kafka.isolation.level`, works too

The driver and every executor find credentials as boto3 does. The columns are in ``schema``. Spark 4.3 does
not tell a Python source which of them a query uses, so a query that needs few columns names them in its own
`.schema(...)`; only those are decoded and moved.

Instances are pickled between Python processes: they hold plain values only, and import other modules when
they run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from stratalog.base.errors import InvalidConfigError
from stratalog.client.isolation_level import IsolationLevel
from stratalog.pipeline.schema import COLUMNS_BY_NAME, SPARK_SCHEMA
from stratalog.pipeline.topic_snapshot import SliceSpan

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_MAX_PARTITION_BYTES = 128 << 20
_ISOLATION_NAMES = ("isolationLevel", "kafka.isolation.level")


class SlicePartition(InputPartition):
    """The slices that one task reads, in order. Immutable, pickled to the executor."""

    def __init__(self, spans: Sequence[SliceSpan]) -> None:
        super().__init__(None)
        self.spans = tuple(spans)


class TopicReader(DataSourceReader):
    """Plans on the driver, reads on executors. Immutable after construction."""

    def __init__(
        self,
        store_url: str,
        topic: str,
        names: tuple[str, ...],
        max_partition_bytes: int,
        isolation: IsolationLevel,
    ) -> None:
        self._store_url = store_url
        self._topic = topic
        self._names = names
        self._max_partition_bytes = max_partition_bytes
        self._isolation = isolation

    def partitions(self) -> Sequence[InputPartition]:
        """One snapshot of the topic, divided into tasks. Raises UnknownTopicOrPartitionError, StoreError."""
        from stratalog.objectstore.open_store import open_store
        from stratalog.pipeline.topic_snapshot import read_snapshot

        store = open_store(self._store_url)
        try:
            spans = read_snapshot(store, self._topic, self._isolation)
        finally:
            store.close()
        return [SlicePartition(group) for group in group_spans(spans, self._max_partition_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task. Spark turns an empty plan into one base `InputPartition` without records."""
        if not isinstance(partition, SlicePartition):
            return
        from stratalog.objectstore.open_store import open_store
        from stratalog.pipeline.slice_scan import scan

        store = open_store(self._store_url)
        try:
            yield from scan(store, self._topic, partition.spans, self._names)
        finally:
            store.close()


class StratalogDataSource(DataSource):
    """The batch source. Spark makes it from the options of a query."""

    @classmethod
    def name(cls) -> str:
        return "stratalog"

    def schema(self) -> str:
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader from the options. Raises InvalidConfigError for a missing or malformed option, and
        for an unknown column."""
        return TopicReader(
            self._required("store", "the store's URL, s3://bucket/prefix or file:///dir"),
            self._required("topic", "the topic's name"),
            _column_names(schema),
            self._max_partition_bytes(),
            self._isolation(),
        )

    def _required(self, name: str, meaning: str) -> str:
        value = self.options.get(name)
        if not value:
            raise InvalidConfigError(f"set .option({name!r}, ...): {meaning}", name=name)
        return value

    def _max_partition_bytes(self) -> int:
        text = self.options.get("maxPartitionBytes", str(DEFAULT_MAX_PARTITION_BYTES))
        if not text.isdecimal() or int(text) == 0:
            raise InvalidConfigError(
                "maxPartitionBytes must be a number of bytes; correct it",
                name="maxPartitionBytes",
                value=text,
                allowed="1 or more",
            )
        return int(text)

    def _isolation(self) -> IsolationLevel:
        levels = {level.value: level for level in IsolationLevel}
        given = {self.options[name] for name in _ISOLATION_NAMES if name in self.options}
        if len(given) > 1 or not given <= levels.keys():
            raise InvalidConfigError(
                f"{' or '.join(_ISOLATION_NAMES)} is one of Kafka's isolation levels; choose one",
                name=_ISOLATION_NAMES[0],
                value=", ".join(sorted(given)),
                allowed=", ".join(levels),
            )
        return levels[given.pop()] if given else IsolationLevel.READ_UNCOMMITTED


def group_spans(spans: Sequence[SliceSpan], max_bytes: int) -> list[list[SliceSpan]]:
    """Divide spans into groups of about `max_bytes`, in order; a larger slice is a group of its own."""
    groups: list[list[SliceSpan]] = []
    size = 0
    for span in spans:
        if not groups or size + span.size_bytes > max_bytes:
            groups.append([])
            size = 0
        groups[-1].append(span)
        size += span.size_bytes
    return groups


def _column_names(schema: StructType) -> tuple[str, ...]:
    for field in schema.fields:
        column = COLUMNS_BY_NAME.get(field.name)
        if column is None or field.dataType.simpleString() != column.spark_type:
            raise InvalidConfigError(
                "a topic has no such column; correct the schema",
                name=field.name,
                value=field.dataType.simpleString(),
                allowed=SPARK_SCHEMA,
            )
    return tuple(field.name for field in schema.fields)
