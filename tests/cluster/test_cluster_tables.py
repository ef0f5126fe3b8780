"""`stratalog spark materialize` beside lost tasks: other programs read the table, pandas knows its rows."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog.pipeline.lake import materialization
from stratalog.pipeline.lake.materialization import MaterializeOrder
from tests.support.lake.bucket_tables import BUCKET_READERS
from tests.support.lake.parquet_rows import raw_rows
from tests.support.lake.topic_table import pandas_rows
from tests.support.spark.faulty_tasks import Fault, FaultyTasks
from tests.support.spark.keyed_store import KeyedStore
from tests.support.tiered.s3_servers import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("form", "name", "fault"),
    [
        ("delta", "seaweedfs", Fault.KILL),
        ("iceberg", "seaweedfs", Fault.FAIL),
        ("parquet", "moto", Fault.HANG),
    ],
    ids=["delta, killed executors", "iceberg, failed tasks", "parquet, slow tasks"],
)
def test_a_table_beside_faults(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    name: str,
    fault: Fault,
) -> None:
    server: S3Server = request.getfixturevalue(name)
    filled = KeyedStore(server.open_store(f"{form}-source"), tmp_path, seed=11)
    # So that keys are exchanged: one task would do for so few bytes.
    small = partial(MaterializeOrder, max_task_bytes=1 << 20)
    monkeypatch.setattr(materialization, "MaterializeOrder", small)
    for number, mode in enumerate(("full", "incremental", "incremental")):
        tasks = FaultyTasks.below(tmp_path / str(number), fault)
        done = tasks.run(
            monkeypatch,
            *("materialize", "state", "--to", form),
            *("--store", server.store_url(f"{form}-source")),
            *("--table", server.store_url(f"{form}-table")),
        )
        expected = [row for part, each in filled.written.items() for row in pandas_rows(part, each)]
        assert raw_rows(BUCKET_READERS[form](server, f"{form}-table")) == sorted(expected)
        report = json.loads(done.stdout)
        assert (report["mode"], report["row_count"]) == (mode, len(expected))
        filled.upload()
