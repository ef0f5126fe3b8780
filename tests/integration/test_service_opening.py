"""Opening many logs: beside each other, and what is told of one that cannot be opened."""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.testing.service_bench import service_bench


class WatchedDisk(PosixFileSystem):
    """At the directories of partitions, whose names end with a number, a meeting takes place or an error."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting: threading.Barrier | None = None
        self.broken: tuple[str, ...] = ()

    def list_directory(self, path: str) -> list[str]:
        if path[-1].isdigit():
            if self.meeting is not None:
                self.meeting.wait(20)
            if path.endswith(self.broken):
                raise OSError(errno.EIO, "input/output error", path)
        return super().list_directory(path)


async def test_a_start_opens_logs_of_all_topics_beside_each_other(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        for topic in ("t", "u"):
            await bench.client.admin.create_topic(topic, 2)
            await bench.append(topic, [topic.encode()], 1)
    disk = WatchedDisk()
    disk.meeting = threading.Barrier(4)
    async with service_bench(tmp_path, filesystem=disk, recovery_thread_count=4) as bench:
        for topic in ("t", "u"):
            values = [[record.value for record in part] for part in await bench.read_all(topic)]
            assert values == [[], [topic.encode()]]
            partitions = bench.server.engine.registry.topic(topic).partitions
            assert [str(one.topic_partition) for one in partitions] == [f"{topic}-0", f"{topic}-1"]


async def test_a_directory_that_fails_is_named_and_leaves_nothing_running(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 3)
    disk = WatchedDisk()
    disk.broken = ("/t-1", "/t-2")
    # Both fail at once, whoever comes first.
    disk.meeting = threading.Barrier(3)
    with caplog.at_level(logging.ERROR), pytest.raises(DataDirectoryError) as failure:
        async with service_bench(tmp_path, filesystem=disk):
            raise AssertionError("it must not start")
    assert failure.value.fields["path"] == f"{tmp_path}/data/t-1"
    assert any("t-2 cannot be opened either" in message for message in caplog.messages)
    async with service_bench(tmp_path) as bench:
        assert await bench.append("t", [b"x"], 1) == 0
