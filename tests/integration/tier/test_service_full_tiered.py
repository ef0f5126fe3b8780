"""The only disk is full of what is to be tiered: uploads take nothing of it, and free it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from stratalog.base.filesystem import AppendFile
from stratalog.base.posix_filesystem import PosixFileSystem
from tests.support.service.service_bench import service_bench


class FullDisk(PosixFileSystem):
    """Takes nothing new below `full`, once it is named."""

    def __init__(self) -> None:
        super().__init__()
        self.full = "/nowhere"

    def open_append(self, path: str) -> AppendFile:
        self._refuse_new(path)
        return super().open_append(path)

    def make_directories(self, path: str) -> None:
        self._refuse_new(path)
        super().make_directories(path)

    def free_bytes(self, path: str) -> int:
        free_bytes = super().free_bytes(path)
        return 0 if path.startswith(self.full) else free_bytes

    def _refuse_new(self, path: str) -> None:
        if path.startswith(f"{self.full}/") and not self.exists(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


async def test_an_upload_on_a_full_disk_needs_no_scratch_directory_and_local_segments_go(
    tmp_path: Path,
) -> None:
    disk = FullDisk()
    config = {"segment.bytes": "1024", "local.retention.bytes": "1"}
    async with service_bench(tmp_path, filesystem=disk, store_url=f"file://{tmp_path}/store") as bench:
        await bench.client.admin.create_topic("t", 1, config)
        values = [b"%04d" % number + b"x" * 900 for number in range(8)]
        for value in values:
            await bench.append("t", [value])
        disk.full = f"{tmp_path}/data"
        engine = bench.server.engine
        engine.tiers.upload_pass()
        engine.local_retention.run()
        [log] = await bench.client.admin.describe_log("t", [0])
        assert (log.tiered_end_offset, log.local_log_start_offset) == (7, 7)
        assert not (tmp_path / "data" / "scratch").exists()
        [records] = await bench.read_all("t")
        assert [record.value for record in records] == values
        disk.full = "/nowhere"
