"""Writes to a service beside lost tasks and killed drivers: each row is there exactly once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog.client.blocking.sync_client import SyncClient
from tests.support.service.server_process import ServerProcess
from tests.support.spark.driver_process import DriverProcess
from tests.support.spark.faulty_sink import NAME, DriverDeath, FaultySink
from tests.support.spark.faulty_tasks import Fault, FaultyTasks
from tests.support.spark.plain_store import PlainStore
from tests.support.spark.sink_program import BATCH_OFFSETS
from tests.support.spark.standalone_cluster import StandaloneCluster
from tests.support.tiered.s3_servers import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PARTITION_COUNT = 2
UPLOAD_COUNT = 6
RECORD_COUNT = 200
BATCH_COUNT = PARTITION_COUNT * UPLOAD_COUNT * RECORD_COUNT // BATCH_OFFSETS
ROWS = Counter(
    PlainStore.record("t", number, offset, 100).value
    for number in range(PARTITION_COUNT)
    for offset in range(UPLOAD_COUNT * RECORD_COUNT)
)


def source_url(server: S3Server, prefix: str) -> str:
    """A store with a topic of these rows."""
    found = PlainStore(server.open_store(prefix))
    found.create("t", PARTITION_COUNT)
    for _ in range(UPLOAD_COUNT):
        counts = {("t", number): RECORD_COUNT for number in range(PARTITION_COUNT)}
        found.upload(counts, value_bytes=100)
    return server.store_url(prefix)


@pytest.fixture
def client(tmp_path: Path, moto: S3Server) -> Generator[SyncClient]:
    """A client of a server with an empty topic `copy`, whose objects go to a bucket."""
    url = moto.store_url(f"service-{tmp_path.name}")
    with ServerProcess(str(tmp_path / "data"), store_url=url) as server, SyncClient(server.address) as found:
        found.topics.create("copy", partitions=3)
        yield found


def written(client: SyncClient) -> Counter[bytes | None]:
    return Counter(record.value for record in client.consume("copy", until="latest"))


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.value)
def test_a_batch_job_beside_faults(
    spark: SparkSession, client: SyncClient, tmp_path: Path, fault: Fault
) -> None:
    spark.dataSource.register(FaultySink)
    tasks = FaultyTasks.below(tmp_path, fault)
    rows = spark.range(0, 3_000, 1, 4).selectExpr("string(id) key", "string(id) value")
    (
        rows.write.format(NAME)
        .options(server=client.address, topic="copy")
        .options(faultKind=fault.value, faultDirectory=tasks.directory)
        .mode("append")
        .save()
    )
    tasks.check()
    assert written(client) == Counter(str(number).encode() for number in range(3_000))
    assert client.topics.list() == ["copy"]


def test_a_job_whose_drivers_were_killed_is_finished_under_its_id(
    cluster: StandaloneCluster, seaweedfs: S3Server, client: SyncClient
) -> None:
    """One dies before its decision, the next one between that and the rows."""
    order = {
        "store": source_url(seaweedfs, "job"),
        "checkpoint": "",
        "options": {"server": client.address, "topic": "copy", "jobId": "copy", "durability": "object"},
    }
    for death in (DriverDeath(0, 0), DriverDeath(0, 0, True)):
        DriverProcess(cluster, "sink_program", json.dumps({**order, "death": death})).die()
        assert not written(client)
    DriverProcess(cluster, "sink_program", json.dumps({**order, "death": None})).succeed()
    assert written(client) == ROWS


@pytest.mark.parametrize(
    ("name", "fault", "deaths"),
    [
        ("moto", Fault.FAIL, [DriverDeath(0, 1), DriverDeath(2, 2, True)]),
        ("seaweedfs", Fault.KILL, [DriverDeath(0, 0, True), DriverDeath(1, 3), DriverDeath(3, 4)]),
    ],
    ids=["failed tasks", "killed executors"],
)
def test_a_stream_from_topic_to_topic_whose_drivers_are_killed(
    cluster: StandaloneCluster,
    request: pytest.FixtureRequest,
    client: SyncClient,
    tmp_path: Path,
    name: str,
    fault: Fault,
    deaths: list[DriverDeath],
) -> None:
    """Each driver dies within a batch, and the next one goes on from its checkpoint."""
    tasks = FaultyTasks.below(tmp_path, fault)
    checkpoint = tmp_path / "checkpoint"
    order = {
        "store": source_url(request.getfixturevalue(name), f"stream-{fault.value}"),
        "checkpoint": str(checkpoint),
        "options": {
            "server": client.address,
            "topic": "copy",
            "faultKind": fault.value,
            "faultDirectory": tasks.directory,
        },
    }
    for death in deaths:
        DriverProcess(cluster, "sink_program", json.dumps({**order, "death": death})).die()
        assert not (checkpoint / "commits" / str(death.batch)).exists()
        assert (checkpoint / "offsets" / str(death.batch)).exists()
    DriverProcess(cluster, "sink_program", json.dumps({**order, "death": None})).succeed()
    tasks.check()
    assert written(client) == ROWS
    assert len([*(checkpoint / "commits").glob("[0-9]*")]) == BATCH_COUNT
