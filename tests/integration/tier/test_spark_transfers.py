"""`stratalog spark export`, `import` and `backfill` on a real Spark session, and a server beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.types import TopicIdPartition
from stratalog.cli.main import stratalog
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.local_session import why_spark_cannot_run
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_store import TieredStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MISSING = why_spark_cannot_run()
pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.slow]

NOW_MS = 1_700_000_000_000


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(stratalog, ["spark", *arguments])
    assert done.exit_code == 0, done.output
    return done


class SmallStore:
    """A store in a directory. Not thread-safe: one test uses it."""

    def __init__(self, directory: Path) -> None:
        self.url = f"file://{directory}/store"
        clock, filesystem = ManualClock(NOW_MS), PosixFileSystem()
        store = LocalObjectStore(filesystem, clock, SequentialIds(1), str(directory / "store"))
        self.tiered = TieredStore(
            filesystem, store, clock, SequentialIds(2), directory=str(directory / "tiered")
        )

    def fill(self, name: str, partition_count: int) -> None:
        entry = self.tiered.catalog.create(name, partition_count, {"cleanup.policy": "compact"})
        for upload in range(3):
            self.tiered.upload(
                {
                    TopicIdPartition(entry.topic_id, number): [self._batch(10 * upload + 2 * number, number)]
                    for number in range(partition_count)
                },
                end_offsets={
                    TopicIdPartition(entry.topic_id, number): 10 * (upload + 1)
                    for number in range(partition_count)
                },
            )

    def _batch(self, base_offset: int, number: int) -> bytes:
        records = [
            Record(
                base_offset + index,
                NOW_MS + index,
                b"key-%d-%d" % (number, index),
                None if index == 1 else b"value",
                (("source", None), ("é", b"x")) if index else (),
            )
            for index in range(3)
        ]
        return encode_batch(records, base_offset=base_offset, leader_epoch=1)

    def records(self, name: str) -> dict[int, list[Record]]:
        entry = self.tiered.catalog.refresh().topics()[name]
        return {
            number: self.tiered.records(TopicIdPartition(entry.topic_id, number))
            for number in range(entry.partition_count)
        }


def test_a_topic_goes_out_and_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    store.fill("state", 3)
    target = str(tmp_path / "out")
    done = run("export", "state", "--to", target, "--store", store.url, "--json")
    document = json.loads(done.stdout)
    assert [one["record_count"] for one in document["partitions"]] == [9, 9, 9]
    found = spark.read.parquet(f"{target}/topic-state")
    assert found.count() == 27
    assert {field.name for field in found.schema} >= {"key", "value", "offset", "timestamp", "headers"}
    again = CliRunner().invoke(stratalog, ["spark", "export", "state", "--to", target, "--store", store.url])
    assert "there is a whole export here" in str(again.exception)
    done = run("import", target, "--topic", "restored", "--store", store.url)
    assert "created restored with 27 records" in done.output
    assert store.records("restored") == store.records("state")
    tiered = ("--config", "remote.storage.enable=false", "--store", store.url)
    refused = CliRunner().invoke(stratalog, ["spark", "import", target, "--topic", "x", *tiered])
    assert "so it is tiered" in str(refused.exception)
    verified = CliRunner().invoke(stratalog, ["tier", "verify", "--store", store.url])
    assert verified.exit_code == 0, verified.output
