"""`stratalog spark export`, `import` and `backfill` on a real Spark session, and a server beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from stratalog.base.errors import InvalidConfigError, InvalidRequestError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.types import TopicIdPartition
from stratalog.cli.main import stratalog
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.local_session import why_spark_cannot_run
from stratalog.record.builder import encode_batch
from stratalog.record.key_partition import partition_for_key
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
    assert done.exit_code == 0, repr(done.exception)
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
        entry = self.tiered.catalog.create(
            name, partition_count, {"cleanup.policy": "compact", "retention.bytes": "100"}
        )
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
    assert isinstance(again.exception, InvalidRequestError)
    done = run("import", target, "--topic", "restored", "--store", store.url)
    assert "created restored with 27 records" in done.output
    assert "retention.ms and retention.bytes: -1 (the exported topic had retention.bytes=100)" in done.output
    assert store.records("restored") == store.records("state")
    tiered = ("--config", "remote.storage.enable=false", "--store", store.url)
    refused = CliRunner().invoke(stratalog, ["spark", "import", target, "--topic", "x", *tiered])
    assert isinstance(refused.exception, InvalidConfigError)
    assert refused.exception.fields["name"] == "remote.storage.enable"


def test_a_table_becomes_a_topic(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = SmallStore(tmp_path)
    table = tmp_path / "table"
    table.mkdir()
    # Later rows of a key are in earlier files, and equal rows are two records.
    for number in range(2):
        rows = [{"id": row % 7, "at": 100 * (1 - number) + row} for row in range(40)]
        lines = [json.dumps(row) for row in rows]
        (table / f"{number}.json").write_text("\n".join([*lines, lines[-1]]))
    columns = ("key=string(id)", "timestamp=at", "value=if(at % 10 = 3, null, to_json(struct(*)))")
    done = run(
        *("backfill", str(table), "--format", "json", "--topic", "new", "--partitions", "3"),
        *(part for column in columns for part in ("--column", column)),
        *("--order-by", "at", "--store", store.url, "--json"),
    )
    assert sum(one["record_count"] for one in json.loads(done.stdout)["partitions"]) == 82
    value = ("--column", "value=to_json(struct(*))")
    for words in (
        (str(table / "none"),),
        (str(table), "--column", "value=colour"),
        (str(table), "--column", "key=id", *value),
        ("--query", "select ("),
    ):
        again = ("backfill", *words, "--format", "json", "--topic", "other", "--store", store.url)
        refused = CliRunner().invoke(stratalog, ["spark", *again])
        assert isinstance(refused.exception, InvalidRequestError), words
        assert str(refused.exception.fields["reason"]).startswith("["), words
        assert "stacktrace" not in capfd.readouterr().err + refused.output, words
    for number, records in store.records("new").items():
        assert [record.offset for record in records] == [*range(len(records))]
        times = [record.timestamp_ms for record in records]
        assert times == sorted(times)
        assert {partition_for_key(record.key or b"", 3) for record in records} <= {number}
    found = [record for records in store.records("new").values() for record in records]
    expected = [100 * number + row for number in range(2) for row in (*range(40), 39)]
    assert sorted(record.timestamp_ms for record in found) == sorted(expected)
    for record in found:
        row = record.timestamp_ms % 100
        assert record.key == b"%d" % (row % 7)
        assert (record.value is None) == (row % 10 == 3)
        assert record.value is None or json.loads(record.value)["at"] == record.timestamp_ms
    assert not [*store.tiered.store.list("shards/0000/scratch/")], "scratch is given back"


def test_columns_are_found_as_spark_finds_them(spark: SparkSession, tmp_path: Path) -> None:
    store = SmallStore(tmp_path)
    text = "select 'k' as Key, 'v' as VALUE, cast(1600000000123 as decimal(20, 0)) as Timestamp, 7 as colour"
    done = run("backfill", "--query", text, "--topic", "new", "--store", store.url)
    assert "do not have: colour" in done.stderr
    [[record]] = store.records("new").values()
    assert (record.key, record.value, record.timestamp_ms) == (b"k", b"v", 1_600_000_000_123)
    all_taken = ("--column", "value=to_json(struct(*))", "--topic", "all", "--store", store.url)
    assert "do not have" not in run("backfill", "--query", text, *all_taken).stderr
    for query, words in (
        ("select 'v' as value, 1.6e9D as timestamp", "whole number"),
        ("select 'v' as value, 1600000000.123 as timestamp", "whole number"),
        ("select 'v' as value, '2020-01-01' as timestamp", "whole number"),
        ("select 'v' as value, 'k' as key, 'K' as Key", "case only"),
    ):
        refused = CliRunner().invoke(
            stratalog, ["spark", "backfill", "--query", query, "--topic", "no", "--store", store.url]
        )
        assert isinstance(refused.exception, InvalidRequestError), (query, refused.exception)
        assert words in str(refused.exception), query
