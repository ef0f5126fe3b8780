"""Scans and streams whose tasks run in executors of other machines, and lose some of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow.parquet as pq
import pytest

from tests.support.spark.driver_process import TIMEOUT_S, DriverProcess
from tests.support.spark.faulty_tasks import Fault, FaultyTasks
from tests.support.spark.plain_store import PlainStore
from tests.support.spark.standalone_cluster import StandaloneCluster
from tests.support.tiered.s3_servers import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RECORD_COUNT = 200
UPLOAD_COUNT = 6


def filled(server: S3Server, prefix: str) -> PlainStore:
    found = PlainStore(server.open_store(prefix))
    found.create("t", 2)
    for _ in range(UPLOAD_COUNT):
        found.upload({("t", number): RECORD_COUNT for number in range(2)}, value_bytes=100)
    return found


EXPECTED = [
    (number, offset, PlainStore.record("t", number, offset, 100).value)
    for number in range(2)
    for offset in range(RECORD_COUNT * UPLOAD_COUNT)
]


@pytest.mark.parametrize(
    ("name", "fault"), [("moto", Fault.FAIL), ("seaweedfs", Fault.KILL)], ids=["moto", "seaweedfs"]
)
def test_a_scan_survives_its_tasks_and_executors(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, name: str, fault: Fault
) -> None:
    server: S3Server = request.getfixturevalue(name)
    filled(server, f"scan-{name}")
    frame = (
        spark.read.format("stratalog")
        .option("store", server.store_url(f"scan-{name}"))
        .option("topic", "t")
        .option("maxPartitionBytes", "50000")
        .load()
        .select("partition", "offset", "value")
    )
    assert frame.rdd.getNumPartitions() > 2
    tasks = FaultyTasks.below(tmp_path, fault)

    def to_the_end(rows: Iterable[Any]) -> Iterator[Any]:
        yield from rows
        tasks.strike()

    found = [
        (row["partition"], row["offset"], bytes(row["value"]))
        for row in frame.rdd.mapPartitions(to_the_end).collect()
    ]
    assert sorted(found) == EXPECTED
    tasks.check()


def test_a_stream_goes_on_after_its_driver_was_killed(
    cluster: StandaloneCluster, seaweedfs: S3Server, tmp_path: Path
) -> None:
    filled(seaweedfs, "stream")
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    committed = checkpoint / "commits"

    def start() -> DriverProcess:
        return DriverProcess(
            cluster, "stream_program", seaweedfs.store_url("stream"), str(out), str(checkpoint)
        )

    first = start()
    try:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not (committed / "1").exists():
            first.require_running()
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
    finally:
        first.kill()
    batch_count = len(os.listdir(committed))
    start().succeed()
    assert 0 < batch_count < len(os.listdir(committed)), "both runs have committed batches"
    assert rows_of(out) == [(number, offset) for number, offset, _ in EXPECTED]


def rows_of(out: Path) -> list[tuple[int, int]]:
    """By the log of the sink, without Spark: a killed batch may have left files that it does not name. Each
    tenth entry of the log repeats those before it."""
    files: set[str] = set()
    for batch in (out / "_spark_metadata").glob("[0-9]*"):
        for line in batch.read_text().splitlines()[1:]:
            files.add(str(json.loads(line)["path"]).removeprefix("file://"))
    rows: list[tuple[int, int]] = []
    for path in files:
        table = cast("Any", pq).read_table(path)
        rows += zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
    return sorted(rows)
