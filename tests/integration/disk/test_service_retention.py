"""Retention through the service."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stratalog.base.clock import SystemClock
from stratalog.record.record import Record
from tests.support.service.service_bench import service_bench


async def test_a_log_start_inside_of_a_segment_does_not_give_away_what_is_behind_it(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", config={"retention.ms": "3600000"})
        partition, now_ms = bench.server.engine.registry.partition("t", 0), SystemClock().now_ms()
        await bench.client.append("t", 0, [Record(0, now_ms, None, b"new") for _ in range(2)])
        await asyncio.to_thread(partition.log.roll)
        await bench.append("t", [b"of 1970"])
        await asyncio.to_thread(partition.log.roll)
        assert len(partition.log.reader.segments()) == 3
        await bench.client.admin.delete_records("t", 0, 1)
        await asyncio.to_thread(bench.server.engine.tiers.remote_retention_pass)
        assert [record.value for record in (await bench.read_all("t"))[0]] == [b"new", b"of 1970"]
