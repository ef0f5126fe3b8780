"""Calls of the control plane have threads by kind, and none builds its answer on the event loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from stratalog.base.errors import TopicAlreadyExistsError
from stratalog.remote.metadata.catalog.topic_entry import TopicEntry
from stratalog.server.background.tier_compaction import PlannedCompaction, TierCompaction
from stratalog.server.partitions.partition_registry import HostedTopic
from stratalog.server.rpc.paging import PageCursor
from stratalog.server.topics.topic_host import TopicHost
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


def gated_creations(patch: pytest.MonkeyPatch) -> Gate:
    """A gate through which topics with names that begin with `slow` are published."""
    gate = Gate()
    publish = TopicHost.publish

    def slow(host: TopicHost, entry: TopicEntry, **options: Any) -> HostedTopic:
        if entry.name.startswith("slow"):
            gate.pass_through()
        return publish(host, entry, **options)

    patch.setattr(TopicHost, "publish", slow)
    return gate


async def test_changes_that_wait_for_their_topic_take_no_thread_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sent a slow creation again and again had all threads: no other topic could be changed,
    and no producer could begin."""
    gate = gated_creations(monkeypatch)
    async with service_bench(tmp_path, admin_thread_count=2) as bench:
        admin = bench.client.admin
        await admin.create_topic("other")
        gate.close()
        creations = [asyncio.create_task(admin.create_topic("slow-0")) for _ in range(4)]
        try:
            assert await asyncio.to_thread(gate.is_reached.wait, 30)
            changes = [
                asyncio.create_task(admin.alter_configs({"retention.ms": "1"}, "slow-0")) for _ in range(4)
            ]
            async with asyncio.timeout(30):
                await admin.alter_configs({"retention.ms": "100000"}, "other")
                await admin.create_topic("new")
                async with bench.client.producer(idempotent=True) as producer:
                    await producer.send("other", None, b"x")
            assert not any(one.done() for one in creations)
        finally:
            gate.open()
        outcomes = await asyncio.gather(*creations, return_exceptions=True)
        assert [type(one) for one in outcomes[1:]] == 3 * [TopicAlreadyExistsError]
        await asyncio.gather(*changes)


async def test_long_changes_take_no_thread_of_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gated_creations(monkeypatch)
    async with service_bench(tmp_path, admin_thread_count=2) as bench:
        admin = bench.client.admin
        await admin.create_topic("t")
        gate.close()
        creations = [asyncio.create_task(admin.create_topic(f"slow-{number}")) for number in range(4)]
        try:
            assert await asyncio.to_thread(gate.is_reached.wait, 30)
            async with asyncio.timeout(30), bench.client.producer(idempotent=True) as producer:
                await producer.send("t", None, b"x")
                assert await admin.delete_records("t", 0, 1) == 1
            assert not any(one.done() for one in creations)
        finally:
            gate.open()
        await asyncio.gather(*creations)
