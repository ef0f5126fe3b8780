"""Tiering that is switched on for a topic with records, and what the status shows of it and of pauses."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import InvalidConfigError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.server.metrics import ServerMetrics
from tests.support.service.service_bench import ServiceBench, service_bench

LOCAL = {"remote.storage.enable": "false", "segment.bytes": "1024"}


async def append(bench: ServiceBench, first: int, count: int) -> None:
    for number in range(first, first + count):
        await bench.client.append(
            "t", 0, [Record(0, 1000 + number, b"k%d" % (number % 3), b"%d" % number * 50)]
        )


@pytest.mark.parametrize("policy", ["delete", "compact"])
async def test_a_topic_with_records_becomes_tiered(tmp_path: Path, policy: str) -> None:
    """All that the log has then goes to the store, from its log start on, and outlasts the local disk."""
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "0", store=store) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, {**LOCAL, "cleanup.policy": policy})
        await append(bench, 0, 40)
        if policy == "delete":
            await admin.delete_records("t", 0, 7)
        before = await bench.values("t")
        await admin.alter_configs({"remote.storage.enable": "true"}, "t")
        assert await bench.values("t") == before
        [status] = (await admin.tier_status()).topics
        assert (status.oldest_partition, status.oldest_partition_upload_ms) == (0, -1)
    async with service_bench(tmp_path / "0", store=store) as bench:
        # A restart in between changes nothing.
        await bench.client.admin.upload()
        await append(bench, 40, 2)
        await bench.client.admin.upload(delete_local=True)
        after = await bench.values("t")
        assert after[0][: len(before[0])] == before[0]
        assert len(after[0]) == len(before[0]) + 2
        [log] = await bench.client.admin.describe_log("t")
        assert (log.log_start_offset, log.tiered_end_offset) == (7 if policy == "delete" else 0, 42)
    async with service_bench(tmp_path / "1", store=store) as bench:
        assert await bench.values("t") == after


async def test_a_topic_in_the_store_stays_tiered(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, {"segment.bytes": "1024"})
        await append(bench, 0, 30)
        await admin.upload()
        with pytest.raises(InvalidConfigError) as caught:
            await admin.alter_configs({"remote.storage.enable": "false"}, "t")
        assert "remote.log.copy.disable" in str(caught.value), "the key that ends its uploads"
        await admin.alter_configs({"remote.log.copy.disable": "true"}, "t")
        await append(bench, 30, 5)
        assert len((await bench.values("t"))[0]) == 35
        [status] = (await admin.tier_status()).topics
        assert status.copy_disabled
        assert (status.lag_ms, status.oldest_partition) == (-1, -1)


async def test_the_status_shows_pauses_and_the_last_upload(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 2)
        [status] = (await admin.tier_status()).topics
        assert (status.last_upload_ms, status.oldest_partition, status.paused) == (-1, -1, False)
        await append(bench, 0, 3)
        await admin.upload()
        [status] = (await admin.tier_status()).topics
        assert status.last_upload_ms > 0
        await bench.client.append("t", 1, [Record(0, 2000, b"k", b"v")])
        [status] = (await admin.tier_status()).topics
        assert (status.oldest_partition, status.oldest_partition_upload_ms) == (1, -1)
        await append(bench, 0, 1)
        [status] = (await admin.tier_status()).topics
        assert (status.oldest_partition, status.oldest_partition_upload_ms) == (0, status.last_upload_ms)
        assert (await bench.command("tier", "pause", "t")).exit_code == 0
        [status] = (await admin.tier_status()).topics
        assert status.paused
        assert "paused" in (await bench.command("tier", "status")).stdout
        metrics = ServerMetrics()
        metrics.registry = bench.server.engine.topics.registry
        [size] = [
            sample.value
            for metric in metrics.collect()
            for sample in metric.samples
            if sample.name.endswith("remote_log_size_bytes")
        ]
        assert size == status.tiered_bytes > 0
