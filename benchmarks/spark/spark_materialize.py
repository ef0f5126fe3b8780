"""Incremental refreshes of `stratalog spark materialize` on this machine (`local[2]`), beside full ones.

The store and the tables are directories, so that no network counts. A topic has one record for each key; then
the values of one key in a hundred change, chosen by chance, before each round. A round is an incremental
refresh of one table, and a full one of another table of the same records. So both meet a machine that is as
warm, and the first table has the marks of all rounds before. The first round does not count; of the others
the medians do. Costs are seconds of processor time, of the JVM, its Python workers and this process together,
because other work on the machine makes wall times useless.

A large table has small values, for which the search for old rows weighs most.

A table of plain Parquet has no marks for dead rows, and is nearly written anew: its row promises nothing.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from statistics import median

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

OBJECT_KEYS = 100_000
NOW_MS = 1_700_000_000_000
ROUNDS = 5
LARGE_KEYS = 5_000_000
FEW_ROUNDS = 3


class KeyedTopic:
    """A topic of one partition whose keys are known. Not thread-safe: one measurement uses it."""

    def __init__(self, directory: Path, key_count: int, value_bytes: int) -> None:
        self.key_count = key_count
        self._random = Random(1)
        self._value_bytes = value_bytes
        clock, filesystem = ManualClock(NOW_MS), PosixFileSystem()
        store = LocalObjectStore(filesystem, clock, SequentialIds(1), str(directory / "store"))
        self.url = store.url
        self._tiered = TieredStore(
            filesystem, store, clock, SequentialIds(2), directory=str(directory / "tiered")
        )
        self._tip = TopicIdPartition(self._tiered.catalog.create("t", 1).topic_id, 0)
        # Halves of their entropy, as texts have.
        self._text = self._random.randbytes(1 << 20).hex().encode()
        for first in range(0, key_count, OBJECT_KEYS):
            self._upload(range(first, min(first + OBJECT_KEYS, key_count)))

    def change(self, one_in: int) -> int:
        """Change one key in so many; returns how many these are."""
        changed = self._random.sample(range(self.key_count), self.key_count // one_in)
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
        step = max(1, (1 << 14) // self._value_bytes)
        batches = [
            encode_batch(records[first : first + step], base_offset=base_offset + first)
            for first in range(0, len(records), step)
        ]
        self._tiered.upload({self._tip: batches})

    def _value(self) -> bytes:
        first = self._random.randrange(len(self._text) - self._value_bytes)
        return self._text[first : first + self._value_bytes]


class Table:
    """A table of the topic. Not thread-safe: one measurement uses it."""

    def __init__(self, cluster: SparkCluster, topic: KeyedTopic, form: TableFormat, directory: Path) -> None:
        self._cluster = cluster
        self._topic = topic
        self._form = form
        self._place = TablePlace(f"file://{directory}")

    def run(self, *, is_full: bool = False) -> tuple[MaterializeReport, float]:
        """Bring it up to date; returns what was done and its processor time."""
        values = RawValues()
        order = MaterializeOrder(topic="t", values=values, is_full=is_full)
        begin = tree_seconds()
        with closing(self._place()) as store:
            table = self._form.table(store, SystemClock(), values.arrow_type)
            place = ExecutorPlace(self._topic.url)
            report = Materialization(self._cluster, place, self._place, order).run(table)
        return report, tree_seconds() - begin


def measure_table(
    cluster: SparkCluster, topic: KeyedTopic, form: TableFormat, directory: Path, rounds: int
) -> tuple[float, float]:
    """The median costs of an incremental refresh and of a full one, of so many rounds after a first one."""
    followed = Table(cluster, topic, form, directory / f"{form.value}-followed")
    renewed = Table(cluster, topic, form, directory / f"{form.value}-renewed")
    key_count = topic.key_count
    followed.run()
    costs: list[tuple[float, float]] = []
    for _ in range(1 + rounds):
        count = topic.change(100)
        report, followed_s = followed.run()
        assert (report.mode, report.removed_count, report.row_count) == ("incremental", count, key_count)
        report, renewed_s = renewed.run(is_full=True)
        assert (report.mode, report.row_count) == ("full", key_count)
        costs.append((followed_s, renewed_s))
        # Delta Lake and Iceberg keep what a refresh has replaced.
        shutil.rmtree(directory / f"{form.value}-renewed")
    return median(one for one, _ in costs[1:]), median(other for _, other in costs[1:])


def measure_tables(
    cluster: SparkCluster, topic: KeyedTopic, forms: Sequence[TableFormat], directory: Path, rounds: int
) -> Iterator[Row]:
    """A row for each format."""
    for form in forms:
        ours_s, reference_s = measure_table(cluster, topic, form, directory, rounds)
        yield Row(
            work=f"{form.value}, 1 % of {topic.key_count:,} keys / full, n={rounds}",
            unit="cpu-s",
            ours=ours_s,
            reference=reference_s,
            target=0.0 if form is TableFormat.PARQUET else 10.0,
            is_cost=True,
        )


def measure(quick: bool) -> Iterator[Row]:
    """All rows; none where Spark cannot run."""
    missing = why_spark_cannot_run()
    if missing is not None:
        sys.stderr.write(f"left out: {missing}\n")
        return
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        spark = session(name)
        try:
            cluster = SparkCluster(spark.sparkContext)
            topic = KeyedTopic(directory / "topic", 100_000 if quick else 800_000, 1024)
            forms = (TableFormat.DELTA, TableFormat.ICEBERG, TableFormat.PARQUET)
            rounds = FEW_ROUNDS if quick else ROUNDS
            yield from measure_tables(cluster, topic, forms, directory / "tables", rounds)
            if not quick:
                large = KeyedTopic(directory / "large", LARGE_KEYS, 100)
                place = directory / "large-tables"
                yield from measure_tables(cluster, large, [TableFormat.DELTA], place, FEW_ROUNDS)
        finally:
            spark.stop()


if __name__ == "__main__":
    sys.exit(run(measure))
