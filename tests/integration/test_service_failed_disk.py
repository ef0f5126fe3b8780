"""What operators meet while disks fail: topics half made or half deleted, and looking at the rest."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.types import TopicPartition
from stratalog.testing.service_bench import service_bench

LOCAL = {"remote.storage.enable": "false"}


class FullDisk(PosixFileSystem):
    """Has no room to make or rename directories of these names; such a disk does not go offline."""

    def __init__(self) -> None:
        super().__init__()
        self.unmade: str | None = None
        self.unrenamed: str | None = None

    def make_directories(self, path: str) -> None:
        _refuse(path, self.unmade)
        super().make_directories(path)

    def rename(self, source: str, target: str) -> None:
        _refuse(source, self.unrenamed)
        super().rename(source, target)


def _refuse(path: str, name: str | None) -> None:
    if name is not None and path.endswith(f"/{name}"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


async def test_one_log_that_stays_of_a_topic_that_could_not_be_made_keeps_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk()
    config = {"num.recovery.threads.per.data.dir": "1"}
    async with service_bench(tmp_path, filesystem=disk, config=config) as bench:
        disk.unmade, disk.unrenamed = "t-2", "t-0"
        with pytest.raises(DataDirectoryError):
            await bench.client.admin.create_topic("t", 3, LOCAL)
        disk.unmade = disk.unrenamed = None
        assert [Path(tmp_path, "data", f"t-{number}").exists() for number in range(3)] == [True, False, False]
        assert "the log of t-0, a topic that could not be created, is left" in caplog.text
        assert "still in the catalog" not in caplog.text
        await bench.client.admin.create_topic("t", 3, LOCAL)
        assert [await bench.append("t", [b"x"], number) for number in range(3)] == [0, 0, 0]


async def test_a_log_that_stayed_open_keeps_its_name_from_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 2, LOCAL)
        await bench.append("t", [b"old"])
        logs = bench.server.engine.logs

        def refuse(partition: TopicPartition) -> None:
            raise DataDirectoryError("the disk refuses", path=logs.path_of(partition))

        with monkeypatch.context() as patch:
            patch.setattr(logs, "delete_log", refuse)
            left_over = await bench.client.admin.delete_topic("t")
        assert left_over == [f"{tmp_path}/data/t-{number}" for number in range(2)]
        await bench.client.admin.create_topic("t", 2, LOCAL)
        assert "the log of a deleted topic was still open" in caplog.text
        assert await bench.append("t", [b"new"]) == 0
        assert [[one.value for one in records] for records in await bench.read_all("t")] == [[b"new"], []]
