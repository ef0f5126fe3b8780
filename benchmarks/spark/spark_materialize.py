"""Incremental refreshes of `stratalog spark materialize` on this machine (`local[2]`), beside full ones.

The store and the tables are directories, so that no network counts. A topic has one record of 1 KiB for each
key; then the values of one key in a hundred change, chosen by chance. Costs are seconds of processor time, of
the JVM, its Python workers and this process together, because other work on the machine makes wall times
useless. The cheapest of some incremental refreshes counts, beside one full refresh; workers are warm.

A table of plain Parquet has no marks for dead rows, and is nearly written anew: its row promises nothing.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

from report import Row, run
from spark.spark_source import session, tree_seconds
from stratalog.base.clock import SystemClock
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.jobs.spark_cluster import SparkCluster
from stratalog.pipeline.jobs.task_place import ExecutorPlace
from stratalog.pipeline.lake.materialization import Materialization, MaterializeOrder, MaterializeReport
from stratalog.pipeline.lake.table_format import TableFormat
from stratalog.pipeline.lake.table_place import TablePlace
from stratalog.pipeline.lake.values.value_format import RawValues
from stratalog.pipeline.local_session import why_spark_cannot_run
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_store import TieredStore

VALUE_BYTES = 1024
OBJECT_COUNT = 8
NOW_MS = 1_700_000_000_000
REPEATS = 2


class KeyedTopic:
    """A topic of one partition whose keys are known. Not thread-safe: one measurement uses it."""

    def __init__(self, directory: Path, key_count: int) -> None:
        self._random = Random(1)
        self._key_count = key_count
        clock, filesystem = ManualClock(NOW_MS), PosixFileSystem()
        store = LocalObjectStore(filesystem, clock, SequentialIds(1), str(directory / "store"))
        self.url = store.url
        self._tiered = TieredStore(
            filesystem, store, clock, SequentialIds(2), directory=str(directory / "tiered")
        )
        self._tip = TopicIdPartition(self._tiered.catalog.create("t", 1).topic_id, 0)
        # Halves of their entropy, as texts have.
        self._text = self._random.randbytes(1 << 20).hex().encode()
        for number in range(OBJECT_COUNT):
            self._upload(range(number * key_count // OBJECT_COUNT, (number + 1) * key_count // OBJECT_COUNT))

    def change(self, one_in: int) -> int:
        """Change one key in so many; returns how many these are."""
        changed = self._random.sample(range(self._key_count), self._key_count // one_in)
        self._upload(changed)
        return len(changed)

    def _upload(self, keys: range | list[int]) -> None:
        base_offset = self._tiered.partition(self._tip).tiered_end_offset
        records = [
            Record(
                base_offset + index, NOW_MS, b"%016x" % (key * 0x9E3779B97F4A7C15 % (1 << 64)), self._value()
            )
            for index, key in enumerate(keys)
        ]
        batches = [
            encode_batch(records[first : first + 16], base_offset=base_offset + first)
            for first in range(0, len(records), 16)
        ]
        self._tiered.upload({self._tip: batches})

    def _value(self) -> bytes:
        first = self._random.randrange(len(self._text) - VALUE_BYTES)
        return self._text[first : first + VALUE_BYTES]


class Table:
    """A table of the topic. Not thread-safe: one measurement uses it."""

    def __init__(self, cluster: SparkCluster, topic: KeyedTopic, form: TableFormat, directory: Path) -> None:
        self._cluster = cluster
        self._topic = topic
        self._form = form
        self._place = TablePlace(f"file://{directory}/{form.value}")

    def run(self) -> tuple[MaterializeReport, float]:
        """Bring it up to date; returns what was done and its processor time."""
        values = RawValues()
        order = MaterializeOrder(topic="t", values=values)
        begin = tree_seconds()
        with closing(self._place()) as store:
            table = self._form.table(store, SystemClock(), values.arrow_type)
            place = ExecutorPlace(self._topic.url)
            report = Materialization(self._cluster, place, self._place, order).run(table)
        return report, tree_seconds() - begin


def measure_tables(cluster: SparkCluster, directory: Path, key_count: int) -> Iterator[Row]:
    """A row for each format."""
    warm = KeyedTopic(directory / "warm", 1_000)
    for _ in range(2):
        Table(cluster, warm, TableFormat.DELTA, directory / "warm").run()
        warm.change(100)
    topic = KeyedTopic(directory / "topic", key_count)
    for form in (TableFormat.DELTA, TableFormat.ICEBERG, TableFormat.PARQUET):
        table = Table(cluster, topic, form, directory)
        report, full_s = table.run()
        assert (report.mode, report.row_count) == ("full", key_count)
        costs: list[float] = []
        for _ in range(REPEATS):
            count = topic.change(100)
            report, cost_s = table.run()
            assert (report.mode, report.removed_count, report.row_count) == ("incremental", count, key_count)
            costs.append(cost_s)
        yield Row(
            work=f"{form.value}, 1 % of {key_count:,} keys / full",
            unit="cpu-s",
            ours=min(costs),
            reference=full_s,
            target=0.0 if form is TableFormat.PARQUET else 10.0,
            is_cost=True,
        )


def measure(quick: bool) -> Iterator[Row]:
    """All rows; none where Spark cannot run."""
    missing = why_spark_cannot_run()
    if missing is not None:
        sys.stderr.write(f"left out: {missing}\n")
        return
    with tempfile.TemporaryDirectory() as directory:
        spark = session(directory)
        try:
            cluster = SparkCluster(spark.sparkContext)
            yield from measure_tables(cluster, Path(directory), 100_000 if quick else 800_000)
        finally:
            spark.stop()


if __name__ == "__main__":
    sys.exit(run(measure))
