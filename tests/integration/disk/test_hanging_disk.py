"""A log directory whose disk hangs holds up neither another one nor, by its fsyncs, appends at `os`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stratalog.base.types import Durability
from stratalog.record.record import Record
from tests.support.gate import Gate
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench, until

RECORD = Record(0, 0, None, b"x")
PRODUCER_COUNT = 40
"""More than there are threads for the appends, or the fsyncs, of a directory."""


async def append(bench: ServiceBench, topic: str, durability: Durability) -> int:
    appended = bench.client.append(topic, 0, [RECORD], durability=durability)
    return (await asyncio.wait_for(appended, PATIENCE_S)).base_offset


@pytest.mark.parametrize("operation", ["sync", "append"])
async def test_a_disk_that_hangs_holds_up_its_own_logs_only(tmp_path: Path, operation: str) -> None:
    gate = Gate()
    hanging: set[str] = set()

    def before(name: str, path: str) -> None:
        if name == operation and any(path.startswith(folder) for folder in hanging):
            gate.pass_through()

    disk = HookedDisk(before)
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/other",)) as bench:
        for topic in ("a", "b"):
            await bench.client.admin.create_topic(topic)
        folders = {topic: bench.partition(topic).log.local_log.directory for topic in ("a", "b")}
        assert len({Path(folder).parent for folder in folders.values()}) == 2
        # The first append of an epoch fsyncs the file of epochs before its records are written.
        assert await append(bench, "a", Durability.OS) == 0
        gate.close()
        hanging.add(folders["a"])
        try:
            stuck = [asyncio.create_task(append(bench, "a", Durability.DISK)) for _ in range(PRODUCER_COUNT)]
            await until(gate.is_reached.is_set)
            for number in range(20):
                assert await append(bench, "b", Durability.DISK) == number
            if operation == "sync":
                # Fsyncs have threads of their own, so that what is only written goes on.
                assert await append(bench, "a", Durability.OS) > 0
            assert not any(one.done() for one in stuck)
        finally:
            gate.open()
        await asyncio.gather(*stuck)
