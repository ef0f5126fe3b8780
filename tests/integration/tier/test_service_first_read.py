"""The requests of a first read of one record at a random offset: two while its metadata page is on disk."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from stratalog.base.types import TopicPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.remote.metadata.head import page_loader
from stratalog.remote.metadata.head.checkpoint_page import Page, PageRef, decode_page
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.manual_clock import ManualClock
from tests.support.service.service_bench import ServiceBench, service_bench
from tests.support.tiered.counting_object_store import CountingObjectStore

SEED = 22
PARTITION_COUNT = 3
ROUND_COUNT = 4
VALUE_BYTES = 10_000
BATCHES_OF_A_SLICE = 20
MEMORY_BYTES = 1 << 20
NO_DISK = {"metadata_disk_cache_bytes": 0, "metadata_cache_bytes": MEMORY_BYTES}

Values = Mapping[tuple[int, int], bytes]
"""The values of all records by partition and offset."""


def counting_store() -> CountingObjectStore:
    return CountingObjectStore(MemoryObjectStore(ManualClock()))


@asynccontextmanager
async def serving(
    folder: Path | str, store: CountingObjectStore, **settings: Any
) -> AsyncGenerator[ServiceBench, None]:
    """Serve, with memory for no page unless the settings say otherwise."""
    settings.setdefault("metadata_cache_bytes", 1)
    async with service_bench(folder, store=store, **settings) as bench:
        yield bench


async def filled(bench: ServiceBench) -> Values:
    """Fill a few objects, whose slices have many index intervals, and fold."""
    chance = random.Random(SEED)
    await bench.client.admin.create_topic("t", PARTITION_COUNT)
    values: dict[tuple[int, int], bytes] = {}
    for _ in range(ROUND_COUNT):
        for partition in range(PARTITION_COUNT):
            for _ in range(BATCHES_OF_A_SLICE):
                value = chance.randbytes(VALUE_BYTES)
                values[partition, await bench.append("t", [value], partition)] = value
        await bench.client.admin.upload(["t"], delete_local=True)
    [shard] = bench.server.engine.tier.shards
    assert shard.metadata.fold() is not None
    return values


async def gets_of_first_reads(bench: ServiceBench, store: CountingObjectStore, values: Values) -> set[int]:
    """How many GETs some reads took, each from empty caches of data; checks what they return."""
    counts: set[int] = set()
    for partition, offset in random.Random(SEED).sample(sorted(values), 8):
        await bench.client.admin.empty_caches()
        store.reset()
        [found] = await bench.client.fetch({TopicPartition("t", partition): offset}, max_bytes=1)
        assert values[partition, offset] in found.batches
        counts.add(store.total("GET").requests)
    return counts


def page_gets(store: CountingObjectStore) -> int:
    return sum(
        count.requests
        for kind, count in store.counts().items()
        if kind.verb == "GET" and "/pages/" in kind.kind
    )


async def test_a_first_read_takes_two_requests_before_and_after_a_restart(tmp_path: Path) -> None:
    store = counting_store()
    async with serving(tmp_path, store) as bench:
        values = await filled(bench)
        assert await gets_of_first_reads(bench, store, values) == {2}
    store.reset()
    async with serving(tmp_path, store) as bench:
        assert page_gets(store) == 0, "nor does the start read a page from the store"
        assert await gets_of_first_reads(bench, store, values) == {2}
    async with serving(tmp_path, store, **NO_DISK) as bench:
        assert await gets_of_first_reads(bench, store, values) == {2, 3}, "then the page is in memory"
    assert not (tmp_path / "data" / "pages").exists()


async def test_a_first_read_decodes_its_page_once(tmp_path: Path) -> None:
    decoded: list[str] = []

    def decoding(data: bytes, key: str, ref: PageRef) -> Page:
        decoded.append(key)
        return decode_page(data, key, ref)

    async with serving(tmp_path, store := counting_store()) as bench:
        values = await filled(bench)
        with patch.object(page_loader, "decode_page", decoding):
            await gets_of_first_reads(bench, store, values)
    assert len(decoded) == 8, "one page for each read"


async def test_a_page_that_was_damaged_on_disk_takes_a_third_request_once(tmp_path: Path) -> None:
    store = counting_store()
    async with serving(tmp_path, store) as bench:
        values = await filled(bench)
    for path in (tmp_path / "data" / "pages").iterdir():
        path.write_bytes(path.read_bytes()[:-4] + b"xxxx")
    async with serving(tmp_path, store, metadata_cache_bytes=MEMORY_BYTES) as bench:
        assert await gets_of_first_reads(bench, store, values) == {2, 3}, "then the page is in memory"
    async with serving(tmp_path, store) as bench:
        assert await gets_of_first_reads(bench, store, values) == {2}


async def test_servers_without_the_pages_fetch_them_by_themselves(tmp_path: Path) -> None:
    store = counting_store()
    async with serving(tmp_path / "owner", store) as bench:
        values = await filled(bench)
        async with serving(tmp_path / "reader", store, read_only=True) as reader:
            await require_warmed(reader, store, values)
    async with serving(tmp_path / "new", store) as bench:
        await require_warmed(bench, store, values)


async def require_warmed(bench: ServiceBench, store: CountingObjectStore, values: Values) -> None:
    await bench.run_task("metadata-pages")
    [status] = [one for one in bench.server.engine.passes.statuses() if one.name == "metadata-pages"]
    assert status.total_done["pages"] > 0
    store.reset()
    assert await gets_of_first_reads(bench, store, values) == {2}
    await bench.run_task("metadata-pages")
    assert page_gets(store) == 0, "all are there"


async def test_pages_give_their_space_back_while_the_disk_is_short_of_it() -> None:
    disk, store = FullFileSystem(), counting_store()
    config = {"log.dir.min.free.bytes": "10000"}
    async with serving("", store, filesystem=disk, config=config) as bench:
        values = await filled(bench)
        assert disk.inner.list_directory("/data/pages")
        disk.fill("/data")
        bench.server.engine.local.pressure.run()
        while disk.room_bytes:
            # Others take the space that was given back.
            disk.fill("/data")
            bench.server.engine.local.pressure.run()
        await bench.run_task("metadata-pages")
        assert disk.inner.list_directory("/data/pages") == []
        assert max(await gets_of_first_reads(bench, store, values)) > 2
        assert disk.inner.list_directory("/data/pages") == [], "nothing is written"
        disk.fill(None)
        bench.server.engine.local.pressure.run()
        await bench.run_task("metadata-pages")
        assert await gets_of_first_reads(bench, store, values) == {2}
