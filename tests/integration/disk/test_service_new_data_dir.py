"""The server's configuration is the store's: new data directories, other machines and former owners go by it.

Records are of 1970, so that only what was altered at run time keeps them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from stratalog.base.errors import InvalidConfigError, NotOwnerError
from stratalog.base.types import TopicPartition
from stratalog.client import values
from stratalog.record.record import Record
from tests.support.kafka.import_command import import_kafka
from tests.support.places import GOLDEN
from tests.support.service.service_bench import ServiceBench, service_bench

KEEP = {"log.retention.ms": "-1"}
UNTIERED = {"remote.storage.enable": "false"}


async def fill(bench: ServiceBench, topic: str = "t", config: Mapping[str, str] | None = None) -> None:
    """Six records, all of them tiered if the topic is."""
    at_once = {"segment.bytes": "1024", "remote.copy.max.age.ms": "1"}
    await bench.client.admin.create_topic(topic, 1, at_once | dict(config or {}))
    for _ in range(6):
        await bench.client.append(topic, 0, [Record(0, 0, b"key", b"x" * 900)])
    bench.server.engine.tier.manager.upload_pass()


async def start_after_retention(bench: ServiceBench, topic: str = "t") -> int:
    """Log start of the topic's only partition after every pass of retention."""
    engine = bench.server.engine
    await asyncio.to_thread(engine.tier.manager.remote_retention_pass)
    await asyncio.to_thread(engine.local.retention.run)
    return (await bench.client.earliest(topic))[TopicPartition(topic, 0)]


async def altered(bench: ServiceBench) -> dict[str, str | None]:
    """The keys that were altered at run time, as the server shows them."""
    entries = await bench.client.admin.describe_configs()
    dynamic = values.ConfigSource.DYNAMIC_BROKER_CONFIG
    return {one.name: one.value for one in entries if one.source is dynamic}


async def test_machines_that_take_a_store_over_go_by_one_configuration(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    async with service_bench(tmp_path / "a", store_url=store) as former:
        await former.client.admin.alter_configs({**KEEP, "log.roll.ms": "7"})
        await fill(former)
        async with service_bench(tmp_path / "b", store_url=store, config={"log.retention.ms": "5"}) as bench:
            assert await altered(bench) == {**KEEP, "log.roll.ms": "7"}
            assert await start_after_retention(bench) == 0
            await bench.client.admin.alter_configs({"log.roll.ms": None})
            with pytest.raises(NotOwnerError):
                await former.client.admin.alter_configs({"log.retention.ms": None})
            assert await altered(bench) == KEEP
    async with service_bench(tmp_path / "a", store_url=store) as bench:
        assert await altered(bench) == KEEP
        await bench.client.admin.alter_configs({"log.retention.ms": None})
        assert await start_after_retention(bench) == 6


async def test_an_import_leaves_the_configuration_alone(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    async with service_bench(tmp_path / "a", store_url=store) as bench:
        await bench.client.admin.alter_configs(KEEP)
        await fill(bench)
    await asyncio.to_thread(import_kafka, tmp_path / "b" / "data", GOLDEN / "data", "--store", store)
    async with service_bench(tmp_path / "b", store_url=store) as bench:
        assert len((await bench.read_all("g1-codecs"))[0]) > 0
        assert await altered(bench) == KEEP
        assert await start_after_retention(bench) == 0


@pytest.mark.parametrize("config", [{}, UNTIERED, {**UNTIERED, "cleanup.policy": "compact,delete"}])
async def test_nothing_is_deleted_by_a_configuration_that_is_out_of_date(
    tmp_path: Path, config: dict[str, str]
) -> None:
    """It was altered elsewhere: the first pass follows it, or deletes nothing if this version refuses it."""
    async with service_bench(tmp_path) as bench:
        await fill(bench, config=config)
        catalog = bench.server.engine.topics.catalog
        catalog.alter_server_config(lambda _: {**KEEP, "key.of.the.future": "1"})
        for _ in range(2):
            assert await start_after_retention(bench) == 0
        assert await altered(bench) == {}
        await bench.client.admin.alter_configs({"key.of.the.future": None})
        assert await altered(bench) == KEEP
        catalog.alter_server_config(lambda _: {**KEEP, "log.roll.ms": "7"})
        assert await start_after_retention(bench) == 0
        catalog.alter_server_config(lambda _: {})
        assert await start_after_retention(bench) >= 5
        catalog.alter_server_config(lambda _: {"key.of.the.future": "1"})
    with pytest.raises(InvalidConfigError) as refusal:
        async with service_bench(tmp_path):
            pass
    assert refusal.value.fields["name"] == "key.of.the.future"
