"""A server starts on a restored store, with a new data directory, and goes on from the restored state."""

from __future__ import annotations

from pathlib import Path
from random import Random

from stratalog.base.clock import SystemClock
from stratalog.base.randomness import SystemIdGenerator
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.restore.store_cut import StoreCutter, Until
from stratalog.remote.restore.store_restore import StoreRestore
from stratalog.remote.store_identity import StoreIdentity
from tests.support.service.service_bench import service_bench


async def test_a_server_goes_on_with_a_restored_store(tmp_path: Path) -> None:
    source, target = MemoryObjectStore(SystemClock()), MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "old", store=source) as bench:
        await bench.client.admin.create_topic("a")
        await bench.append("a", [b"x", b"y"])
        await bench.client.admin.upload(delete_local=True)
        [shard] = bench.server.engine.tier.shards
        seq = shard.metadata.state().seq
        await bench.append("a", [b"z"])
        await bench.client.admin.upload()
        await bench.client.admin.delete_records("a", 0, 2)
        identity = StoreIdentity.open(source)
        cut = StoreCutter(source, identity).cut(Until(seq=seq, shard=0))
        restore = StoreRestore(source, identity, cut, 0)
        restore.write(
            StoreActor(
                store=target,
                clock=SystemClock(),
                random_source=Random(0),
                ids=SystemIdGenerator(),
                identity=restore.identity_for(target),
                writer=Writer("restore", "test"),
            ),
            lambda _: None,
        )
        assert await bench.values("a") == [[b"z"]], "the old store is as it was"
    for expected in ([b"x", b"y"], [b"x", b"y", b"other"]):
        async with service_bench(tmp_path / "new", store=target) as bench:
            assert await bench.values("a") == [expected]
            if len(expected) == 2:
                await bench.append("a", [b"other"])
            await bench.client.admin.upload(delete_local=True)
            assert not (await bench.client.admin.verify()).findings
