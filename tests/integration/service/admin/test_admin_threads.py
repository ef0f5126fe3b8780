"""Calls of the control plane have threads by kind, and none builds its answer on the event loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from stratalog.server.background.tier_compaction import PlannedCompaction, TierCompaction
from stratalog.server.rpc.paging import PageCursor
from tests.support.gate import Gate
from tests.support.service.service_bench import ServiceBench, service_bench


async def test_lists_are_not_built_on_the_event_loop(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each list and each description with pages notes the thread that makes its page."""
    threads: list[str] = []
    page: Any = vars(PageCursor)["page"]

    def noted(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return page(*arguments, **options)

    monkeypatch.setattr(PageCursor, "page", noted)
    await bench.client.admin.create_topic("t")
    admin = bench.client.admin
    await admin.list_topics()
    await admin.describe_topics(["t"])
    await admin.describe_log_dirs()
    await admin.cleaner_status()
    await admin.excluded_partitions()
    await admin.explain_retention()
    await admin.plan_compaction()
    await bench.client.operations.list()
    assert len(threads) == 8
    assert threading.current_thread().name not in threads


async def test_long_calls_take_no_thread_of_short_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    plan = TierCompaction.plan

    def slow(compaction: TierCompaction, *arguments: Any) -> PlannedCompaction:
        gate.pass_through()
        return plan(compaction, *arguments)

    monkeypatch.setattr(TierCompaction, "plan", slow)
    async with service_bench(tmp_path, admin_thread_count=1) as bench:
        gate.close()
        plans = [asyncio.create_task(bench.client.admin.plan_compaction()) for _ in range(10)]
        assert await asyncio.to_thread(gate.is_reached.wait, 30)
        await bench.client.admin.create_topic("t")
        assert await bench.topic_names() == ["t"]
        async with bench.client.producer(idempotent=True) as producer:
            await producer.send("t", None, b"x")
        assert not any(one.done() for one in plans)
        gate.open()
        await asyncio.gather(*plans)
