"""Compacts a topic of the demonstration with Spark, makes a table of another one, and reads topics back, in a
child process with a process group of its own.

Spark's JVM ignores Ctrl-C. If its Python is interrupted during the start, the JVM stays for ever. So Spark
runs in a child that the terminal does not reach. The child kills its whole group, the JVM included, when its
standard input ends. It ends with the demonstration, even after `kill -9`. The whole group shares the child's
standard output. When that ends, no process writes to the scratch directory any more. The result is in a file
there.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from stratalog.base.clock import SystemClock

if TYPE_CHECKING:
    from stratalog.pipeline.job_cluster import JobCluster

_JOBS_AT_ONCE = 2
_PARTITION_BYTES = 1 << 30


class DemoTopics(NamedTuple):
    """The topics of the demonstration."""

    keyed: str
    plain: str
    to_compact: str
    """A topic that Spark compacts first."""


class SparkFindings(NamedTuple):
    """The results of Spark, by the objects alone."""

    table: list[Path]
    """The Parquet files of the table of the keyed topic's latest state, in the scratch directory."""
    values: list[bytes]
    """The value of every record of the plain topic."""
    compacted: list[tuple[bytes, bytes | None]]
    """Key and value of every record of the topic that Spark has compacted."""
    start_s: float = 0.0
    """The time that Spark's session took to start."""


def read_with_spark(store_url: str, topics: DemoTopics, scratch: Path) -> SparkFindings:
    """Compact, materialize and read the topics, by the objects alone. Spark writes into `scratch`. No process
    is left behind, however this ends. Raises click.ClickException if Spark failed; its output is on standard
    error then.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    child = subprocess.Popen(
        [sys.executable, "-m", __name__, store_url, *topics, str(scratch)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    assert child.stdin is not None, "a pipe was asked for"
    assert child.stdout is not None, "a pipe was asked for"
    try:
        said = child.stdout.read()
    finally:
        child.stdin.close()
        child.stdout.read()
        code = child.wait()
    if code != 0:
        sys.stderr.buffer.write(said)
        raise click.ClickException("Spark could not read the topics back, see above for what it said")
    return SparkFindings(*pickle.loads(_findings_file(scratch).read_bytes()))


def _findings_file(scratch: Path) -> Path:
    return scratch / "findings"


def _read(store_url: str, topics: DemoTopics, scratch: Path) -> SparkFindings:
    """The work of the child."""
    begin_s = SystemClock().monotonic_s()
    from stratalog.pipeline.job_cluster import JobCluster
    from stratalog.pipeline.local_session import start_local_session

    spark = start_local_session("stratalog demo", str(scratch))
    start_s = SystemClock().monotonic_s() - begin_s
    try:
        cluster = JobCluster(lambda: spark)
        return findings_of(cluster, store_url, topics, scratch)._replace(start_s=start_s)
    finally:
        spark.stop()


def findings_of(cluster: JobCluster, store_url: str, topics: DemoTopics, scratch: Path) -> SparkFindings:
    """Do all of the work on a cluster; the table is below `scratch`."""
    from stratalog.pipeline.source.data_source import StratalogDataSource

    _compact(cluster, store_url, topics.to_compact)
    table = _materialize(cluster, store_url, topics.keyed, scratch / "table")
    # One query for both topics, because each takes a second.
    source = cluster.session.read.format(StratalogDataSource.name()).option("store", store_url)
    both = source.option("topic", f"{topics.plain},{topics.to_compact}")
    found = both.schema("topic string, key binary, value binary").load().collect()
    values = [bytes(row["value"]) for row in found if row["topic"] == topics.plain]
    compacted = [
        (bytes(row["key"]), _bytes_of(row["value"])) for row in found if row["topic"] == topics.to_compact
    ]
    return SparkFindings(table, values, compacted)


def _compact(cluster: JobCluster, store_url: str, topic: str) -> None:
    """Compact a topic, as `stratalog spark compact` does."""
    from stratalog.cli.store_access.store_compaction import CompactionLayers, JobsElsewhere, store_compaction
    from stratalog.pipeline.jobs.cluster_executions import ClusterExecutions
    from stratalog.pipeline.jobs.task_place import ExecutorPlace

    with ClusterExecutions(cluster, ExecutorPlace(store_url), jobs_at_once=_JOBS_AT_ONCE) as executions:
        elsewhere = JobsElsewhere(executions.execution, _JOBS_AT_ONCE, max_partition_bytes=_PARTITION_BYTES)
        with store_compaction(store_url, CompactionLayers({}, {}), elsewhere) as store:
            store.run([topic])


def _materialize(cluster: JobCluster, store_url: str, topic: str, directory: Path) -> list[Path]:
    """Make a table of plain Parquet, as `stratalog spark materialize` does; returns its files."""
    from stratalog.pipeline.jobs.task_place import ExecutorPlace
    from stratalog.pipeline.lake.materialization import Materialization, MaterializeOrder
    from stratalog.pipeline.lake.table_format import TableFormat
    from stratalog.pipeline.lake.table_place import TablePlace
    from stratalog.pipeline.lake.values.value_format import RawValues

    place, values = TablePlace(directory.as_uri()), RawValues()
    order = MaterializeOrder(topic=topic, values=values)
    with closing(place()) as store:
        table = TableFormat.PARQUET.table(store, SystemClock(), values.arrow_type)
        _ = Materialization(cluster, ExecutorPlace(store_url), place, order).run(table)
        return [directory / file.path for file in table.read().files]


def _bytes_of(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


async def _child(store_url: str, topics: DemoTopics, scratch: Path) -> None:
    # Nothing is ever written to this pipe: it becomes readable when its other end is closed.
    asyncio.get_running_loop().add_reader(sys.stdin, lambda: os.killpg(0, signal.SIGKILL))
    findings = await asyncio.to_thread(_read, store_url, topics, scratch)
    _findings_file(scratch).write_bytes(pickle.dumps(tuple(findings)))


if __name__ == "__main__":
    _, store, *names, directory = sys.argv
    asyncio.run(_child(store, DemoTopics(*names), Path(directory)))
