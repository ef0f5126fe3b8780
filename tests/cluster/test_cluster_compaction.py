"""`stratalog spark compact` beside lost tasks: they leave nothing visible, and the result is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from stratalog.cli.main import stratalog
from tests.support.spark.faulty_tasks import Fault, FaultyTasks
from tests.support.spark.keyed_store import SMALL, KeyedStore
from tests.support.spark.standalone_cluster import StandaloneCluster
from tests.support.tiered.s3_servers import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("name", "fault"),
    [("moto", Fault.FAIL), ("seaweedfs", Fault.HANG), ("seaweedfs", Fault.KILL)],
    ids=["failed tasks", "slow tasks", "killed executors"],
)
def test_compact_beside_faults(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fault: Fault,
) -> None:
    server: S3Server = request.getfixturevalue(name)
    prefix = f"compact-{fault.value}"
    store = server.open_store(prefix)
    filled = KeyedStore(store, tmp_path, seed=7)
    expected = filled.last_of_each_key()
    tasks = FaultyTasks.below(tmp_path, fault)
    url = server.store_url(prefix)
    done = tasks.run(monkeypatch, "compact", "state", "--store", url, *SMALL)
    assert {job["reason"] for job in json.loads(done.stdout)} == {""}
    assert filled.records() == expected
    verified = CliRunner().invoke(stratalog, ["verify", "--compaction", "--store", url])
    assert verified.exit_code == 0, verified.output
    named = {filled.tiered.layout.data_key(ref) for ref in filled.tiered.metadata.refresh().objects}
    orphans = {info.key for info in store.list(filled.tiered.layout.data_key(""))} - named
    assert len(orphans) > 8, "more than the inputs: what the lost attempts have stored"
    store.close()


def test_no_credentials_in_plans_and_logs(
    spark: SparkSession,
    cluster: StandaloneCluster,
    seaweedfs: S3Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The server checks them, so executors have found them in their own environment."""
    KeyedStore(seaweedfs.open_store("secrets"), tmp_path, seed=8)
    url = seaweedfs.store_url("secrets")
    frame = spark.read.format("stratalog").option("store", url).option("topic", "state").load()
    assert frame.count() == 8 * 410
    done = CliRunner().invoke(stratalog, ["spark", "compact", "state", "--store", url, *SMALL])
    assert done.exit_code == 0, done.output
    frame.explain(extended=True)
    plan = capsys.readouterr().out
    assert "partition" in plan
    logs = {path: path.read_bytes() for path in cluster.directory.rglob("*") if path.is_file()}
    for kind in ("driver.log", "master.Master-0/server.log", "work-127.0.0.2/*/*/stderr", "events/*/events*"):
        assert any(path.match(kind) and data for path, data in logs.items()), (kind, sorted(logs))
    secrets = seaweedfs.environment().values()
    assert not any(secret in plan for secret in secrets)
    assert [path for path, data in logs.items() if any(secret.encode() in data for secret in secrets)] == []
