"""A compaction, by a server or by the command, goes on until all that was due is compacted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from stratalog.cli.main import stratalog
from stratalog.compaction.plan.run_goal import PlanAgain
from stratalog.record.record import Record
from stratalog.server.background import tier_compaction
from tests.support.service.service_bench import ServiceBench, service_bench

PARTITION_COUNT = 8
UPLOAD_COUNT = 3
KEY_COUNT = 80
CONFIG = {"remote.compaction.job.max.bytes": str(1 << 20)}
"""Half of the data."""


async def fill(bench: ServiceBench) -> None:
    """Upload objects that all partitions share."""
    await bench.client.admin.create_topic("t", PARTITION_COUNT, {"cleanup.policy": "compact"})
    for _ in range(UPLOAD_COUNT):
        for partition in range(PARTITION_COUNT):
            records = [Record(0, 0, b"%d" % key, bytes(1000)) for key in range(KEY_COUNT)]
            await bench.client.append("t", partition, records)
        await bench.client.admin.upload(["t"], delete_local=True)


async def require_compacted(bench: ServiceBench) -> None:
    assert [len(part) for part in await bench.read_all("t")] == [KEY_COUNT] * PARTITION_COUNT


@pytest.mark.parametrize("is_periodic", [True, False], ids=["periodic", "by hand"])
async def test_a_server_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_periodic: bool) -> None:
    # By the times of this machine it might leave the rest to the next pass.
    monkeypatch.setattr(tier_compaction, "PERIODICALLY", PlanAgain())
    async with service_bench(tmp_path, config=CONFIG) as bench:
        await fill(bench)
        if is_periodic:
            await bench.run_task("compaction")
        else:
            jobs = await bench.client.admin.run_compaction()
            assert len(jobs) > 1
        await require_compacted(bench)


async def test_the_command_goes_on(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await fill(bench)
    url = f"file://{tmp_path}/data.store"
    options = [part for name, value in CONFIG.items() for part in ("--config", f"{name}={value}")]
    command = ["compaction", "run", "--store", url, *options]
    ran = await asyncio.to_thread(CliRunner().invoke, stratalog, command)
    assert ran.exit_code == 0, ran.output
    async with service_bench(tmp_path) as bench:
        await require_compacted(bench)
