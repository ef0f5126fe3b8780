"""Real PySpark writes to a running service: batch jobs and streams, with failures on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog.client.blocking.sync_client import SyncClient
from stratalog.pipeline.local_session import why_spark_cannot_run
from tests.support.service.server_process import ServerProcess

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

MISSING = why_spark_cannot_run()
pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.slow]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Generator[SyncClient]:
    """A client of a server with the empty topics `job`, `stream` and `counts`."""
    data = tmp_path_factory.mktemp("server") / "data"
    with ServerProcess(str(data)) as server, SyncClient(server.address) as client:
        for topic in ("job", "stream"):
            client.topics.create(topic, partitions=2)
        client.topics.create("counts")
        yield client


def counted(client: SyncClient, topic: str) -> Counter[bytes | None]:
    return Counter(record.value for record in client.consume(topic, until="latest"))


def test_a_job_that_fails_leaves_nothing_and_may_be_run_again(
    spark: SparkSession, client: SyncClient, tmp_path: Path
) -> None:
    from pyspark.errors import PythonException

    broken = str(tmp_path / "broken")

    def shaky(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path

        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context is not None and context.partitionId() == 1 and not Path(broken).exists():
            Path(broken).touch()
            raise RuntimeError("the executor was lost")

    whole = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) key", "cast(id as string) value")
    rows = whole.mapInArrow(shaky, "key string, value string")
    writer = rows.write.format("stratalog").options(server=client.address, topic="job").mode("append")
    before = client.topics.list()
    with pytest.raises(PythonException):
        writer.save()
    assert client.topics.list() == before
    assert not counted(client, "job")
    for _ in range(2):
        writer.option("jobId", "load").save()
    assert counted(client, "job") == Counter(str(number).encode() for number in range(100))


def test_a_stream_writes_a_batch_once_that_spark_makes_again(
    spark: SparkSession, client: SyncClient, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()

    def run(number: int, delivery: str = "exactlyOnce") -> None:
        (tmp_path / "in" / f"{number}.txt").write_text("\n".join(f"{number}-{row}" for row in range(20)))
        lines = spark.readStream.schema("value string").text(str(tmp_path / "in"))
        query = (
            lines.writeStream.format("stratalog")
            .options(server=client.address, topic="stream", delivery=delivery)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    run(0)
    # Spark dies between the commit of the sink and its own note of it.
    for note in (tmp_path / "checkpoint" / "commits").iterdir():
        note.unlink()
    run(1)
    # Nothing is pending, so the delivery may change.
    run(2, "atLeastOnce")
    written = (f"{number}-{row}".encode() for number in range(3) for row in range(20))
    assert counted(client, "stream") == Counter(written)
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) == 3


def test_an_aggregation_is_written_by_its_batches(
    spark: SparkSession, client: SyncClient, tmp_path: Path
) -> None:
    """Spark has no output mode for it: a sink in Python takes rows that are appended only."""
    from pyspark.errors import StreamingQueryException

    (tmp_path / "in").mkdir()

    def write(batch: DataFrame, number: int) -> None:
        job = batch.write.format("stratalog").options(server=client.address, topic="counts")
        job.options(jobId="counts", batchId=number).mode("append").save()

    def run(number: int, text: str) -> None:
        (tmp_path / "in" / f"{number}.txt").write_text(text)
        query = counts.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(120)

    lines = spark.readStream.schema("value string").text(str(tmp_path / "in"))
    counted_lines = lines.groupBy("value").count().selectExpr("value key", "string(count) value")
    counts = counted_lines.writeStream.outputMode("update").trigger(availableNow=True)
    run(0, "a\na\nb")
    # Spark dies between the write and its own note of it.
    for note in (tmp_path / "checkpoint" / "commits").iterdir():
        note.unlink()
    run(1, "a")
    written = [(record.key, record.value) for record in client.consume("counts", until="latest")]
    assert sorted(written) == [(b"a", b"2"), (b"a", b"3"), (b"b", b"1")]
    assert not any("counts-" in topic for topic in client.topics.list())
    refused = counted_lines.writeStream.format("stratalog").outputMode("update")
    refused = refused.options(server=client.address, topic="counts").trigger(availableNow=True)
    with pytest.raises(StreamingQueryException) as error:
        refused.option("checkpointLocation", str(tmp_path / "other")).start().awaitTermination(120)
    assert "does not support Update" in str(error.value)
