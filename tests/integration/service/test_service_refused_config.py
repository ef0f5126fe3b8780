"""A topic is offline, alone, while this version refuses its configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stratalog.base.errors import UnsupportedOperationError
from tests.support.service.service_bench import ServiceBench, service_bench

REFUSED = pytest.mark.parametrize(
    "config", [{"a.key.of.the.future": "1"}, {"retention.ms": "for ever"}, {"min.durability": "object"}]
)


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


async def require_offline(bench: ServiceBench, topic: str, config: dict[str, str]) -> None:
    """Both partitions are shown as offline, with the reason, and refuse calls; nothing is deleted."""
    admin, engine = bench.client.admin, bench.server.engine
    [described] = await admin.describe_topics([topic])
    assert dict(described.config_overrides) == config
    assert [offline.partition for offline in described.offline_partitions] == [0, 1]
    [key] = config
    assert all(key in offline.reason for offline in described.offline_partitions)
    assert [*(await admin.tier_status()).offline_partitions] == [*described.offline_partitions]
    assert [log.HasField("offline") for log in await admin.describe_log(topic)] == [True, True]
    for call in (bench.append(topic, [b"x"]), bench.read_all(topic), admin.upload([topic])):
        with pytest.raises(UnsupportedOperationError) as refusal:
            await call
        assert key in str(refusal.value.fields["reason"])
    for work in (
        engine.local_retention.run,
        engine.tiers.remote_retention_pass,
        engine.tiers.refresh_pass,
    ):
        await asyncio.to_thread(work)
    await admin.upload()
    await admin.run_compaction()


@REFUSED
async def test_a_start_leaves_it_offline_and_serves_the_others(
    tmp_path: Path, config: dict[str, str]
) -> None:
    async with service_bench(tmp_path) as bench:
        for name in ("t", "other"):
            await bench.client.admin.create_topic(name, 2)
            await bench.append(name, [b"tiered"])
        await bench.client.admin.upload()
        await bench.append("t", [b"local"])
        catalog = bench.server.engine.catalog
        topic_id = catalog.topics()["t"].topic_id
        catalog.alter(topic_id, config=config)
    before = files_of(tmp_path / "data" / "t-0")
    async with service_bench(tmp_path) as bench:
        assert await bench.append("other", [b"goes on"]) == 1
        await require_offline(bench, "t", config)
        assert files_of(tmp_path / "data" / "t-0") == before
        # A configuration that this version takes brings it back, with what it had.
        bench.server.engine.catalog.alter(topic_id, config={})
        await bench.refresh()
        [records, _] = await bench.read_all("t")
        assert [record.value for record in records] == [b"tiered", b"local"]
        assert not (await bench.client.admin.tier_status()).offline_partitions


@REFUSED
async def test_a_topic_that_is_created_elsewhere_is_offline_and_can_be_deleted(
    bench: ServiceBench, config: dict[str, str]
) -> None:
    engine = bench.server.engine
    engine.catalog.create("t", 2, config)
    await bench.refresh()
    await require_offline(bench, "t", config)
    await bench.client.admin.create_topic("other")
    await bench.append("other", [b"goes on"])
    await bench.client.admin.delete_topic("t")
    await bench.client.admin.create_topic("t", 2)
    assert await bench.append("t", [b"anew"]) == 0
    assert not (await bench.client.admin.tier_status()).offline_partitions


async def test_the_newest_refused_configuration_is_shown(bench: ServiceBench) -> None:
    engine = bench.server.engine
    topic_id = engine.catalog.create("t", 2, {"first": "1"}).topic_id
    await bench.refresh()
    engine.catalog.alter(topic_id, config={"second": "1"})
    await bench.refresh()
    await require_offline(bench, "t", {"second": "1"})
