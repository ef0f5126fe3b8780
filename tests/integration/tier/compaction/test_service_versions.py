"""A compacted topic that goes by versions, as its operator makes and alters it, in both tiers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stratalog.base.errors import InvalidConfigError
from stratalog.record.record import Record
from tests.support.service.service_bench import ServiceBench, service_bench

LOCAL = ("remote.storage.enable=false", "segment.bytes=1024")
SELDOM = {"log.cleaner.backoff.ms": "3600000"}


async def run(bench: ServiceBench, *arguments: str) -> str:
    result = await bench.command(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


async def put(bench: ServiceBench, value: bytes, timestamp_ms: int, version: int | None = None) -> None:
    headers = () if version is None else (("version", version.to_bytes(8, "big", signed=True)),)
    await bench.client.append("t", 0, [Record(0, timestamp_ms, b"key", value, headers)])


async def compacted(bench: ServiceBench, *, is_tiered: bool) -> list[bytes | None]:
    """The values that are left once all is compacted."""
    if is_tiered:
        await run(bench, "tier", "upload", "t", "--delete-local")
        await run(bench, "compaction", "run", "t")
    else:
        await run(bench, "log", "roll", "t")
        cleaner = bench.server.engine.local.cleaning.workers
        while await asyncio.to_thread(cleaner.clean_filthiest):
            pass
    [values] = await bench.values("t")
    return values


@pytest.mark.parametrize("is_tiered", [True, False])
async def test_a_topic_is_compacted_by_the_strategy_that_it_has(tmp_path: Path, is_tiered: bool) -> None:
    async with service_bench(tmp_path, config=SELDOM) as bench:
        entries = ["cleanup.policy=compact", "min.cleanable.dirty.ratio=0", "compaction.strategy=timestamp"]
        entries += () if is_tiered else LOCAL
        await run(bench, "topic", "create", "t", *(part for one in entries for part in ("--config", one)))
        await put(bench, b"high", 9)
        await put(bench, b"low", 3)
        assert await compacted(bench, is_tiered=is_tiered) == [b"high"]
        await run(bench, "topic", "alter", "t", "--add", "compaction.strategy=offset")
        await put(bench, b"last", 1, version=5)
        assert await compacted(bench, is_tiered=is_tiered) == [b"last"]
        refused = await bench.command("topic", "alter", "t", "--add", "compaction.strategy=header")
        assert isinstance(refused.exception, InvalidConfigError)
        added = ("compaction.strategy=header", "compaction.strategy.header=version")
        await run(bench, "topic", "alter", "t", *(part for one in added for part in ("--add", one)))
        await put(bench, b"lower", 20, version=4)
        assert await compacted(bench, is_tiered=is_tiered) == [b"last"]
        await put(bench, b"higher", 0, version=6)
        await put(bench, b"none", 30)
        assert await compacted(bench, is_tiered=is_tiered) == [b"higher"]
        if is_tiered:
            assert (await bench.client.admin.verify()).finding_count == 0
