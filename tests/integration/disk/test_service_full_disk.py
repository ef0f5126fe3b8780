"""A server on a disk that is full: it is freed by the server's own commands, left in order, and started on.

The disk is a small file system in memory of its own, which not every user may mount.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import DataDirectoryError
from stratalog.client.client import Client
from stratalog.client.retry import RetryPolicy
from stratalog.record.record import Record
from tests.support.service.server_process import ServerProcess
from tests.support.service.service_bench import until

LOCAL = {
    "remote.storage.enable": "false",
    "segment.bytes": "500000",
    "file.delete.delay.ms": "100",
    "min.durability": "disk",
}
OPTIONS = tuple(
    word
    for entry in (
        "log.dir.min.free.bytes=0",
        "log.initial.task.delay.ms=50",
        "log.retention.check.interval.ms=100",
        "log.segment.delete.delay.ms=100",
        # No other task may make room.
        "log.flush.offset.checkpoint.interval.ms=200",
        "log.flush.start.offset.checkpoint.interval.ms=200",
    )
    for word in ("--config", entry)
)


class SmallDisk:
    """A file system of a few MiB."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mount(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(self.path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def enlarge(self) -> None:
        assert self.mount("-o", "remount,size=24m").returncode == 0

    def names(self, partition: str = "") -> list[str]:
        """The names in the log directory, or in a partition's directory there."""
        return sorted(os.listdir(self.path / "logs" / partition))


@pytest.fixture
def disk(tmp_path: Path) -> Generator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    disk = SmallDisk(path)
    try:
        mounted = disk.mount("-o", "size=10m")
    except FileNotFoundError as failure:
        pytest.skip(f"no small disk can be mounted here: {failure}")
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture(params=["the data directory", "another log directory"])
def server(request: pytest.FixtureRequest, tmp_path: Path, disk: SmallDisk) -> Generator[ServerProcess]:
    """All new partitions go to the small disk."""
    logs, other = f"{disk.path}/logs", f"{tmp_path}/other"
    is_first = request.param == "the data directory"
    server = ServerProcess(
        logs if is_first else other,
        store_url=f"file://{tmp_path}/store",
        options=(
            *("--log-dir", other if is_first else logs),
            *("--config", f"cordoned.log.dirs={other}"),
            *OPTIONS,
        ),
        log_path=f"{tmp_path}/server.log",
    )
    with server:
        yield server


def client_of(server: ServerProcess) -> Client:
    return Client(server.address, retry=RetryPolicy(deadline_s=0))


def record(size: int) -> Record:
    return Record(0, SystemClock().now_ms(), b"key", os.urandom(size))


async def fill(client: Client, topic: str) -> int:
    """Append until not even a small record has room; returns how many were acknowledged."""
    count = 0
    for size in (100_000, 2_000, 50):
        while True:
            try:
                await client.append(topic, 0, [record(size)])
            except DataDirectoryError:
                break
            count += 1
    with pytest.raises(DataDirectoryError) as failure:
        await client.append(topic, 0, [record(50)])
    assert failure.value.fields == {"topic": topic, "partition": 0}, "and no path of the server"
    return count


async def offsets(server: ServerProcess, topic: str) -> tuple[int, int]:
    """The first and the end offset of its only partition."""
    async with client_of(server) as client:
        [earliest], [latest] = (await client.earliest(topic)).values(), (await client.latest(topic)).values()
        return earliest, latest


async def test_a_topic_is_deleted_and_its_space_is_free(server: ServerProcess, disk: SmallDisk) -> None:
    async with client_of(server) as client:
        await client.admin.create_topic("a", 1, LOCAL)
        await client.admin.create_topic("b", 1, LOCAL)
        await fill(client, "a")
        # Every task that writes now and then has met the full disk.
        await until(lambda: "recovery-point-checkpoint failed" in server.said)
        await until(lambda: "log-start-checkpoint failed" in server.said)
        assert await client.admin.delete_topic("a") == []
        await until(lambda: not any(name.startswith("a-") for name in disk.names()))
        for _ in range(3):
            await client.append("b", 0, [record(100_000)])
    server.kill()
    server.start()
    assert await offsets(server, "b") == (0, 3)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_full_disk_is_left_and_started_on(
    server: ServerProcess, disk: SmallDisk, *, is_killed: bool
) -> None:
    async with client_of(server) as client:
        await client.admin.create_topic("a", 1, LOCAL)
        await client.admin.create_topic("b", 1, LOCAL)
        count = await fill(client, "a")
    if is_killed:
        server.kill()
    else:
        assert server.stop() == 0
        assert ".kafka_cleanshutdown" in disk.names()
    server.start()
    assert await offsets(server, "a") == (0, count)
    async with client_of(server) as client:
        assert await client.admin.delete_topic("a") == []
        await until(lambda: not any(name.startswith("a-") for name in disk.names()))
        await client.append("b", 0, [record(100_000)])
    assert server.stop() == 0
