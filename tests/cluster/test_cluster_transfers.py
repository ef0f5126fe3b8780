"""`stratalog spark export`, `import` and `backfill` from bucket to bucket, beside lost tasks."""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from pyarrow import fs
from pyarrow import parquet as pq

from stratalog.base.types import TopicIdPartition
from stratalog.record.key_partition import partition_for_key
from stratalog.record.record import Record
from tests.support.spark.faulty_tasks import Fault, FaultyTasks
from tests.support.spark.keyed_store import KeyedStore
from tests.support.tiered.s3_servers import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FAULTS = pytest.mark.parametrize(
    ("name", "fault"),
    [("moto", Fault.FAIL), ("seaweedfs", Fault.HANG), ("seaweedfs", Fault.KILL)],
    ids=["failed tasks", "slow tasks", "killed executors"],
)


def records_of(filled: KeyedStore, topic: str) -> dict[int, list[Record]]:
    """The records of a topic that another process has made."""
    filled.tiered.metadata.refresh()
    entry = filled.tiered.catalog.refresh().topics()[topic]
    return {
        number: filled.tiered.records(TopicIdPartition(entry.topic_id, number))
        for number in range(entry.partition_count)
    }


def exported_rows(server: S3Server, folder: str) -> dict[int, list[tuple[Any, ...]]]:
    """The rows of an exported topic, read by pyarrow and its own client of S3."""
    files = fs.S3FileSystem(
        access_key=server.access_key_id,
        secret_key=server.secret_access_key,
        region=server.region,
        scheme="http",
        endpoint_override=urlsplit(server.endpoint_url).netloc,
    )
    found: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for info in files.get_file_info(fs.FileSelector(f"{server.bucket}/{folder}")):
        table: Any = pq.read_table(info.path, filesystem=files, partitioning=None)
        for row in table.to_pylist():
            time_ms = round(1000 * row["timestamp"].timestamp())
            found[row["partition"]].append((row["offset"], time_ms, row["key"], row["value"]))
    return {number: sorted(rows) for number, rows in found.items()}


@FAULTS
def test_a_topic_goes_to_a_bucket_and_comes_back(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fault: Fault,
) -> None:
    server: S3Server = request.getfixturevalue(name)
    prefix = f"export-{fault.value}"
    filled = KeyedStore(server.open_store(prefix), tmp_path, seed=12)
    store, target = ("--store", server.store_url(prefix)), server.store_url(f"{prefix}-target")
    tasks = FaultyTasks.below(tmp_path / "export", fault)
    small = ("--option", "maxPartitionBytes=1000000")
    done = tasks.run(monkeypatch, "export", "state", "--to", target, *store, *small)
    counts = [one["record_count"] for one in json.loads(done.stdout)["partitions"]]
    assert counts == [len(records) for records in filled.written.values()]
    assert exported_rows(server, f"{prefix}-target/topic-state") == {
        number: [(record.offset, record.timestamp_ms, record.key, record.value) for record in records]
        for number, records in filled.written.items()
    }
    tasks = FaultyTasks.below(tmp_path / "import", fault)
    tasks.run(monkeypatch, "import", target, "--topic", "restored", *store)
    assert records_of(filled, "restored") == filled.written


@FAULTS
def test_a_table_becomes_a_topic(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fault: Fault,
) -> None:
    server: S3Server = request.getfixturevalue(name)
    prefix = f"backfill-{fault.value}"
    filled = KeyedStore(server.open_store(prefix), tmp_path, seed=13)
    (tmp_path / "table").mkdir()
    for number in range(4):
        rows = (json.dumps({"id": f"k{row % 97}", "at": 4 * row + number}) for row in range(1_000))
        (tmp_path / "table" / f"{number}.json").write_text("\n".join(rows))
    columns = ("key=id", "timestamp=at", "value=to_json(struct(*))")
    FaultyTasks.below(tmp_path, fault).run(
        monkeypatch,
        *("backfill", str(tmp_path / "table"), "--format", "json", "--topic", "new", "--partitions", "3"),
        *(part for column in columns for part in ("--column", column)),
        *("--store", server.store_url(prefix)),
    )
    expected: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for at in range(4_000):
        key = b"k%d" % (at // 4 % 97)
        expected[partition_for_key(key, 3)].append((at, key))
    found = records_of(filled, "new")
    for number, records in found.items():
        assert [record.offset for record in records] == [*range(len(records))]
        assert [(record.timestamp_ms, record.key) for record in records] == expected[number]
        for record in records:
            assert json.loads(record.value or b"") == {
                "id": (record.key or b"").decode(),
                "at": record.timestamp_ms,
            }
    assert found.keys() == expected.keys()
