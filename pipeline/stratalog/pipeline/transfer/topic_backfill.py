"""Creates a topic from a table: any DataFrame of Spark becomes records, with offsets from 0.

    1  rows are divided by partition and order, and sorted          Spark's shuffle
    2  tasks write them to scratch, and tell how many they are      `staged_rows`
    3  the driver gives each file its offsets
    4  tasks make objects of the files, the driver publishes them   `topic_import`

The rows are counted and copied from the same files, so a table that gives other rows when it is read again, a
task that fails and one that runs twice make no difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from stratalog.base.errors import InvalidRequestError
from stratalog.pipeline.jobs.cluster import Cluster
from stratalog.pipeline.jobs.spark_cluster import own_errors
from stratalog.pipeline.jobs.task_place import OpenPlace
from stratalog.pipeline.transfer.new_topic import NewTopic
from stratalog.pipeline.transfer.staged_rows import (
    RESULT_SCHEMA,
    StagedFile,
    StagedTopic,
    as_result,
    stage_rows,
)
from stratalog.pipeline.transfer.table_columns import COLUMNS, named_columns, require_time_type
from stratalog.pipeline.transfer.topic_import import (
    AcceptConfig,
    ImportReport,
    SourceFile,
    SourcePartition,
    TopicPlan,
    config_of,
    create_topic,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

_ORDER = "order"
HEADERS = "array<struct<key:string,value:binary>>"


class Table(NamedTuple):
    """A table that Spark reads."""

    paths: tuple[str, ...] = ()
    form: str = "parquet"
    """The format of the paths."""
    option: Mapping[str, str] = MappingProxyType({})
    """Options of the format."""
    query: str = ""
    """SQL, in place of paths."""

    def rows(self, session: SparkSession) -> DataFrame:
        """The rows. Raises LogStoreError if Spark cannot read it."""
        with own_errors():
            if self.query:
                return session.sql(self.query)
            return session.read.format(self.form).options(**self.option).load([*self.paths])


class BackfillPlan(NamedTuple):
    """A topic to create from a table."""

    name: str
    partition_count: int
    config: Mapping[str, str]
    columns: Mapping[str, str]
    """SQL expressions over the table, for `COLUMNS`. Without one, the column that Spark finds by that name
    is taken, if there is one."""
    order_by: tuple[str, ...] = ()
    """SQL expressions; the order of the rows of a partition. Without any it is the timestamp, if there is
    one."""


def _require_possible(open_store: OpenPlace, plan: BackfillPlan, accept: AcceptConfig) -> None:
    """Raise what is wrong with a plan whatever the table is. It takes a second, and Spark's start and the
    reading of a table take longer."""
    unknown = plan.columns.keys() - set(COLUMNS)
    if unknown:
        raise InvalidRequestError(
            "a record has no such column; leave it out", column=min(unknown), columns=", ".join(COLUMNS)
        )
    config = config_of(plan.config)
    accept(config)
    with open_store() as means:
        NewTopic(means, plan.name, plan.partition_count, config)


def backfill_topic(
    cluster: Cluster,
    read_table: Callable[[], DataFrame],
    open_store: OpenPlace,
    plan: BackfillPlan,
    accept: AcceptConfig,
    on_untaken: Callable[[Sequence[str]], None],
) -> ImportReport:
    """Create the topic with the rows of the table, which is read when the plan is found to be possible.
    Before rows are read, it calls `on_untaken` with the columns of the table that no record has, if there are
    any.

    Raises as `create_topic`, InvalidRequestError for a table without values, LogStoreError if Spark gives up.
    The topic is there with all rows, or not at all.
    """
    _require_possible(open_store, plan, accept)
    frame = read_table()
    with own_errors():
        with open_store() as means:
            rows = _rows(frame, plan, means.clock.now_ms())
        untaken = _untaken(frame, rows)
        if untaken:
            on_untaken(untaken)
        places = max(1, frame.rdd.getNumPartitions())
        by_order = ("partition", _ORDER)
        ranged = rows.repartitionByRange(places, *by_order).sortWithinPartitions(*by_order)
        staging = ranged.drop(_ORDER).mapInArrow(
            _stager(open_store, StagedTopic(plan.name, plan.partition_count)), RESULT_SCHEMA
        )
        found = sorted(StagedFile(*row) for row in staging.collect())
    try:
        sources = sources_of(found, plan.partition_count)
        topic = TopicPlan(plan.name, plan.partition_count, plan.config, sources)
        return create_topic(cluster, open_store, open_store, topic, accept)
    finally:
        with open_store() as means:
            means.store.delete_many([file.key for file in found])


def _rows(frame: DataFrame, plan: BackfillPlan, now_ms: int) -> DataFrame:
    """The rows as `TABLE_COLUMNS`, and their order."""
    from pyspark.sql import functions as f

    is_case_sensitive = frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    named = named_columns(frame.columns, plan.columns.keys(), is_case_sensitive=is_case_sensitive)
    given: dict[str, Column] = {name: f.col(f"`{column}`") for name, column in named.items()}
    given |= {name: f.expr(text) for name, text in plan.columns.items()}
    if "value" not in given:
        raise InvalidRequestError(
            "the table has no column value; give an expression for it, such as to_json(struct(*))",
            columns=", ".join(frame.columns),
        )
    nothing = f.lit(None)
    key, value = (given.get(name, nothing).cast("binary") for name in ("key", "value"))
    if "partition" in given:
        partition = given["partition"].cast("int")
    else:
        partition = _partition_of(key, value, plan.partition_count)
    order = [f.expr(text) for text in plan.order_by]
    return frame.select(
        partition.alias("partition"),
        key.alias("key"),
        value.alias("value"),
        _time_ms(frame, given.get("timestamp"), now_ms).alias("timestamp_ms"),
        given.get("headers", nothing).cast(HEADERS).alias("headers"),
        (f.struct(*order) if order else given.get("timestamp", nothing)).alias(_ORDER),
    )


def _untaken(frame: DataFrame, rows: DataFrame) -> list[str]:
    """The columns of the table that the rows do not come from, in order."""
    # Spark's Python does not show plans.
    plan: Any = cast("Any", rows)._jdf.queryExecution().analyzed()
    taken = {str(plan.references().toSeq().apply(at).name()) for at in range(plan.references().size())}
    return [name for name in frame.columns if name not in taken]


def _time_ms(frame: DataFrame, timestamp: Column | None, now_ms: int) -> Column:
    """The time of a row: a time of Spark, or a whole number of milliseconds; without one, now. Raises
    InvalidRequestError for another type."""
    from pyspark.sql import functions as f

    if timestamp is None:
        return f.lit(now_ms).cast("bigint")
    kind = frame.select(timestamp).schema.fields[0].dataType
    is_number = require_time_type(kind.typeName(), getattr(kind, "scale", 0))
    number = timestamp if is_number else f.unix_millis(timestamp.cast("timestamp"))
    return f.coalesce(number.cast("bigint"), f.lit(now_ms).cast("bigint"))


def _partition_of(key: Column, value: Column, partition_count: int) -> Column:
    """The partition of a key as Kafka's clients choose it; rows without a key are spread by their value."""
    from pyspark.sql import functions as f

    def partition_of(one: bytearray | None) -> int | None:
        from stratalog.record.key_partition import partition_for_key

        return None if one is None else partition_for_key(bytes(one), partition_count)

    by_key = f.udf(partition_of, "int", useArrow=True)
    return f.coalesce(by_key(key), f.pmod(f.xxhash64(value), f.lit(partition_count)).cast("int"))


def _stager(
    open_store: OpenPlace, topic: StagedTopic
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of the tasks that write rows to scratch."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "it runs in a task"
        with open_store() as means:
            for file in stage_rows(means, context.partitionId(), topic, batches):
                yield as_result(file)

    return stage


def sources_of(files: Sequence[StagedFile], partition_count: int) -> list[SourcePartition]:
    """The files of each partition, in order, with the offsets of their rows."""
    found: dict[int, list[SourceFile]] = defaultdict(list)
    ends: dict[int, int] = defaultdict(int)
    for file in files:
        begin = ends[file.partition]
        end = ends[file.partition] = begin + file.record_count
        found[file.partition].append(
            SourceFile(file.key, file.record_count, file.data_bytes, begin, end, shift=begin)
        )
    return [
        SourcePartition(number, 0, ends[number], tuple(found[number])) for number in range(partition_count)
    ]
