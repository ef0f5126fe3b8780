"""Opening many logs: beside each other, and what becomes of one that cannot be opened."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.posix_filesystem import PosixFileSystem
from tests.support.service.service_bench import ServiceBench, service_bench


class WatchedDisk(PosixFileSystem):
    """At the directories of partitions, whose names end with a number, a meeting takes place or an error; a
    meeting of the broken ones where some are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.meeting: threading.Barrier | None = None
        self.broken: tuple[str, ...] = ()
        self.number = errno.EIO
        self.fault: Exception | None = None

    def list_directory(self, path: str) -> list[str]:
        if path[-1].isdigit():
            is_broken = path.endswith(self.broken)
            if self.meeting is not None and (is_broken or not self.broken):
                self.meeting.wait(20)
            if is_broken and self.fault is not None:
                raise self.fault
            if is_broken:
                raise OSError(self.number, os.strerror(self.number).lower(), path)
        return super().list_directory(path)


async def test_a_start_opens_logs_of_all_topics_beside_each_other(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        for topic in ("t", "u"):
            await bench.client.admin.create_topic(topic, 2)
            await bench.append(topic, [topic.encode()], 1)
    disk = WatchedDisk()
    disk.meeting = threading.Barrier(4)
    async with service_bench(
        tmp_path, filesystem=disk, config={"num.recovery.threads.per.data.dir": "4"}
    ) as bench:
        for topic in ("t", "u"):
            values = [[record.value for record in part] for part in await bench.read_all(topic)]
            assert values == [[], [topic.encode()]]
            partitions = bench.server.engine.registry.topic(topic).partitions
            assert [str(one.topic_partition) for one in partitions] == [f"{topic}-0", f"{topic}-1"]


def path_of(bench: ServiceBench, number: int) -> str:
    return bench.server.engine.registry.partition("t", number).log.local_log.directory


async def test_a_fault_in_opening_a_log_keeps_no_other_from_being_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 2)
        path = path_of(bench, 1)
    disk = WatchedDisk()
    disk.broken, disk.fault = ("/t-1",), AssertionError("nobody has foreseen this")
    with caplog.at_level(logging.ERROR):
        async with service_bench(tmp_path, filesystem=disk) as bench:
            assert await bench.append("t", [b"x"], 0) == 0
            with pytest.raises(DataDirectoryError, match="nobody has foreseen this") as failure:
                await bench.append("t", [b"x"], 1)
            assert failure.value.fields["path"] == path
            assert "nobody has foreseen this" in str(failure.value.fields["reason"])
    [told] = [record for record in caplog.records if "stays offline" in record.getMessage()]
    assert told.exc_info is not None
    assert told.exc_info[1] is disk.fault
    async with service_bench(tmp_path) as bench:
        assert await bench.append("t", [b"x"], 1) == 0


async def test_a_disk_that_refuses_every_partition_is_no_start_and_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 3)
    disk = WatchedDisk()
    disk.broken = ("/t-0", "/t-1", "/t-2")
    with pytest.raises(DataDirectoryError) as failure:
        async with service_bench(tmp_path, filesystem=disk):
            raise AssertionError("it must not start")
    assert failure.value.fields["log_dirs"] == f"{tmp_path}/data"
    assert "input/output error" in str(failure.value.fields["reason"])
    async with service_bench(tmp_path) as bench:
        assert await bench.append("t", [b"x"], 1) == 0


async def test_a_start_on_a_full_disk_is_one_and_lets_topics_be_deleted(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        for topic in ("t", "u"):
            await bench.client.admin.create_topic(topic, 1)
    disk = WatchedDisk()
    disk.broken, disk.number = ("/t-0", "/u-0"), errno.ENOSPC
    async with service_bench(tmp_path, filesystem=disk) as bench:
        with pytest.raises(DataDirectoryError, match="the local disk is full; free space"):
            await bench.append("t", [b"x"])
        await bench.client.admin.delete_topic("t")
    disk.broken = ()
    async with service_bench(tmp_path, filesystem=disk) as bench:
        assert [topic.name for topic in await bench.client.admin.list_topics()] == ["u"]
        assert not Path(tmp_path, "data", "t-0").exists()


async def test_a_topic_that_is_created_is_opened_whole_or_not_at_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = WatchedDisk()
    disk.broken = ("/t-1", "/t-2")
    # Both fail at once, whoever comes first.
    disk.meeting = threading.Barrier(2)
    async with service_bench(tmp_path, filesystem=disk) as bench:
        with caplog.at_level(logging.ERROR), pytest.raises(DataDirectoryError) as failure:
            await bench.client.admin.create_topic("t", 3)
        assert failure.value.fields["path"] == f"{tmp_path}/data/t-1"
        assert any("t-2 cannot be opened either" in message for message in caplog.messages)
        assert await bench.client.admin.list_topics() == []
