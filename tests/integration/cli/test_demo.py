"""The demonstration as a user runs it, and what it promises when something goes wrong meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import suppress
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress, TaskID

from stratalog.base.errors import LogStoreError
from stratalog.base.types import Durability
from stratalog.cli.demo import flights
from stratalog.cli.demo.demo_server import DemoServer
from stratalog.cli.demo.places import DemoPlaces
from stratalog.cli.demo.report import DemoReport
from stratalog.cli.demo.story import KEYED_CONFIG, KEYED_TOPIC, PARTITION_COUNT, Story
from stratalog.client.client import Client
from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.retry import RetryPolicy
from stratalog.client.sealed_batch import Acknowledged
from stratalog.manager.directories.locked_directory import CLEAN_SHUTDOWN_FILE
from tests.support.service.server_process import ServerProcess
from tests.support.tiered.s3_servers import S3Server

FEW = "4000"


def run_demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Without Java, so that the check in Spark is skipped: it has tests of its own."""
    return subprocess.run(
        [sys.executable, "-m", "stratalog.cli", "demo", "--flights", FEW, "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "JAVA_HOME": "/nowhere", **environment},
    )


def test_the_demo_ends_with_one_json_object_and_leaves_nothing(tmp_path: Path) -> None:
    done = run_demo(TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["records"] == int(FEW)
    assert all(check["ok"] for check in found["checks"])
    assert found["compaction"]["get_requests"] == 2 * found["compaction"]["inputs"] > 0
    assert found["objects"]["after"]["records"] < found["objects"]["before"]["records"]
    assert list(found["seconds"])[:2] == ["start the server", "read the data set"]
    assert len(found["offsets"]) == 2 * PARTITION_COUNT
    assert any("Java" in reason for reason in found["skipped"])
    assert list(tmp_path.iterdir()) == []


def test_the_demo_needs_no_flight_without_a_tail_number(tmp_path: Path) -> None:
    assert all(record.key is not None for record in flights.load(1).records)
    done = run_demo("--flights", "1", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["records"] == 1


class WatchedProgress(Progress):
    """Remembers how far each bar was each time that it moved. For one thread."""

    def __init__(self) -> None:
        super().__init__(console=Console(file=StringIO()))
        self.seen: dict[str, list[float]] = {}

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        [task] = [task for task in self.tasks if task.id == task_id]
        self.seen.setdefault(task.description, []).append(task.completed)


def test_bars_move_while_records_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    places = DemoPlaces(tmp_path / "kept", None)
    server = DemoServer(places.data_dir, places.store_url, places.server_log)
    progress, report, count = WatchedProgress(), DemoReport(), int(FEW)
    try:
        Story(places, server, count, progress, report).run()
    finally:
        server.stop()
    assert report.ok
    keyless_count = sum(record.key is None for record in flights.load(count).records)
    expected = {
        "append and tier, month by month": count,
        "read everything from the bucket, before compaction": count - keyless_count,
        "read everything through gRPC, from the bucket alone": count,
    }
    assert {name: seen[-1] for name, seen in progress.seen.items()} == expected
    assert all(len(seen) > 2 and seen == sorted(set(seen)) for seen in progress.seen.values())
    assert {task.description: task.total for task in progress.tasks if (task.total or 0) > 1} == expected
    assert all(task.finished for task in progress.tasks)


def test_the_demo_on_an_s3_server_takes_its_objects_away(moto_server: S3Server, s3_prefix: str) -> None:
    done = run_demo("--store", moto_server.store_url(s3_prefix), **moto_server.environment())
    assert done.returncode == 0, done.stderr
    assert all(check["ok"] for check in json.loads(done.stdout.splitlines()[-1])["checks"])
    store = moto_server.open_store(s3_prefix)
    assert list(store.list("")) == []
    store.close()


@pytest.mark.parametrize(
    ("store_url", "reason"),
    [
        ("gs://bucket", "this is not the url of an object store"),
        ("s3://bucket?port=1", "the query of the store's url"),
        ("memory://", "ends with its server"),
    ],
)
def test_a_wrong_store_is_refused_before_anything_is_made(
    tmp_path: Path, store_url: str, reason: str
) -> None:
    done = run_demo("--store", store_url, "--keep", f"{tmp_path}/kept", TMPDIR=str(tmp_path))
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert reason in line
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_reached_is_the_one_error(tmp_path: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    done = run_demo(
        "--store", "s3://bucket?endpoint=http://127.0.0.1:1&region=x", TMPDIR=str(tmp_path), **keys
    )
    assert done.returncode == 1
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "the server did not start: the store cannot be reached" in error
    assert "endpoint=`http://127.0.0.1:1`" in error
    assert list(tmp_path.iterdir()) == []


def interrupt_served(scratch: Path, *arguments: str) -> None:
    """Ctrl-C of a terminal, which every process of the foreground's group gets, once the demo serves."""
    demo = subprocess.Popen(
        [sys.executable, "-m", "stratalog.cli", "demo", "--flights", FEW, "--serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "JAVA_HOME": "/nowhere", "TMPDIR": str(scratch)},
        process_group=0,
    )
    assert demo.stdout is not None
    said = ""
    while "Ctrl-C ends it" not in said:
        line = demo.stdout.readline()
        assert line, said
        said += line
    os.killpg(demo.pid, signal.SIGINT)
    assert demo.wait(60) == 0
    demo.stdout.close()


def test_ctrl_c_cleans_up(tmp_path: Path) -> None:
    interrupt_served(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_stops_the_server_cleanly_and_leaves_a_store_that_a_server_starts_on(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    interrupt_served(tmp_path, "--keep", str(kept))
    assert "stopping at once" not in (kept / "server.log").read_text()
    assert (kept / "data" / CLEAN_SHUTDOWN_FILE).exists()
    with ServerProcess(f"{kept}/data", store_url=(kept / "store").as_uri()) as server:
        lines = subprocess.run(
            [sys.executable, "-m", "stratalog.cli", "consume", KEYED_TOPIC, "--max", "3", "--format", "json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**os.environ, "STRATALOG_SERVER": server.address},
        ).stdout.splitlines()
        assert len(lines) == 3
        assert {"key", "value", "partition", "offset"} <= set(json.loads(lines[0]))
    again = run_demo("--keep", str(kept))
    assert again.returncode == 1
    assert "not empty" in again.stderr


@pytest.fixture
def server(tmp_path: Path) -> Generator[ServerProcess]:
    with ServerProcess(f"{tmp_path}/data") as running:
        yield running


Found = dict[tuple[int, int], tuple[bytes | None, bytes | None, int]]
"""(partition, offset) to (key, value, timestamp)."""


class KilledLoad:
    """Sends flights with acks=disk, tiers meanwhile, and kills the server once so many are acknowledged."""

    def __init__(self, server: ServerProcess, kill_after: int) -> None:
        self._server = server
        self._kill_after = kill_after
        self._settled = 0
        self._waiting: list[tuple[asyncio.Future[Acknowledged], flights.FlightRecord]] = []

    async def run(self, records: Sequence[flights.FlightRecord]) -> None:
        settings = ProducerSettings(acks=Durability.DISK, batch_bytes=20_000, linger_ms=1)
        async with Client(self._server.address, retry=RetryPolicy(deadline_s=1.0)) as client:
            await client.admin.create_topic(KEYED_TOPIC, PARTITION_COUNT, KEYED_CONFIG)
            producer = client.producer(settings)
            uploads: list[asyncio.Task[object]] = []
            with suppress(LogStoreError):
                for index, record in enumerate(records):
                    future = await producer.send(KEYED_TOPIC, *record[:2], timestamp_ms=record.timestamp_ms)
                    future.add_done_callback(self._on_settled)
                    self._waiting.append((future, record))
                    if index % 3_000 == 2_999:
                        uploads.append(asyncio.create_task(client.admin.upload()))
                        await asyncio.sleep(0)
                await producer.flush()
            producer.abandon()
            await asyncio.gather(*uploads, return_exceptions=True)

    def acknowledged(self) -> Found:
        found: Found = {}
        for future, record in self._waiting:
            if future.done() and not future.cancelled() and future.exception() is None:
                (_, partition), offset, _ = future.result()
                found[partition, offset] = (record.key, record.value, record.timestamp_ms)
        return found

    def _on_settled(self, future: asyncio.Future[Acknowledged]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._settled += 1
            if self._settled == self._kill_after:
                os.kill(self._server.pid, signal.SIGKILL)


async def read_everything(address: str) -> Found:
    """Every record from the log start to the high watermark, each once, without holes."""
    found: Found = {}
    async with Client(address) as client:
        latest = await client.latest(KEYED_TOPIC)
        consumer = client.consumer(await client.earliest(KEYED_TOPIC), end_offsets=latest)
        async for fetched in consumer.fetches():
            for record in fetched.records:
                place = (fetched.topic_partition.partition, record.offset)
                assert place not in found, "a record was read twice"
                found[place] = (record.key, record.value, record.timestamp_ms)
    assert set(found) == {
        (partition, offset) for (_, partition), end in latest.items() for offset in range(end)
    }
    return found


@pytest.mark.parametrize("kill_after", [1, 9_000])
def test_kill_9_during_the_load_loses_nothing_acknowledged(server: ServerProcess, kill_after: int) -> None:
    load = KilledLoad(server, kill_after)
    asyncio.run(load.run([record for record in flights.load(30_000).records if record.key is not None]))
    acknowledged = load.acknowledged()
    assert len(acknowledged) >= kill_after
    server.kill()
    server.start()
    found = asyncio.run(read_everything(server.address))
    assert {place: found.get(place) for place in acknowledged} == acknowledged
