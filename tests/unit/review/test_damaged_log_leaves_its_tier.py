"""The end of a tier where the local log is damaged: the store has the only sound copy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.integration.disk.test_service_damage import ALL, AT_DISK, append_both, flip, segment
from tests.integration.tier.test_service_switched_tiering import OFF
from tests.support.service.service_bench import service_bench


@pytest.mark.parametrize("position", [-2, 65])
async def test_the_end_of_a_tier_keeps_what_only_the_store_has_sound(tmp_path: Path, position: int) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 1, AT_DISK)
        await append_both(bench)
    flip(segment(tmp_path, "t-0"), position)
    async with service_bench(tmp_path) as bench:
        assert await bench.values("t") == [ALL], "the store serves what the disk has damaged"
        await bench.client.admin.alter_configs(OFF, "t")
        await bench.run_task("tier-drop")
        assert await asyncio.wait_for(bench.values("t"), 10) == [ALL]
