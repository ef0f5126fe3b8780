"""The end of tiers on a server whose local logs are damaged, whose shards fail, or whose topics stay after
all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.integration.disk.test_service_damage import ALL, AT_DISK, append_both, flip, segment
from tests.integration.tier.test_service_switched_tiering import OFF, tier_of
from tests.support.service.service_bench import service_bench


@pytest.mark.parametrize("is_read_before", [False, True], ids=["", "read before"])
@pytest.mark.parametrize("position", [-2, 65], ids=["last batch", "first batch"])
async def test_the_end_of_a_tier_keeps_what_only_the_store_has_sound(
    tmp_path: Path, position: int, *, is_read_before: bool
) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 1, AT_DISK)
        await append_both(bench)
    flip(segment(tmp_path, "t-0"), position)
    async with service_bench(tmp_path) as bench:
        admin = bench.client.admin
        if is_read_before:
            await admin.upload(["t"])
            assert await bench.values("t") == [ALL], "the store serves what the disk has damaged"
        await admin.alter_configs(OFF, "t")
        for _ in range(2):
            await bench.run_task("tier-drop")
            assert await asyncio.wait_for(bench.values("t"), 10) == [ALL]
        [row] = [one for one in (await admin.tier_status()).passes if one.name == "tier-drop"]
        assert row.last_refusals == {"local-damage": 1}
        assert "the tier of t-0 stays" in row.last_error
        # The person gives up the records that the disk has damaged.
        await admin.delete_records("t", 0, 3)
        await bench.run_task("tier-drop")
        assert not tier_of(bench).slices
        assert await asyncio.wait_for(bench.values("t"), 10) == [ALL[3:]]
