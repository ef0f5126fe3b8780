"""A server that only reads, beside the owner of the store: it follows uploads, topics, retention, compaction
and new owners, and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    DataDirectoryError,
    NotOwnerError,
    StoreNotUsableError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import TopicPartition
from stratalog.cli.main import stratalog
from stratalog.client.blocking.sync_client import SyncClient
from stratalog.client.client import Client
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.retry import RetryPolicy
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.rpc.read_only_gate import READS
from stratalog.v1 import admin_pb2, log_pb2, operation_pb2, tier_pb2
from tests.support.service.server_process import ServerProcess
from tests.support.service.service_bench import (
    PATIENCE_S,
    ServiceBench,
    catalog_elsewhere,
    end_transaction,
    service_bench,
)
from tests.support.tiered.counting_object_store import CountingObjectStore
from tests.support.tiered.unstable_uploads import unstable_uploads

T0 = TopicPartition("t", 0)
KEPT = {"retention.ms": "-1"}


@asynccontextmanager
async def read_only(
    folder: Path, store: CountingObjectStore | MemoryObjectStore
) -> AsyncGenerator[ServiceBench]:
    async with service_bench(folder / "reader", store=store, read_only=True) as bench:
        yield bench


@asynccontextmanager
async def pair(folder: Path) -> AsyncGenerator[tuple[ServiceBench, ServiceBench]]:
    """The owner with the topic `t`, and a server that only reads."""
    store = MemoryObjectStore(SystemClock())
    async with service_bench(folder / "owner", store=store) as owner:
        await owner.client.admin.create_topic("t", config=KEPT)
        async with read_only(folder, store) as reader:
            yield owner, reader


async def test_records_appear_with_their_upload_and_not_before(tmp_path: Path) -> None:
    async with pair(tmp_path) as (owner, reader):
        assert await reader.values("t") == [[]]
        await owner.append("t", [b"a", b"b"])
        await reader.refresh()
        assert await reader.values("t") == [[]], "they are on the owner's disk alone"
        await owner.client.admin.upload()
        await reader.refresh()
        assert await reader.values("t") == [[b"a", b"b"]]
        await owner.append("t", [b"c"])
        await owner.client.admin.upload(delete_local=True)
        await reader.refresh()
        assert await reader.values("t") == [[b"a", b"b", b"c"]]
        wanted = [(T0, "earliest"), (T0, "latest"), (T0, "latest-tiered"), (T0, "max-timestamp")]
        assert await reader.client.list_offsets(wanted) == await owner.client.list_offsets(wanted)


async def test_a_waiting_reader_wakes_with_the_upload(tmp_path: Path) -> None:
    async with pair(tmp_path) as (owner, reader):

        async def follow() -> list[bytes | None]:
            consumer = reader.client.consume("t", start="earliest", max_records=3)
            return [one.value async for one in consumer]

        following = asyncio.create_task(follow())
        await reader.until_waiting(1)
        for value in (b"a", b"b", b"c"):
            await owner.append("t", [value])
            await owner.client.admin.upload()
            await reader.refresh()
        assert await asyncio.wait_for(following, PATIENCE_S) == [b"a", b"b", b"c"]


async def test_readers_of_committed_records_stop_at_a_transaction_that_is_open_at_the_tiered_end(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as (owner, reader):
        partition = owner.partition()

        def send(*values: bytes, producer: BatchProducer | None = None) -> None:
            records = [Record(0, 0, b"k", value) for value in values]
            batch = encode_batch(records, producer=producer or BatchProducer())
            partition.log.appender.append_as_leader(batch, partition.shard.leader_epoch())

        send(b"a")
        send(b"kept", producer=BatchProducer(1, 0, 0, is_transactional=True))
        send(b"aborted", producer=BatchProducer(2, 0, 0, is_transactional=True))
        with unstable_uploads():
            await owner.client.admin.upload()
        await reader.refresh()
        assert await reader.values("t") == [[b"a", b"kept", b"aborted"]]
        assert await reader.values("t", isolation=IsolationLevel.READ_COMMITTED) == [[b"a"]]
        end_transaction(partition, 1, committed=True)
        end_transaction(partition, 2, committed=False)
        send(b"b")
        await owner.client.admin.upload(delete_local=True)
        await reader.refresh()
        committed = await reader.values("t", isolation=IsolationLevel.READ_COMMITTED)
        assert committed == [[b"a", b"kept", b"b"]]
        assert committed == await owner.values("t", isolation=IsolationLevel.READ_COMMITTED)


async def test_topics_come_and_go_as_the_owner_says(tmp_path: Path) -> None:
    async with pair(tmp_path) as (owner, reader):
        await owner.client.admin.create_topic("new", 2, KEPT)
        await owner.append("new", [b"x"], 1)
        await owner.client.admin.upload()
        await reader.refresh()
        assert await reader.topic_names() == ["new", "t"]
        assert await reader.values("new") == [[], [b"x"]]
        await owner.client.admin.delete_topic("new")
        await reader.refresh()
        assert await reader.topic_names() == ["t"]
        with pytest.raises(UnknownTopicOrPartitionError):
            await reader.client.latest("new")


async def test_retention_and_compaction_of_the_owner_show(tmp_path: Path) -> None:
    async with pair(tmp_path) as (owner, reader):
        await owner.client.admin.create_topic("table", config={"cleanup.policy": "compact", **KEPT})
        for value in (b"1", b"2"):
            await owner.client.append("table", 0, [Record(0, 0, b"key", value)])
            await owner.append("t", [value])
            await owner.client.admin.upload(delete_local=True)
        await reader.refresh()
        assert await reader.values("table") == [[b"1", b"2"]]
        await owner.client.admin.run_compaction()
        await owner.client.admin.delete_records("t", 0, 1)
        await reader.refresh()
        assert await reader.values("table") == [[b"2"]]
        assert await reader.values("t") == [[b"2"]]


async def test_a_restart_of_the_owner_fences_nothing_here(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "owner", store=store) as owner:
        await owner.client.admin.create_topic("t", config=KEPT)
        await owner.append("t", [b"a"])
        await owner.client.admin.upload()
    async with read_only(tmp_path, store) as reader:
        assert await reader.values("t") == [[b"a"]], "the owner need not run"
        async with service_bench(tmp_path / "owner", store=store) as owner:
            await owner.append("t", [b"b"])
            await owner.client.admin.upload()
            await reader.refresh()
            assert await reader.values("t") == [[b"a", b"b"]]
            [found] = (await reader.client.metadata(["t"])).topics
            assert [one.leader_epoch for one in found.partitions] == [2]
            assert [one.endpoint for one in found.partitions] == [owner.client.address]


CHANGES: dict[str, Callable[[Client], Awaitable[object]]] = {
    "append": lambda client: client.append("t", 0, [Record(0, 0, None, b"x")]),
    "create topic": lambda client: client.admin.create_topic("u"),
    "delete topic": lambda client: client.admin.delete_topic("t"),
    "delete records": lambda client: client.admin.delete_records("t", 0, -1),
    "fence": lambda client: client.fence("t", 0, ""),
    "upload": lambda client: client.admin.upload(),
    "compaction": lambda client: client.admin.run_compaction(),
    "collection": lambda client: client.admin.collect(),
}


async def test_changes_are_refused_and_name_the_owner(tmp_path: Path) -> None:
    async with pair(tmp_path) as (owner, reader):
        for name, change in CHANGES.items():
            async with Client(reader.client.address, retry=RetryPolicy(deadline_s=0)) as client:
                with pytest.raises(NotOwnerError) as refused:
                    await change(client)
            assert refused.value.fields["endpoint"] == owner.client.address, name
        assert await owner.topic_names() == ["t"]
        info = await reader.client.admin.server_info()
        assert list(info.owned_shards) == []


async def test_a_patient_client_is_led_to_the_owner(tmp_path: Path) -> None:
    async with (
        pair(tmp_path) as (owner, reader),
        Client(reader.client.address, retry=RetryPolicy(deadline_s=PATIENCE_S)) as client,
    ):
        ack = await client.append("t", 0, [Record(0, 0, None, b"x")])
        assert ack.base_offset == 0
        assert await owner.values("t") == [[b"x"]]


async def test_nothing_is_written_to_the_store(tmp_path: Path) -> None:
    inner = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "owner", store=inner) as owner:
        await owner.client.admin.create_topic("t", config=KEPT)
        await owner.append("t", [b"a"])
        await owner.client.admin.upload()
        await owner.client.admin.create_topic("gone", config=KEPT)
        await owner.append("gone", [b"x"])
        await owner.client.admin.upload()
        # The owner has not dropped its slices yet.
        gone_id = owner.server.engine.topics.registry.topic("gone").topic_id
        catalog_elsewhere(inner).delete(gone_id)
        store = CountingObjectStore(inner)
        async with read_only(tmp_path, store) as reader:
            await reader.refresh()
            assert await reader.values("t") == [[b"a"]]
            assert await reader.topic_names() == ["t"]
            await reader.client.admin.verify()
        verbs = {kind.verb for kind in store.counts()}
        assert "GET" in verbs
        assert not verbs & {"PUT", "DELETE"}


async def test_a_store_without_an_owner_and_a_directory_with_logs_are_refused(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    with pytest.raises(StoreNotUsableError):
        async with read_only(tmp_path, store):
            raise AssertionError("it must not start")
    assert list(store.list("")) == []
    async with service_bench(tmp_path / "owner", store=store) as owner:
        await owner.client.admin.create_topic("t", config=KEPT)
        await owner.append("t", [b"on this disk alone"])
    with pytest.raises(DataDirectoryError):
        async with service_bench(tmp_path / "owner", store=store, read_only=True):
            raise AssertionError("it must not start")
    async with service_bench(tmp_path / "owner", store=store) as owner:
        assert await owner.values("t") == [[b"on this disk alone"]]


def test_the_command_follows_an_owner_in_another_process(tmp_path: Path) -> None:
    store_url = f"file://{tmp_path}/store"
    with ServerProcess(f"{tmp_path}/owner", store_url=store_url) as owner:
        with SyncClient(owner.address) as client:
            client.topics.create("t", config=KEPT)
            client.append("t", 0, [Record(0, 0, None, b"a")])
            client.admin.upload()
        options = ("--read-only", "--follow-interval", "1")
        with (
            ServerProcess(f"{tmp_path}/reader", store_url=store_url, options=options) as reader,
            SyncClient(reader.address) as client,
        ):
            owner.kill()
            [one] = client.consume("t", start="earliest", max_records=1)
            assert one.value == b"a"
            [scratch] = Path(tmp_path, "reader").iterdir()
            assert reader.stop() == 0
            assert not scratch.exists()


@pytest.mark.parametrize(
    ("arguments", "wanted"), [(["--read-only"], "--store"), (["--store", "memory://"], "--data-dir")]
)
def test_the_command_says_which_option_is_missing(arguments: list[str], wanted: str) -> None:
    result = CliRunner().invoke(stratalog, ["server", "start", *arguments])
    assert result.exit_code == 2
    assert wanted in result.stderr


def test_every_served_call_is_one_of_the_contract() -> None:
    files = (admin_pb2, log_pb2, operation_pb2, tier_pb2)
    calls = {
        method.name
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert calls >= READS


async def test_the_status_names_the_owner(tmp_path: Path) -> None:
    async with pair(tmp_path) as (owner, reader):
        [shard] = (await reader.client.admin.tier_status()).shards
        assert shard.foreign
        assert shard.takeover is not None
        assert shard.takeover.endpoint == owner.client.address
        assert shard.silence_ms >= 0, "this server talks to the store by itself"
        result = await reader.command("tier", "status")
        assert owner.client.address in result.stdout
        assert "this server" not in result.stdout
        assert "another server" not in result.stdout
