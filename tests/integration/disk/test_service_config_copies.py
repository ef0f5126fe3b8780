"""What was altered at run time holds whichever log directory is missing, empty, full or named first."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import AppendFile
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.cli.main import stratalog
from stratalog.server.configuration.broker_config_file import BROKER_CONFIG_FILE
from stratalog.testing.failing_directory import FailingDirectory
from tests.support.service.service_bench import ServiceBench, service_bench

LOCAL = {"remote.storage.enable": "false", "segment.bytes": "1024"}


class FullDisk(PosixFileSystem):
    """Has no room for the configuration, while it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False

    def open_append(self, path: str) -> AppendFile:
        if self.is_full and BROKER_CONFIG_FILE in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return super().open_append(path)


def run(bench: ServiceBench, *arguments: str) -> Any:
    return CliRunner().invoke(stratalog, [*arguments, "--server", f"127.0.0.1:{bench.server.port}"])


async def retention_of(bench: ServiceBench) -> str:
    [entry] = await bench.client.admin.describe_configs(names=["log.retention.ms"])
    return entry.value


async def starts_after_retention(bench: ServiceBench) -> dict[int, int]:
    """Where the partitions that are served start, after retention has run; all their records are old."""
    bench.server.engine.local_retention.run()
    [topic] = await bench.client.admin.describe_topics(["t"])
    offline = {one.partition for one in topic.offline_partitions}
    served = [number for number in range(2) if number not in offline]
    return {log.partition: log.log_start_offset for log in await bench.client.admin.describe_log("t", served)}


async def keep_old_records(bench: ServiceBench) -> None:
    """Two partitions with records of 1970, which only the alteration keeps."""
    await bench.client.admin.create_topic("t", 2, LOCAL)
    await bench.client.admin.alter_configs({"log.retention.ms": "-1"})
    for number in range(2):
        for _ in range(3):
            await bench.append("t", [b"x" * 900], number)


async def test_an_empty_mount_point_in_the_place_of_the_data_directory_deletes_nothing(
    tmp_path: Path,
) -> None:
    other = f"{tmp_path}/other"
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        await keep_old_records(bench)
        assert await starts_after_retention(bench) == {0: 0, 1: 0}
    (tmp_path / "data").rename(tmp_path / "unmounted")
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        assert await retention_of(bench) == "-1"
        assert [*(await starts_after_retention(bench)).values()] == [0]
        # And what is altered now is newer than what the directory that comes back says.
        await bench.client.admin.alter_configs({"log.roll.ms": "7"})
    (tmp_path / "data" / BROKER_CONFIG_FILE).unlink()
    for path in (tmp_path / "unmounted").iterdir():
        if path.name == BROKER_CONFIG_FILE:
            path.rename(tmp_path / "data" / path.name)
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        [entry] = await bench.client.admin.describe_configs(names=["log.roll.ms"])
        assert (entry.value, await retention_of(bench)) == ("7", "-1")


async def test_directories_that_are_named_in_another_order_delete_nothing(tmp_path: Path) -> None:
    data, other = f"{tmp_path}/data", f"{tmp_path}/other"
    store = f"file://{tmp_path}/data.store"
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        await keep_old_records(bench)
    async with service_bench(tmp_path, data_dir=other, log_dirs=(data,), store_url=store) as bench:
        assert await retention_of(bench) == "-1"
        assert await starts_after_retention(bench) == {0: 0, 1: 0}


async def test_a_directory_that_was_added_has_the_alterations_as_well(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.alter_configs({"log.retention.ms": "-1"})
    store = f"file://{tmp_path}/data.store"
    async with service_bench(tmp_path, log_dirs=(f"{tmp_path}/new",)):
        pass
    async with service_bench(tmp_path, data_dir=f"{tmp_path}/new", store_url=store) as bench:
        assert await retention_of(bench) == "-1"


async def test_an_alteration_holds_that_the_failed_disk_of_the_data_directory_cannot_take(
    tmp_path: Path,
) -> None:
    disk, other = FailingDirectory(), f"{tmp_path}/other"
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(other,)) as bench:
        disk.broken = f"{tmp_path}/data"
        result = await asyncio.to_thread(run, bench, "config", "alter", "--broker", "--add", "log.roll.ms=7")
        assert result.exit_code == 0, result.output
        states = [one.state for one in (await bench.client.admin.describe_log_dirs()).log_dirs]
        assert states == ["offline", "live"]
        # It is not asked again.
        await bench.client.admin.alter_configs({"log.retention.ms": "-1"})
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        assert await retention_of(bench) == "-1"


async def test_a_full_disk_takes_no_alteration_and_is_cordoned_all_the_same(tmp_path: Path) -> None:
    disk, other = FullDisk(), f"{tmp_path}/other"
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(other,)) as bench:
        disk.is_full = True
        with pytest.raises(DataDirectoryError, match="goes on by the former one"):
            await bench.client.admin.alter_configs({"log.retention.ms": "-1"})
        assert await retention_of(bench) == "604800000"
        result = await asyncio.to_thread(run, bench, "log-dirs", "cordon", other)
        assert result.exit_code == 1
        assert "the change holds from now on" in str(result.exception)
        states = [one.state for one in (await bench.client.admin.describe_log_dirs()).log_dirs]
        assert states == ["live", "cordoned"]
        disk.is_full = False
        bench.server.engine.runtime.write_rest()
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        states = [one.state for one in (await bench.client.admin.describe_log_dirs()).log_dirs]
        assert states == ["live", "cordoned"]
