"""The programs of docs/spark.md and the commands of its tour, from the top to the bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from stratalog.cli.main import stratalog
from stratalog.client.blocking.sync_client import SyncClient
from stratalog.pipeline.local_session import why_spark_cannot_run
from tests.support.places import REPOSITORY
from tests.support.service.documented_examples import lines_of, words_of
from tests.support.service.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MISSING = why_spark_cannot_run()
pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.slow]

DOCUMENT = "docs/spark.md"
FLIGHTS = [(b"N1", b"late"), (b"N2", b"early"), (b"N1", b"landed"), (b"N2", None)]


def fill(client: SyncClient) -> None:
    for topic in ("orders", "flights", "flights-copy", "flights-counts"):
        client.topics.create(topic)
    with client.producer() as producer:
        for key, value in (("7", "paid"), ("8", "open"), ("7", "sent")):
            producer.send("orders", key=key, value=value)
        for plane, state in FLIGHTS:
            producer.send("flights", key=plane, value=state)


def rows(table: DataFrame) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = [tuple(row) for row in table.collect()]
    return sorted(found, key=repr)


def test_the_document_runs_from_the_top_to_the_bottom(spark: SparkSession, tmp_path: Path) -> None:
    store = f"file://{tmp_path}/data.store"
    with ServerProcess(str(tmp_path / "data")) as server, SyncClient(server.address) as client:
        fill(client)
        places = {
            "file:///tmp/stratalog.store": store,
            "s3://bucket/prefix": store,
            "localhost:9190": server.address,
            "/var/lib/checkpoints": f"{tmp_path}/checkpoints",
            "file:///tmp/orders": f"file://{tmp_path}/orders",
            "/tmp/export": f"{tmp_path}/export",
            # The later programs read other topics.
            "upload orders": "upload",
        }

        def in_place(text: str) -> str:
            for documented, here in places.items():
                text = text.replace(documented, here)
            return text

        for line in lines_of(DOCUMENT):
            if line.startswith("stratalog "):
                words = words_of(in_place(line))[1:]
                ended = CliRunner().invoke(stratalog, words, env={"STRATALOG_SERVER": server.address})
                assert ended.exit_code == 0, (line, ended.output, ended.exception)
        # Functions of the main program are pickled by their values.
        names: dict[str, Any] = {"__name__": "__main__"}
        for program in re.findall(r"```python\n(.*?)```", (REPOSITORY / DOCUMENT).read_text(), re.DOTALL):
            exec(in_place(program), names)
        for query in (names["query"], names["counted"]):
            query.processAllAvailable()
            query.stop()

        assert rows(names["newest"]) == [("7", "sent"), ("8", "open")]
        assert rows(names["table"]) == [(b"N1", 4), (b"N1", 6), (b"N2", 5), (b"N2", None)]
        assert rows(names["planes"].select("key", "value")) == [(b"N1", b"landed")]
        copied = [(record.key, record.value) for record in client.consume("flights-copy", until="latest")]
        # By the batch write, and by the stream.
        assert copied == FLIGHTS + FLIGHTS
        counts = {record.key: record.value for record in client.consume("flights-counts", until="latest")}
        assert counts == {b"N1": b"2", b"N2": b"2"}
    assert spark.read.parquet(f"{tmp_path}/export/topic-orders").count() == 3
