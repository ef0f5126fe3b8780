"""Retention through the service, where somebody else changes the catalog under it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from random import Random

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import PreconditionFailedError
from stratalog.base.randomness import SystemIdGenerator
from stratalog.record.record import Record
from stratalog.remote.catalog import Catalog
from stratalog.remote.commit import Writer
from stratalog.remote.store_identity import StoreIdentity
from stratalog.testing.service_bench import ServiceBench, service_bench


def open_catalog(bench: ServiceBench) -> Catalog:
    """The bench's catalog, as another writer has it."""
    store, ids = bench.server.engine.store, SystemIdGenerator()
    identity = StoreIdentity.open_or_create(store, ids)
    return Catalog.open(store, SystemClock(), Random(0), ids, identity, Writer("tool", "somebody else"))


@pytest.mark.parametrize("altered", [{"retention.ms": "-1"}, {"a.key.of.the.future": "1"}])
async def test_a_configuration_that_was_altered_elsewhere_deletes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, altered: dict[str, str]
) -> None:
    async with service_bench(tmp_path) as bench:
        for name in ("altered", "other"):
            await bench.client.admin.create_topic(name, config={"retention.ms": "1000"})
            await bench.append(name, [b"of 1970"])
        await bench.client.admin.upload()
        catalog, engine = open_catalog(bench), bench.server.engine
        catalog.alter(catalog.topics()["altered"].topic_id, config=altered)
        with pytest.raises(PreconditionFailedError):
            await asyncio.to_thread(engine.tiers.remote_retention_pass)
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                await asyncio.to_thread(engine.tiers.remote_retention_pass)
        assert "altered" in caplog.text
        assert "skipped" in caplog.text
        starts = [engine.registry.partition(name, 0).log_start_offset for name in ("altered", "other")]
        assert starts == [0, 1]
        assert [record.value for record in (await bench.read_all("altered"))[0]] == [b"of 1970"]


async def test_a_log_start_inside_of_a_segment_does_not_give_away_what_is_behind_it(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", config={"retention.ms": "3600000"})
        partition, now_ms = bench.server.engine.registry.partition("t", 0), SystemClock().now_ms()
        await bench.client.append("t", 0, [Record(0, now_ms, None, b"new") for _ in range(2)])
        await asyncio.to_thread(partition.log.roll)
        await bench.append("t", [b"of 1970"])
        await asyncio.to_thread(partition.log.roll)
        assert len(partition.log.segments()) == 3
        await bench.client.admin.delete_records("t", 0, 1)
        await asyncio.to_thread(bench.server.engine.tiers.remote_retention_pass)
        assert [record.value for record in (await bench.read_all("t"))[0]] == [b"new", b"of 1970"]
