"""The only disk is full of what is to be tiered: uploads take nothing of it, and free it."""

from __future__ import annotations

from stratalog.base.clock import SystemClock
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.testing.full_filesystem import FullFileSystem
from tests.support.service.service_bench import service_bench


async def test_an_upload_on_a_full_disk_needs_no_scratch_file_and_local_segments_go() -> None:
    disk, store = FullFileSystem(), MemoryObjectStore(SystemClock())
    config = {"segment.bytes": "1024", "local.retention.bytes": "1"}
    async with service_bench("/", filesystem=disk, store=store) as bench:
        await bench.client.admin.create_topic("t", 1, config)
        values = [b"%04d" % number + b"x" * 900 for number in range(8)]
        for value in values:
            await bench.append("t", [value])
        engine = bench.server.engine
        [directory] = engine.local.logs.data_dirs
        disk.fill(directory)
        engine.tier.manager.upload_pass()
        engine.local.retention.run()
        [log] = await bench.client.admin.describe_log("t", [0])
        assert (log.tiered_end_offset, log.local_log_start_offset) == (7, 7)
        assert not [line for line in disk.trace if line.startswith(f"open_append {directory}/scratch")]
        [records] = await bench.read_all("t")
        assert [record.value for record in records] == values
        disk.fill(None)
