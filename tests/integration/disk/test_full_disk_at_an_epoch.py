"""A disk that is full when the first append of a new owner makes its leader epoch durable."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import Durability
from stratalog.log.leader_epoch_cache import LEADER_EPOCH_FILE
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.logs.crash_moments import NOTHING_KEPT
from tests.support.service.service_bench import ServiceBench, service_bench

TEMPORARY = f"{LEADER_EPOCH_FILE}.tmp"


async def append(bench: ServiceBench, value: bytes, durability: Durability) -> int:
    """Returns the base offset."""
    records = [Record(0, 0, None, value)]
    return (await bench.client.append("t", 0, records, durability=durability)).base_offset


@pytest.mark.parametrize(
    ("operation", "durability"),
    [("append", Durability.OS), ("sync", Durability.DISK), ("rename", Durability.OBJECT)],
)
async def test_a_disk_that_is_full_at_a_new_epoch(
    tmp_path: Path, operation: str, durability: Durability
) -> None:
    disk, store = FaultyFileSystem(), MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, filesystem=disk, store=store) as bench:
        await bench.client.admin.create_topic("t", 2)
        assert [await append(bench, value, Durability.DISK) for value in (b"0", b"1")] == [0, 1]
        former_epoch = bench.partition().shard.leader_epoch()
    async with service_bench(tmp_path, filesystem=disk, store=store) as bench:
        assert bench.partition().shard.leader_epoch() > former_epoch
        refused: list[str] = []

        def is_full(line: str) -> bool:
            is_refused = line.startswith(f"{operation} ") and TEMPORARY in line
            refused.extend([line] * is_refused)
            return is_refused

        disk.fail_where(is_full, number=errno.ENOSPC)
        for _ in range(2):
            # Those of one group, too.
            ends = await asyncio.gather(
                *(append(bench, b"refused", durability) for _ in range(3)), return_exceptions=True
            )
            assert [type(end) for end in ends] == 3 * [DataDirectoryError]
            error = ends[0]
            assert isinstance(error, DataDirectoryError)
            assert error.fields == {"topic": "t", "partition": 0}
            assert "nothing of this append was stored" in error.message
        assert refused, "it was the epoch"
        # The log is online: what it has can be read, and the full disk is no reason to hide it.
        assert await bench.values("t") == [[b"0", b"1"], []]
        disk.mend()
        assert await append(bench, b"2", durability) == 2
        bench.partition().log.check()
        epochs = bench.partition().log.state_transfer.leader_epochs(0, 3)
        assert [one.start_offset for one in epochs] == [0, 2], "the refused appends have no epoch"
        assert await append(bench, b"3", Durability.DISK) == 3
        left = disk.reopened(NOTHING_KEPT)
    async with service_bench(tmp_path, filesystem=left, store=store) as bench:
        assert await bench.values("t") == [[b"0", b"1", b"2", b"3"], []]
        assert await append(bench, b"4", Durability.DISK) == 4
        bench.partition().log.check()
