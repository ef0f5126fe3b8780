"""A key of the store's metadata that is lost is never taken for one that is yet to come: the server does not
start, writes nothing, says what is missing, and starts with everything once the key is back.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from shutil import rmtree

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import DataDirectoryError, StoreCorruptError, StoreUnavailableError
from stratalog.base.types import Durability
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.record import Record
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.store_faults import Fault, Operation
from tests.support.service.service_bench import ServiceBench, service_bench

IDENTITY, CATALOG, SHARD = "stratalog.json", "catalog/head", "shards/0000/head"
MUST_NOT_START = "it must not start"
UNTIERED = {"remote.storage.enable": "false"}


def contents(store: ObjectStore) -> dict[str, bytes]:
    return {found.key: store.get(found.key).data for found in store.list("")}


def local_files(folder: Path) -> dict[str, bytes]:
    """The logs, with all that belongs to them."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.glob("data/*-0/*"))
        if path.is_file()
    }


async def fill(bench: ServiceBench, how: str) -> None:
    """Two topics, one of which is never tiered, with two records each."""
    await bench.client.admin.create_topic("a")
    await bench.client.admin.create_topic("loc", config=UNTIERED)
    for topic in ("a", "loc"):
        await bench.append(topic, [b"x", b"y"])
    if how != "nothing tiered":
        await bench.client.admin.upload(delete_local=True)
    if how == "folded":
        bench.server.engine.topics.catalog.fold()
        for shard in bench.server.engine.tier.shards:
            shard.metadata.fold()


@pytest.mark.parametrize(
    ("key", "has_data_dir", "how"),
    [
        (IDENTITY, True, "nothing tiered"),
        (IDENTITY, False, "tiered"),
        (CATALOG, True, "nothing tiered"),
        (CATALOG, False, "folded"),
        (SHARD, True, "folded"),
        (SHARD, False, "nothing tiered"),
        (SHARD, False, "tiered"),
    ],
)
async def test_a_lost_key_is_said_and_nothing_is_written(
    tmp_path: Path, key: str, has_data_dir: bool, how: str
) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, store=store) as bench:
        await fill(bench, how)
    if not has_data_dir:
        rmtree(tmp_path / "data")
    lost = store.get(key).data
    store.delete_many([key])
    before, logs = contents(store), local_files(tmp_path)
    for _ in range(2):
        with pytest.raises((StoreCorruptError, DataDirectoryError)) as refused:
            async with service_bench(tmp_path, store=store):
                raise AssertionError(MUST_NOT_START)
        assert contents(store) == before
        assert local_files(tmp_path) == logs
        if key != IDENTITY:
            assert refused.value.fields["key"] == key
            assert refused.value.fields["store"] == store.url
            assert refused.value.fields["known_by"], "who says that there was one"
    store.put(key, lost)
    async with service_bench(tmp_path, store=store) as bench:
        assert await bench.topic_names() == ["a", "loc"]
        kept = {"a": has_data_dir or how != "nothing tiered", "loc": has_data_dir}
        for topic, is_kept in kept.items():
            assert await bench.values(topic) == [([b"x", b"y"] if is_kept else [])]


@pytest.mark.parametrize("key", [CATALOG, SHARD])
async def test_a_claim_in_the_data_directory_tells_of_a_head_that_nothing_in_the_store_tells_of(
    tmp_path: Path, key: str
) -> None:
    """A wrong `rm` has removed all but the identity and, for the shard, a catalog without a topic."""
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, store=store):
        pass
    store.delete_many([SHARD, key])
    before = contents(store)
    with pytest.raises(StoreCorruptError) as refused:
        async with service_bench(tmp_path, store=store):
            raise AssertionError(MUST_NOT_START)
    assert refused.value.fields["key"] == key
    assert refused.value.fields["known_by"] == f"{tmp_path}/data/claims-0000"
    assert contents(store) == before


class Dying:
    """A store that fails for ever from its n-th write on, which lands without an answer."""

    def __init__(self, inner: ObjectStore, write_count: int) -> None:
        self._left = write_count
        self.has_died = False
        self.store = FaultyObjectStore(inner, Random(1), self._plan)

    def _plan(self, operation: Operation) -> Fault:
        if self.has_died:
            return Fault.FAILS
        if operation.verb == "PUT":
            self._left -= 1
            if self._left < 0:
                self.has_died = True
                return Fault.LANDS_UNKNOWN
        return Fault.NONE


async def test_a_first_start_that_was_cut_off_anywhere_is_gone_on_with(tmp_path: Path) -> None:
    written = 0
    while True:
        folder = tmp_path / f"{written}"
        store = MemoryObjectStore(SystemClock())
        dying = Dying(store, written)
        try:
            async with service_bench(folder, store=dying.store, clock=ManualClock()):
                pass
        except StoreUnavailableError:
            pass
        async with service_bench(folder, store=store) as bench:
            await bench.client.admin.create_topic("t")
            await bench.append("t", [b"x"])
        if not dying.has_died:
            break
        written += 1
    assert written >= 7, "identity, four of a probe, two heads, a claim"


async def test_logs_that_know_higher_epochs_than_the_store_are_appended_to(tmp_path: Path) -> None:
    """The head came back from a copy that is older than some claims, and nothing is left that tells of it."""
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t")
        old = store.get(SHARD).data
    newest_epoch = 0
    for _ in range(3):
        async with service_bench(tmp_path, store=store) as bench:
            await bench.append("t", [b"x"])
            [log] = await bench.client.admin.describe_log("t")
            newest_epoch = log.leader_epoch
    store.put(SHARD, old)
    (tmp_path / "data" / "seen-heads").unlink()
    async with service_bench(tmp_path, store=store) as bench:
        [log] = await bench.client.admin.describe_log("t")
        assert log.leader_epoch == newest_epoch + 1
        await bench.client.append("t", 0, [Record(0, 0, None, b"y")], durability=Durability.DISK)
        [records] = await bench.read_all("t")
        assert [record.value for record in records] == [b"x", b"x", b"x", b"y"]
