"""The bucket is gone for good: what the log directories have goes into a new store."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.record.record import Record
from tests.support.kafka.import_command import import_kafka
from tests.support.service.service_bench import service_bench

CHECKPOINTS = ("log-start-offset-checkpoint", "recovery-point-offset-checkpoint")


async def test_an_import_of_the_log_directory_saves_the_last_copies(tmp_path: Path) -> None:
    """docs/store_repairs.md says how, in the section about a bucket that is gone."""
    former, new, copy = tmp_path / "former", tmp_path / "new", tmp_path / "copy"
    async with service_bench(former) as bench:
        config = {"segment.bytes": "1024", "local.retention.bytes": "1500", "retention.ms": "-1"}
        await bench.client.admin.create_topic("t", 2, config)
        for number in range(12):
            value = b"%d" % number + bytes(300)
            await bench.client.append("t", 0, [Record(0, 1000 + number, b"key", value)])
        await bench.client.admin.upload(["t"])
        bench.server.engine.local.retention.run()
        begin_offset = bench.partition().local_log_start_offset
        assert 0 < begin_offset < 12
        for number in (12, 13):
            await bench.client.append("t", 0, [Record(0, 1000 + number, b"key", b"not uploaded")])
        before = (await bench.read_all("t"))[0]
    shutil.rmtree(former / "data.store")
    with pytest.raises(DataDirectoryError) as raised:
        async with service_bench(former):
            pass
    assert "wanted_store" in raised.value.fields
    copy.mkdir()
    for path in (former / "data").glob("t-*"):
        shutil.copytree(path, copy / path.name)
    for name in CHECKPOINTS:
        shutil.copy(former / "data" / name, copy)
    await asyncio.to_thread(import_kafka, new / "data", copy)
    async with service_bench(new) as bench:
        assert (await bench.read_all("t"))[0] == before[begin_offset:]
        assert await bench.client.append("t", 0, [Record(0, 2000, b"key", b"new")])
        await bench.client.admin.upload(["t"], delete_local=True)
        assert [one.offset for one in (await bench.read_all("t"))[0]] == [*range(begin_offset, 15)]
