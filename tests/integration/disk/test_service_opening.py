"""Opening many logs: beside each other, and what becomes of one that cannot be opened."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path

import pytest

from stratalog.base.errors import DataDirectoryError
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.service.service_bench import ServiceBench, service_bench


class Openings:
    """Openings of partitions on a disk: they meet at a barrier, and those of `broken` partitions fail.

    Thread-safe, while nothing is set.
    """

    def __init__(self) -> None:
        self.disk = HookedDisk(self._before)
        self.meeting: threading.Barrier | None = None
        """The broken ones meet, where some are broken."""
        self.broken: tuple[str, ...] = ()
        self.number = errno.EIO
        self.fault: Exception | None = None

    def _before(self, name: str, path: str) -> None:
        if name == "list_directory" and path[-1].isdigit():
            is_broken = path.endswith(self.broken)
            if self.meeting is not None and (is_broken or not self.broken):
                self.meeting.wait(20)
            if is_broken:
                raise self.fault or OSError(self.number, os.strerror(self.number), path)


async def test_a_start_opens_logs_of_all_topics_beside_each_other(tmp_path: Path) -> None:
    openings = Openings()
    async with service_bench(tmp_path, filesystem=openings.disk) as bench:
        for topic in ("t", "u"):
            await bench.client.admin.create_topic(topic, 2)
            await bench.append(topic, [topic.encode()], 1)
    openings.meeting = threading.Barrier(4)
    config = {"num.recovery.threads.per.data.dir": "4"}
    async with service_bench(tmp_path, filesystem=openings.disk, config=config) as bench:
        for topic in ("t", "u"):
            values = await bench.values(topic)
            assert values == [[], [topic.encode()]]
            partitions = bench.server.engine.topics.registry.topic(topic).partitions
            assert [str(one.topic_partition) for one in partitions] == [f"{topic}-0", f"{topic}-1"]


def path_of(bench: ServiceBench, number: int) -> str:
    return bench.partition("t", number).log.local_log.directory


async def test_a_fault_in_opening_a_log_keeps_no_other_from_being_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    openings = Openings()
    async with service_bench(tmp_path, filesystem=openings.disk) as bench:
        await bench.client.admin.create_topic("t", 2)
        path = path_of(bench, 1)
    openings.broken, openings.fault = ("/t-1",), AssertionError("a defect")
    with caplog.at_level(logging.ERROR):
        async with service_bench(tmp_path, filesystem=openings.disk) as bench:
            assert await bench.append("t", [b"x"], 0) == 0
            with pytest.raises(DataDirectoryError) as failure:
                await bench.append("t", [b"x"], 1)
            assert failure.value.fields == {"topic": "t", "partition": 1}
            [offline] = (await bench.client.admin.tier_status()).offline_partitions
            assert offline.path == path
            assert "a defect" in offline.reason
    [line] = [record for record in caplog.records if "stays offline" in record.getMessage()]
    assert line.exc_info is not None
    assert line.exc_info[1] is openings.fault
    openings.broken = ()
    async with service_bench(tmp_path, filesystem=openings.disk) as bench:
        assert await bench.append("t", [b"x"], 1) == 0


async def test_a_disk_that_refuses_every_partition_is_no_start_and_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    openings = Openings()
    async with service_bench(tmp_path, filesystem=openings.disk) as bench:
        await bench.client.admin.create_topic("t", 3)
    openings.broken = ("/t-0", "/t-1", "/t-2")
    with pytest.raises(DataDirectoryError) as failure:
        async with service_bench(tmp_path, filesystem=openings.disk):
            raise AssertionError("it must not start")
    assert failure.value.fields["log_dirs"] == f"{tmp_path}/data"
    assert os.strerror(errno.EIO) in str(failure.value.fields["reason"])
    openings.broken = ()
    async with service_bench(tmp_path, filesystem=openings.disk) as bench:
        assert await bench.append("t", [b"x"], 1) == 0


async def test_a_start_on_a_full_disk_is_one_and_lets_topics_be_deleted(tmp_path: Path) -> None:
    openings = Openings()
    async with service_bench(tmp_path, filesystem=openings.disk) as bench:
        for topic in ("t", "u"):
            await bench.client.admin.create_topic(topic, 1)
    openings.broken, openings.number = ("/t-0", "/u-0"), errno.ENOSPC
    async with service_bench(tmp_path, filesystem=openings.disk) as bench:
        with pytest.raises(DataDirectoryError):
            await bench.append("t", [b"x"])
        offline = (await bench.client.admin.tier_status()).offline_partitions
        assert all(os.strerror(errno.ENOSPC) in one.reason for one in offline)
        assert len(offline) == 2
        await bench.client.admin.delete_topic("t")
    openings.broken = ()
    async with service_bench(tmp_path, filesystem=openings.disk) as bench:
        assert [topic.name for topic in await bench.client.admin.list_topics()] == ["u"]
        assert not openings.disk.exists(f"{tmp_path}/data/t-0")


async def test_a_topic_that_is_created_is_opened_whole_or_not_at_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    openings = Openings()
    openings.broken = ("/t-1", "/t-2")
    # Both fail at once.
    openings.meeting = threading.Barrier(2)
    async with service_bench(tmp_path, filesystem=openings.disk) as bench:
        with caplog.at_level(logging.WARNING), pytest.raises(DataDirectoryError):
            await bench.client.admin.create_topic("t", 3)
        assert any(f"path=`{tmp_path}/data/t-1`" in message for message in caplog.messages)
        assert any("t-2 cannot be opened either" in message for message in caplog.messages)
        assert await bench.client.admin.list_topics() == []
