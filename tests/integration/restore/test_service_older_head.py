"""A head of a shard that went back to an older state: the bucket was restored from a snapshot, or an older
version was put back by hand. A start refuses it and changes nothing, and a rebuild of the head is the way on.
Heads that others took over, moved or rebuilt are no older ones.
"""

from __future__ import annotations

from pathlib import Path
from shutil import copytree, move, rmtree

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import StoreCorruptError
from stratalog.objectstore.memory import MemoryObjectStore
from tests.integration.restore.test_service_lost_metadata import contents, local_files
from tests.integration.restore.test_service_rebuilt_head import rebuild_heads
from tests.support.service.service_bench import ServiceBench, service_bench

SHARD = "shards/0000/head"
MUST_NOT_START = "it must not start"


def put_back(store: MemoryObjectStore, older: dict[str, bytes]) -> None:
    """Restore the bucket from a snapshot."""
    store.delete_many([*contents(store)])
    for key, data in older.items():
        store.put(key, data)


async def upload(bench: ServiceBench, value: bytes) -> None:
    """One more record, in the store only."""
    await bench.append("t", [value])
    await bench.client.admin.upload(delete_local=True)


async def refused(
    folder: Path, store: MemoryObjectStore, *, key: str = SHARD, shard_count: int = 1
) -> StoreCorruptError:
    """The refusal of a start, which changes neither the store nor the disk, however often it is tried."""
    before, files = contents(store), local_files(folder)
    refusals: list[StoreCorruptError] = []
    for _ in range(2):
        with pytest.raises(StoreCorruptError) as refusal:
            async with service_bench(folder, store=store, shard_count=shard_count):
                raise AssertionError(MUST_NOT_START)
        assert contents(store) == before
        assert local_files(folder) == files
        assert (refusal.value.fields["key"], refusal.value.fields["store"]) == (key, store.url)
        assert refusal.value.message.count("stratalog tier rebuild-head") == 1
        refusals.append(refusal.value)
    return refusals[0]


async def test_an_older_head_is_refused_and_a_rebuilt_one_has_every_record(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        await upload(bench, b"1")
    older = store.get(SHARD).data
    async with service_bench(tmp_path, store=store) as bench:
        await upload(bench, b"2")
    newest = store.get(SHARD).data
    store.put(SHARD, older)
    fields = (await refused(tmp_path, store)).fields
    assert fields["known_by"] == f"{tmp_path}/data/seen-heads"
    assert (fields["shard"], fields["epoch"], fields["seen_epoch"]) == (0, 1, 2)
    # The newest version is put back: nothing is lost.
    store.put(SHARD, newest)
    async with service_bench(tmp_path, store=store) as bench:
        assert await bench.values("t") == [[b"1", b"2"]]
    # There is none: the older one is moved away, and the head rebuilt.
    store.delete_many([SHARD])
    rebuild_heads(store)
    for expected in ([b"1", b"2"], [b"1", b"2", b"3"]):
        async with service_bench(tmp_path, store=store) as bench:
            assert await bench.values("t") == [expected]
            if len(expected) == 2:
                await upload(bench, b"3")
            assert not (await bench.client.admin.verify()).findings


async def test_a_commit_without_a_restart_is_noted_too(tmp_path: Path) -> None:
    """The bucket is restored from a snapshot of the same epoch, and has no later object either."""
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        await upload(bench, b"1")
        older = contents(store)
        await upload(bench, b"2")
        before_note = copytree(tmp_path / "data", tmp_path / "killed" / "data")
        await bench.run_task("recovery-point-checkpoint")
        copytree(tmp_path / "data", tmp_path / "noted" / "data")
        await upload(bench, b"3")
        newest_seq = metadata_seq(bench)
    put_back(store, older)
    # A kill within the minute leaves nothing that tells of it: the claim is the same.
    assert (before_note / "seen-heads").exists()
    noted = (await refused(tmp_path / "noted", store)).fields
    at_stop = (await refused(tmp_path, store)).fields
    assert noted["seen_epoch"] == at_stop["seen_epoch"] == noted["epoch"] == 1
    assert isinstance(noted["seen_seq"], int)
    assert noted["seen_seq"] < newest_seq == at_stop["seen_seq"]
    # The restored bucket is all that there is. Its head is moved away and rebuilt, for both directories.
    store.delete_many([SHARD])
    rebuild_heads(store)
    async with service_bench(tmp_path, store=store) as bench:
        [values] = await bench.values("t")
        assert values[0] == b"1"
        await upload(bench, b"4")
    async with service_bench(tmp_path, store=store) as bench:
        assert (await bench.values("t"))[0][-1] == b"4"


def metadata_seq(bench: ServiceBench) -> int:
    [shard] = bench.server.engine.tier.shards
    return shard.metadata.state().seq


async def test_objects_tell_of_an_older_head_where_the_data_directory_does_not(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        older = store.get(SHARD).data
        for value in (b"1", b"2"):
            await upload(bench, value)
    rmtree(tmp_path / "data")
    store.put(SHARD, older)
    fields = (await refused(tmp_path, store)).fields
    assert str(fields["known_by"]).startswith("shards/0000/data/")
    assert isinstance(fields["seq"], int)
    assert isinstance(fields["seen_seq"], int)
    assert fields["seq"] < fields["seen_seq"]
    store.delete_many([SHARD])
    rebuild_heads(store)
    async with service_bench(tmp_path, store=store) as bench:
        assert await bench.values("t") == [[b"1", b"2"]]


async def test_a_server_on_another_disk_that_went_on_with_an_older_head_is_noticed(tmp_path: Path) -> None:
    """The older head has none of the proof that a listing finds, and an empty directory noted nothing."""
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        older = contents(store)
    async with service_bench(tmp_path, store=store) as bench:
        await upload(bench, b"1")
    put_back(store, older)
    async with service_bench(tmp_path / "other", store=store) as bench:
        for value in (b"a", b"b", b"c"):
            await upload(bench, value)
    refusal = await refused(tmp_path, store)
    assert isinstance(refusal.fields["seq"], int)
    assert isinstance(refusal.fields["seen_seq"], int)
    assert refusal.fields["seq"] > refusal.fields["seen_seq"]
    store.delete_many([SHARD])
    rebuild_heads(store)
    async with service_bench(tmp_path, store=store) as bench:
        assert await bench.values("t") == [[b"a", b"b", b"c"]]


async def test_no_shard_is_claimed_if_the_head_of_one_is_refused(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    last = "shards/0001/head"
    async with service_bench(tmp_path, store=store, shard_count=2):
        older = store.get(last).data
    async with service_bench(tmp_path, store=store, shard_count=2):
        pass
    store.put(last, older)
    refusal = await refused(tmp_path, store, key=last, shard_count=2)
    assert refusal.fields["shard"] == 1
    # A server that owns the other shard only starts, and so does one that reads only.
    async with service_bench(tmp_path, store=store, shard_count=2, own_shards=(0,)):
        pass
    async with service_bench(tmp_path / "reader", store=store, read_only=True):
        pass
    await refused(tmp_path, store, key=last, shard_count=2)


async def test_a_takeover_and_a_move_to_another_machine_are_no_older_heads(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        await upload(bench, b"1")
    async with service_bench(tmp_path / "other", store=store) as bench:
        await upload(bench, b"2")
        for shard in bench.server.engine.tier.shards:
            shard.metadata.fold()
    for folder in (tmp_path, tmp_path / "other", tmp_path):
        async with service_bench(folder, store=store) as bench:
            assert await bench.values("t") == [[b"1", b"2"]]
    move(tmp_path / "data", tmp_path / "moved" / "data")
    copytree(tmp_path / "moved" / "data", tmp_path / "clone" / "data")
    for name in ("moved", "clone", "moved"):
        async with service_bench(tmp_path / name, store=store) as bench:
            assert await bench.values("t") == [[b"1", b"2"]]
