"""A change of one topic that takes long holds up no change of another, and no look at the catalog."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError
from stratalog.log.unified_log import UnifiedLog
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.server.topics import topic_manager
from tests.support.gate import Gate
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.service.service_bench import (
    PATIENCE_S,
    ServiceBench,
    catalog_elsewhere,
    service_bench,
    until,
)

LARGE, SMALL = "large", "small"

Change = Callable[[ServiceBench], Awaitable[object]]
CHANGES: dict[str, Change] = {
    "create": lambda bench: bench.client.topics.create(LARGE, partitions=3),
    "delete": lambda bench: bench.client.topics.delete(LARGE),
    "alter": lambda bench: bench.client.topics.alter(LARGE, {"retention.ms": "1000"}),
    "add partitions": lambda bench: bench.client.topics.add_partitions(LARGE, 5),
}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A gate before each log of the large topic that is closed or altered, see `disk_with`, too."""
    gate = Gate()
    for name in ("close", "reconfigure"):
        work = getattr(UnifiedLog, name)

        def waiting(log: UnifiedLog, *arguments: Any, work: Any = work, **options: Any) -> None:
            if log.topic_partition.topic == LARGE:
                gate.pass_through()
            work(log, *arguments, **options)

        monkeypatch.setattr(UnifiedLog, name, waiting)
    return gate


def disk_with(gate: Gate) -> HookedDisk:
    """A disk with the gate before each directory of the large topic that is made."""

    def before(name: str, path: str) -> None:
        if name == "make_directories" and f"/{LARGE}-" in path:
            gate.pass_through()

    return HookedDisk(before)


async def change_small(bench: ServiceBench) -> None:
    """Make every change of another topic, alter the server's defaults, and look at the catalog."""
    async with asyncio.timeout(PATIENCE_S):
        await bench.client.topics.create(SMALL, partitions=1)
        await bench.client.topics.alter(SMALL, {"retention.ms": "2000"})
        await bench.client.topics.add_partitions(SMALL, 2)
        await bench.client.admin.alter_configs({"log.retention.ms": "3000"})
        await bench.refresh()
        with pytest.raises(UnknownTopicOrPartitionError):
            await bench.client.latest("unknown")
        assert await bench.append(SMALL, [b"x"], partition=1) == 0
        await bench.client.topics.delete(SMALL)


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_that_is_held_up_keeps_no_other_out(tmp_path: Path, gate: Gate, change: str) -> None:
    async with service_bench(tmp_path, filesystem=disk_with(gate)) as bench:
        if change != "create":
            await CHANGES["create"](bench)
        gate.close()
        try:
            held = asyncio.ensure_future(CHANGES[change](bench))
            await until(gate.is_reached.is_set)
            await change_small(bench)
            assert not held.done()
        finally:
            gate.open()
        await held
        topics = {topic.name: topic.config for topic in bench.server.engine.topics.registry.topics()}
        assert set(topics) == (set() if change == "delete" else {LARGE})
        for config in topics.values():
            # It has the defaults that were altered meanwhile.
            assert config is not None
            assert config.retention_ms == (1000 if change == "alter" else 3000)
        bench.server.engine.local.logs.check()


async def test_changes_of_one_topic_come_one_after_another(tmp_path: Path, gate: Gate) -> None:
    async with service_bench(tmp_path, filesystem=disk_with(gate)) as bench:
        manager = bench.server.engine.topics.manager
        gate.close()
        try:
            created = asyncio.create_task(asyncio.to_thread(manager.create, LARGE, 3, {}))
            await until(gate.is_reached.is_set)
            again = asyncio.create_task(asyncio.to_thread(manager.create, LARGE, 3, {}))
            await asyncio.to_thread(manager.create, SMALL, 1, {})
            assert not created.done()
            assert not again.done()
        finally:
            gate.open()
        await created
        with pytest.raises(TopicAlreadyExistsError):
            await again
        gate.close()
        try:
            deleted = asyncio.create_task(asyncio.to_thread(manager.delete, LARGE))
            await until(gate.is_reached.is_set)
            again = asyncio.create_task(asyncio.to_thread(manager.create, LARGE, 2, {}))
            await asyncio.to_thread(manager.delete, SMALL)
            assert not again.done()
        finally:
            gate.open()
        await deleted
        assert len((await again).partitions) == 2


async def test_a_look_waits_for_a_topic_of_another_server_that_is_being_opened(
    tmp_path: Path, gate: Gate
) -> None:
    """Else the call behind it would be refused, though the topic was there before it came."""
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, filesystem=disk_with(gate), store=store) as bench:
        manager, registry = bench.server.engine.topics.manager, bench.server.engine.topics.registry
        catalog_elsewhere(store).create(LARGE, 2)
        gate.close()
        try:
            follows = asyncio.create_task(asyncio.to_thread(manager.follow_catalog))
            await until(gate.is_reached.is_set)
            learns = asyncio.create_task(asyncio.to_thread(manager.learn))
            # A look of the background does not wait.
            assert not (await asyncio.to_thread(manager.follow_catalog)).topics
            await asyncio.to_thread(manager.create, SMALL, 1, {})
            assert not learns.done()
            assert not follows.done()
        finally:
            gate.open()
        await learns
        assert registry.find(LARGE) is not None
        assert {topic.name for topic in (await follows).topics} == {LARGE, SMALL}


async def test_a_change_that_takes_long_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with service_bench(tmp_path) as bench:
        await bench.client.topics.create(SMALL)
        assert "of topic small took" not in caplog.text
        monkeypatch.setattr(topic_manager, "SLOW_CHANGE_S", 0.0)
        await bench.client.topics.delete(SMALL)
        assert "the deletion of topic small took 0 s" in caplog.text
