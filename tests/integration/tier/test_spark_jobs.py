"""`stratalog spark`: jobs on a real Spark session over objects in a directory."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from stratalog.cli.main import stratalog
from stratalog.cli.output import value_document
from stratalog.pipeline.jobs.count_unit import CountBounds
from stratalog.pipeline.jobs.key_statistics import key_statistics
from stratalog.pipeline.jobs.spark_cluster import SparkCluster
from stratalog.pipeline.jobs.task_place import ExecutorPlace
from stratalog.pipeline.local_session import why_spark_cannot_run
from tests.support.spark.keyed_store import SMALL, KeyedStore, local_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MISSING = why_spark_cannot_run()
pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.slow]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(stratalog, ["spark", *arguments])


def test_compact_leaves_the_last_record_of_each_key(spark: SparkSession, tmp_path: Path) -> None:
    filled = KeyedStore(local_store(tmp_path), tmp_path, seed=1)
    expected = filled.last_of_each_key()
    before = len(filled.tiered.partition(filled.tips[0]).slices)
    done = run("compact", "state", "--store", filled.tiered.store.url, *SMALL, "--json")
    assert done.exit_code == 0, done.output
    jobs = json.loads(done.stdout)
    assert {job["reason"] for job in jobs} == {""}
    assert filled.records() == expected
    partition = filled.tiered.partition(filled.tips[0])
    assert partition.compacted_upto == partition.tiered_end_offset == 3_200
    assert 1 < len(partition.slices) < before, "the large one was rewritten by several tasks"
    verified = CliRunner().invoke(stratalog, ["verify", "--compaction", "--store", filled.tiered.store.url])
    assert verified.exit_code == 0, verified.output


def test_damage_is_named_and_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    filled = KeyedStore(local_store(tmp_path), tmp_path, seed=2)
    large = filled.tips[0]
    live = filled.tiered.partition(large).slices[2]
    key = filled.tiered.layout.data_key(live.object_name)
    data = bytearray(filled.tiered.store.get(key).data)
    data[live.entry.data_position + live.entry.data_bytes - 1] ^= 1
    (tmp_path / "store" / key).write_bytes(data)
    names = [one.object_name for one in filled.tiered.partition(large).slices]
    failed = run("compact", "--store", filled.tiered.store.url, *SMALL, "--json")
    assert failed.exit_code == 1, failed.output
    reasons = " ".join(job["reason"] for job in json.loads(failed.stdout))
    for text in ("topic=`state`", "slice_base_offset=`800`", live.object_name):
        assert text in reasons
    assert [one.object_name for one in filled.tiered.partition(large).slices] == names


def test_audit_finds_each_kind_of_damage(spark: SparkSession, tmp_path: Path) -> None:
    filled = KeyedStore(local_store(tmp_path), tmp_path, seed=3)
    whole = run("audit", "--store", filled.tiered.store.url, "--json")
    assert whole.exit_code == 0, whole.output
    document = json.loads(whole.stdout)
    assert document["verification"]["record_count"] == sum(map(len, filled.records().values()))
    assert document["verification"]["object_count"] == 8
    assert len(document["proof"]["partitions"]) == 3
    slices = filled.tiered.partition(filled.tips[0]).slices
    damaged, missing = (filled.tiered.layout.data_key(slices[at].object_name) for at in (1, 5))
    data = bytearray(filled.tiered.store.get(damaged).data)
    data[slices[1].entry.data_position + 100] ^= 1
    (tmp_path / "store" / damaged).write_bytes(data)
    found = run("audit", "state", "--store", filled.tiered.store.url)
    assert found.exit_code == 1, found.output
    lines = [line for line in found.stdout.splitlines() if line.startswith("damaged")]
    assert any(slices[1].object_name in line and "state-0, offsets 400-800" in line for line in lines), (
        found.stdout
    )
    # The newest commits are read with the directories of their objects.
    (tmp_path / "store" / missing).unlink()
    unfinished = run("audit", "state", "--store", filled.tiered.store.url)
    assert unfinished.exit_code == 1
    [line] = [line for line in unfinished.stdout.splitlines() if missing in line]
    assert line.startswith("missing"), unfinished.stdout


def test_stats_count_keys_and_find_the_hottest(spark: SparkSession, tmp_path: Path) -> None:
    filled = KeyedStore(local_store(tmp_path), tmp_path, seed=4)
    page = tmp_path / "page.html"
    url = filled.tiered.store.url
    shown = run(*("stats", "state", "--hottest", "2", "--html", str(page), "--store", url, "--json"))
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.stdout)
    records = filled.records()
    assert [one["key_count"] for one in document["partitions"]] == [
        len({record.key for record in found}) for found in records.values()
    ]
    counts = Counter(record.key for found in records.values() for record in found)
    expected = sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:2]
    assert [
        (base64.b64decode(one["key_base64"]), one["record_count"]) for one in document["hot_keys"]
    ] == expected
    assert f"{counts.total():,}" in page.read_text()
    # Within such bounds the large partition is divided, and keys go from task to task.
    cluster, bounds = SparkCluster(spark.sparkContext), CountBounds(max_keys=2_000, unit_cost_bytes=4 << 20)
    divided = key_statistics(cluster, ExecutorPlace(url), ["state"], bounds=bounds)
    assert [{**value_document(one), "keys_counted": True} for one in divided] == document["partitions"]
