"""`stratalog spark audit` and `stats` beside lost tasks: each object is read, each record counted once."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.spark.faulty_tasks import Fault, FaultyTasks
from tests.support.spark.keyed_store import KeyedStore
from tests.support.tiered.s3_servers import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FAULTS = pytest.mark.parametrize(
    ("name", "fault"),
    [("moto", Fault.KILL), ("seaweedfs", Fault.FAIL), ("seaweedfs", Fault.HANG)],
    ids=["killed executors", "failed tasks", "slow tasks"],
)


@FAULTS
def test_an_audit_reads_all_and_names_the_damage(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fault: Fault,
) -> None:
    server: S3Server = request.getfixturevalue(name)
    store = server.open_store(f"audit-{fault.value}")
    filled = KeyedStore(store, tmp_path, seed=14)
    command = ("audit", "--store", server.store_url(f"audit-{fault.value}"))
    whole = FaultyTasks.below(tmp_path / "whole", fault).run(monkeypatch, *command)
    verification = json.loads(whole.stdout)["verification"]
    assert verification["record_count"] == sum(map(len, filled.written.values()))
    assert (verification["object_count"], verification["finding_count"]) == (8, 0)
    live = filled.tiered.partition(filled.tips[0]).slices[3]
    key = filled.tiered.layout.data_key(live.object_name)
    data = bytearray(store.get(key).data)
    data[live.entry.data_position + 100] ^= 1
    store.put(key, data)
    damaged = FaultyTasks.below(tmp_path / "damaged", fault).run(monkeypatch, *command, exit_code=1)
    findings = json.loads(damaged.stdout)["verification"]["findings"]
    places = {(one["topic"], one["partition"], one["base_offset"], one["object_name"]) for one in findings}
    assert places == {("state", 0, live.base_offset, live.object_name)}


@FAULTS
def test_stats_count_each_record_once(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fault: Fault,
) -> None:
    server: S3Server = request.getfixturevalue(name)
    filled = KeyedStore(server.open_store(f"stats-{fault.value}"), tmp_path, seed=15)
    url = server.store_url(f"stats-{fault.value}")
    tasks = FaultyTasks.below(tmp_path, fault)
    done = tasks.run(monkeypatch, "stats", "state", "--hottest", "3", "--store", url)
    document = json.loads(done.stdout)
    shown = [
        (one["record_count"], one["key_count"], one["tombstone_count"]) for one in document["partitions"]
    ]
    assert shown == [
        (len(each), len({record.key for record in each}), sum(record.value is None for record in each))
        for each in filled.written.values()
    ]
    counts = Counter(record.key for each in filled.written.values() for record in each)
    expected = sorted(counts.items(), key=lambda one: (-one[1], one[0] or b""))[:3]
    assert [
        (base64.b64decode(one["key_base64"]), one["record_count"]) for one in document["hot_keys"]
    ] == expected
