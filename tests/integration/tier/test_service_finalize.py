"""A server on a store of the first metadata version, before and after `stratalog tier finalize`."""

from __future__ import annotations

import json
from pathlib import Path

from stratalog.base.clock import SystemClock
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.remote.metadata.head.metadata_version import METADATA_VERSION
from tests.support.service.service_bench import service_bench
from tests.support.stored_heads import head_bytes

HEADS = ("shards/0000/head", "catalog/head")


def versions(store: MemoryObjectStore) -> list[int]:
    return [json.loads(store.get(key).data)["write_version"] for key in HEADS]


async def test_a_store_is_finalized(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, store=store):
        assert versions(store) == [METADATA_VERSION] * 2
    for key in HEADS:
        head = json.loads(store.get(key).data)
        store.put(key, head_bytes(head | {"read_version": 1, "write_version": 1}))
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t", 1)
        await bench.client.append("t", 0, [Record(0, 1, b"k", b"v")])
        assert (await bench.client.admin.upload()).slice_count == 1
        await bench.run_task("collector")
        [collector] = [
            one for one in (await bench.client.admin.tier_status()).passes if one.name == "collector"
        ]
        assert collector.last_refusals["not-finalized"] == len(HEADS)
        planned = await bench.command("tier", "finalize", "--dry-run")
        assert planned.exit_code == 0
        newest = str(METADATA_VERSION)
        rows = [line.split() for line in planned.stdout.splitlines()[2:]]
        assert rows == [["shard", "0", "1", newest, "-"], ["catalog", "1", newest, "-"]]
        assert versions(store) == [1, 1]
        done = await bench.client.admin.finalize_metadata()
        assert done.supported_metadata_version == METADATA_VERSION
        assert [(one.shard, one.old_metadata_version, one.new_metadata_version) for one in done.heads] == [
            (0, 1, METADATA_VERSION),
            (-1, 1, METADATA_VERSION),
        ]
        assert versions(store) == [METADATA_VERSION] * 2
        again = json.loads((await bench.command("tier", "finalize", "--json")).stdout)
        assert [one["old_metadata_version"] for one in again["heads"]] == [METADATA_VERSION] * 2
        await bench.run_task("collector")
        passes = (await bench.client.admin.tier_status()).passes
        assert not any(one.last_refusals.get("not-finalized") for one in passes)
