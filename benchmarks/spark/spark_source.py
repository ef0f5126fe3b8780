"""The Spark source on this machine (`local[2]`), beside plainer ways to the same rows.

The store is a directory, so that no network counts. Records have values of 1 KiB, in uncompressed batches of
16. Rates are those of a second of processor time, of the JVM, its Python workers and this process together:
Spark uses both processors, and other work on the machine makes wall times useless. A pair of rates is the
median of some. There is 1 GiB of data: a query that reads nothing takes 0.7 s of processor time, which would
be a third of a scan of 256 MiB. References of the same run:

* a tuple-yielding source: a Python data source over the same spans, which decodes the records to Python
  objects and yields a tuple for each, as simple sources do;
* the bare decoder: the source's own scan of the same spans, with all columns, in this process, without Spark;
* the ceiling: a Python source that yields one prepared record batch again and again (`floors/`), in workers
  that are tuned as ours. No Python source can be faster. It stands beside the first two references, too. The
  rows "most without fixed cost" leave out what a query costs that reads nothing, and add the time of the bare
  decoder: a target that they miss is out of reach, at any size, for each source whose values go to the JVM.
  `map_scan` is the way around the JVM: its rows have the values measured in the tasks that read them. A count
  by key has a ceiling of its own, which counts the keys of such batches.

The last row is the bytes that an hour of a partition costs, metadata included, beside all of its bytes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from floors import prepared_batches
from floors.prepared_batches import SCHEMA, PreparedSource
from report import Row, run
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.local_session import why_spark_cannot_run
from stratalog.pipeline.mapped_scan import map_scan
from stratalog.pipeline.source.data_source import StratalogDataSource
from stratalog.pipeline.source.read_options import parse_options, wanted_columns
from stratalog.pipeline.source.slice_scan import scan
from stratalog.pipeline.source.topic_reader import SlicePartition, TopicReader
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.spark.plain_store import START_MS, STEP_MS, PlainStore
from tests.support.spark.topic_scan import topic_spans

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, DataFrameReader
    from pyspark.sql.types import StructType

VALUE_BYTES = 1024
BATCH_COUNT = 16
OBJECT_COUNT = 8
REPEATS = 3
TASK_BYTES = 64 << 20
ROWS = 1000
"""A prepared batch has so many, about a mebibyte, as the source's own."""
KEY_ROWS = 16384
"""A prepared batch of keys has so many."""
KEY_SCHEMA = "key binary"


class TupleReader(DataSourceReader):
    """Plans as the source does, and reads record by record. Not thread-safe, as its base."""

    def __init__(self, url: str) -> None:
        self._url = url

    def partitions(self) -> Sequence[InputPartition]:
        return _reader(self._url).partitions()

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        import datetime as dt

        from stratalog.objectstore.open_store import open_store
        from stratalog.record.reading.record_portions import RecordReading, record_portions

        assert isinstance(partition, SlicePartition)
        store = open_store(self._url)
        for span in partition.spans:
            data = store.get_range(span.object_key, span.position, span.size_bytes)
            reading = RecordReading("t", span.partition, span.first_offset, span.end_offset)
            for portion in record_portions(data, reading, lambda header: not header.is_control):
                for record in portion.records:
                    time = dt.datetime.fromtimestamp(record.timestamp_ms / 1000, dt.UTC)
                    yield record.key, record.value, span.partition, record.offset, time


class TupleSource(DataSource):
    """The tuple-yielding source."""

    @classmethod
    def name(cls) -> str:
        return "tuples"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return TupleReader(self.options["store"])


def _reader(url: str) -> TopicReader:
    options = {"store": url, "topic": "t", "maxPartitionBytes": str(TASK_BYTES)}
    return TopicReader(parse_options(options, is_stream=False), wanted_columns(options))


def filled_store(directory: Path, total_bytes: int) -> PlainStore:
    """One partition in `OBJECT_COUNT` objects."""
    store = LocalObjectStore(PosixFileSystem(), ManualClock(START_MS), SequentialIds(1), str(directory))
    found = PlainStore(store)
    found.create("t")
    count = total_bytes // VALUE_BYTES // OBJECT_COUNT
    for _ in range(OBJECT_COUNT):
        found.upload({("t", 0): count}, value_bytes=VALUE_BYTES, batch_count=BATCH_COUNT)
    return found


def session(scratch: str, *, memory: str = "2g") -> SparkSession:
    """A session as a cluster's is configured: with all compilers of the JVM."""
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", memory)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", scratch)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
    )
    spark = builder.getOrCreate()
    spark.dataSource.register(StratalogDataSource)
    spark.dataSource.register(TupleSource)
    # Workers cannot import this folder.
    cast("Any", cloudpickle).register_pickle_by_value(prepared_batches)
    spark.dataSource.register(PreparedSource)
    return spark


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def tree_seconds() -> float:
    """Processor time of this process and its descendants so far, those that have ended included."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(path.parent.name)
        parents[number] = int(fields[1])
        ticks[number] = sum(map(int, fields[11:15]))
    tree = {os.getpid()}
    while found := {number for number, parent in parents.items() if parent in tree} - tree:
        tree |= found
    return sum(ticks[number] for number in tree) / os.sysconf("SC_CLK_TCK")


def processor_seconds(ours: Callable[[], None], reference: Callable[[], None]) -> tuple[float, float]:
    """The pair of median ratio, of runs of both in turns."""
    pairs: list[tuple[float, float]] = []
    for _ in range(REPEATS):
        begin = tree_seconds()
        ours()
        middle = tree_seconds()
        reference()
        pairs.append((middle - begin, tree_seconds() - middle))
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]


class Scans:
    """Ways to read all rows. Not thread-safe."""

    def __init__(self, spark: SparkSession, found: PlainStore, total_bytes: int) -> None:
        self._spark = spark
        self._found = found
        self._total_bytes = total_bytes

    def ours(self) -> None:
        drain(self._source("stratalog").schema(SCHEMA).load())

    def tuples(self) -> None:
        drain(self._source("tuples").load())

    def ceiling(self) -> None:
        drain(self._prepared(ROWS).load())

    def nothing(self) -> None:
        """Read nothing, in as many tasks as the ceiling has."""
        drain(self._prepared(ROWS).option("batches", 0).load())

    def counted_keys(self) -> None:
        keys = self._source("stratalog").schema(KEY_SCHEMA).load()
        assert keys.groupBy("key").count().count() == 7

    def counted_prepared_keys(self) -> None:
        """The ceiling of `counted_keys`: as many keys, in larger batches."""
        keys = self._prepared(KEY_ROWS).schema(KEY_SCHEMA).load()
        assert keys.groupBy("key").count().count() == 7

    def measured_values(self) -> None:
        """The bytes of all values, added up in the tasks that read them."""
        options = {**self._options, "columns": "key,value,partition,offset,timestamp"}

        def size(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa
            import pyarrow.compute as pc

            total = 0
            for batch in batches:
                values = cast("pa.BinaryArray", batch.column("value"))
                total += pc.sum(pc.binary_length(values)).as_py() or 0
            yield pa.RecordBatch.from_pydict({"total": pa.array([total], pa.int64())})

        [row] = map_scan(self._spark, options, size, "total bigint").groupBy().sum("total").collect()
        assert row[0] == self._total_bytes

    def bare(self) -> None:
        names = ("key", "value", "partition", "offset", "timestamp")
        for _ in scan(self._found.store, topic_spans(self._found.store, topic="t"), names):
            pass

    def _source(self, name: str) -> DataFrameReader:
        return self._spark.read.format(name).options(**self._options)

    def _prepared(self, row_count: int) -> DataFrameReader:
        tasks = self._total_bytes // TASK_BYTES
        batches = TASK_BYTES // VALUE_BYTES // row_count
        sizes = {"tasks": tasks, "batches": batches, "rows": row_count, "valueBytes": VALUE_BYTES}
        return self._spark.read.format("prepared").options(**sizes)

    @property
    def _options(self) -> dict[str, str]:
        return {"store": self._found.store.url, "topic": "t", "maxPartitionBytes": str(TASK_BYTES)}


def measure_scans(scans: Scans, total_bytes: int) -> Iterator[Row]:
    """Scans through Spark, beside the tuple source, the bare decoder and the ceiling."""
    for _ in range(2):
        # The JVM compiles for long.
        for warm in (scans.ours, scans.tuples, scans.ceiling, scans.counted_keys, scans.measured_values):
            warm()
    for work, ours, reference, target in (
        ("scan 1 KiB values / ceiling", scans.ours, scans.ceiling, 0.8),
        ("scan 1 KiB values / tuples", scans.ours, scans.tuples, 5.0),
        ("ceiling / tuples", scans.ceiling, scans.tuples, 5.0),
        ("scan 1 KiB values / bare decoder", scans.ours, scans.bare, 0.6),
        ("ceiling / bare decoder", scans.ceiling, scans.bare, 0.6),
        ("values measured in tasks / bare decoder", scans.measured_values, scans.bare, 0.6),
        ("values measured in tasks / tuples", scans.measured_values, scans.tuples, 5.0),
        ("count by key, no values / scan with values", scans.counted_keys, scans.ours, 3.0),
        ("count by key, no values / ceiling", scans.counted_keys, scans.counted_prepared_keys, 0.8),
        ("ceiling of count by key / scan with values", scans.counted_prepared_keys, scans.ours, 3.0),
    ):
        ours_s, reference_s = processor_seconds(ours, reference)
        yield _row(work, total_bytes / 1e6, ours_s, reference_s, target)


def measure_bound(scans: Scans, total_bytes: int) -> Iterator[Row]:
    """The most that a source can reach at any size, without the fixed cost of a query: it pays at least for
    its own decoding, and for the way of the values into the JVM."""
    ceiling_s, nothing_s = processor_seconds(scans.ceiling, scans.nothing)
    bare_s, tuples_s = processor_seconds(scans.bare, scans.tuples)
    bound_s = ceiling_s - nothing_s + bare_s
    megabytes = total_bytes / 1e6
    yield Row(
        work="a query that reads nothing / ceiling",
        unit="cpu-s",
        ours=nothing_s,
        reference=ceiling_s,
        target=1.0,
        is_cost=True,
    )
    yield _row("most without fixed cost / bare decoder", megabytes, bound_s, bare_s, 0.6)
    yield _row("most without fixed cost / tuples", megabytes, bound_s, tuples_s - nothing_s, 5.0)


def _row(work: str, megabytes: float, ours_s: float, reference_s: float, target: float) -> Row:
    return Row(
        work=work, unit="MB/cpu-s", ours=megabytes / ours_s, reference=megabytes / reference_s, target=target
    )


def measure_hour(slice_count: int) -> Row:
    """The bytes of an hour of a partition, which is one slice in a thousand."""
    found = PlainStore()
    found.create("t")
    for _ in range(slice_count):
        found.upload({("t", 0): 64}, value_bytes=VALUE_BYTES, batch_count=BATCH_COUNT)
    found.tiered.metadata.fold()
    total_bytes = found.tiered.partition(found.tips["t"][0]).tiered_bytes
    first_ms = START_MS + slice_count * 32 * STEP_MS
    found.store.reset()
    times = {"startingTimestamp": str(first_ms), "endingTimestamp": str(first_ms + 64 * STEP_MS)}
    batches = scan(found.store, topic_spans(found.store, topic="t", **times), ("offset", "value"))
    assert sum(batch.num_rows for batch in batches) == 64
    read_bytes = found.store.total("GET").size_bytes
    return Row(
        work=f"an hour of {slice_count} slices",
        unit="MB",
        ours=read_bytes / 1e6,
        reference=total_bytes / 1e6,
        target=50.0,
        is_cost=True,
    )


def measure(quick: bool) -> Iterator[Row]:
    """All rows; none where Spark cannot run."""
    missing = why_spark_cannot_run()
    if missing is not None:
        sys.stderr.write(f"left out: {missing}\n")
        return
    total_bytes = (64 if quick else 1024) << 20
    with tempfile.TemporaryDirectory() as directory:
        found = filled_store(Path(directory, "store"), total_bytes)
        spark = session(directory)
        try:
            scans = Scans(spark, found, total_bytes)
            yield from measure_scans(scans, total_bytes)
            yield from measure_bound(scans, total_bytes)
        finally:
            spark.stop()
    yield measure_hour(1000)


if __name__ == "__main__":
    sys.exit(run(measure))
