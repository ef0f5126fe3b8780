"""Damage of what was fsynced: nothing that was acknowledged is given up for it, and nobody else suffers."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.testing.service_bench import ServiceBench, service_bench

AT_DISK = {"min.durability": "disk"}


def flip(path: Path, position: int) -> None:
    """Change one bit behind everybody's back."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def segment(folder: Path, partition: str, base_offset: int = 0) -> Path:
    return folder / "data" / partition / f"{base_offset:020d}.log"


async def append_both(bench: ServiceBench, topic: str = "t") -> None:
    """Six records, of which the store has the first three."""
    for number in range(1, 7):
        await bench.append(topic, [b"v%d" % number])
        if number == 3:
            await bench.client.admin.upload([topic])


async def values(bench: ServiceBench, topic: str = "t") -> list[list[bytes | None]]:
    return [[record.value for record in records] for records in await bench.read_all(topic)]


ALL = [b"v1", b"v2", b"v3", b"v4", b"v5", b"v6"]


@pytest.mark.parametrize("position", [-2, 65])
async def test_damaged_records_that_the_store_has_cost_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, position: int
) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 1, AT_DISK)
        await append_both(bench)
    flip(segment(tmp_path, "t-0"), position)
    async with service_bench(tmp_path) as bench:
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert await values(bench) == [ALL]
        [said] = caplog.messages
        assert (
            "the local log of t-0 is damaged, what is below offset 3 is served from the object store" in said
        )
        assert await bench.append("t", [b"v7"]) == 6
        [log] = await bench.client.admin.describe_log("t")
        assert (log.local_log_start_offset, log.log_end_offset) == (3, 7)
    assert not list((tmp_path / "data").glob("*fenced"))
    async with service_bench(tmp_path) as bench:
        assert await values(bench) == [[*ALL, b"v7"]]


async def test_damaged_records_that_only_this_disk_has_are_reported_and_kept(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 1, AT_DISK)
        await append_both(bench)
        flip(segment(tmp_path, "t-0", 3), 65)
        with pytest.raises(CorruptRecordError):
            await values(bench)
        assert await bench.append("t", [b"v7"]) == 6
