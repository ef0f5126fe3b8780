"""Two servers of one store, a shard each: each serves its own partitions and names the owner of others."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    InvalidConfigError,
    NotOwnerError,
    StoreNotUsableError,
    StoreUnavailableError,
)
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.client.client import Client
from stratalog.client.retry import RetryPolicy
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.remote.metadata.head.metadata_version import METADATA_VERSION
from stratalog.remote.store_layout import shard_of
from stratalog.server.background.pass_outcome import PassOutcome
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.operations.operation import OperationState
from stratalog.server.operations.operation_results import (
    CollectionResult,
    CompactionResult,
    OperationResult,
    VerificationResult,
)
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.store_faults import Fault, Operation
from stratalog.v1 import log_pb2
from tests.support.gate import Gate
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench
from tests.support.stored_heads import head_bytes

PARTITION_COUNT = 4
PASS_COUNT = 20
AT_ONCE = {"remote.copy.max.age.ms": "1"}
"""The configuration of a topic whose uploads do not wait for others."""


class TwoServers(NamedTuple):
    """Servers of shard 0 and of shard 1 over one store."""

    store: MemoryObjectStore
    servers: tuple[ServiceBench, ServiceBench]

    def owner_of(self, topic_id: UUID, partition: int) -> ServiceBench:
        return self.servers[shard_of(TopicIdPartition(topic_id, partition), 2)]

    async def create_topic(self) -> UUID:
        """Create the topic `t` on the first server, and let the second one follow."""
        created = await self.servers[0].client.admin.create_topic("t", PARTITION_COUNT)
        await self.servers[1].refresh()
        return UUID(created.topic_id)


def address(bench: ServiceBench) -> str:
    return f"127.0.0.1:{bench.server.port}"


@asynccontextmanager
async def two_servers(folder: Path, store: MemoryObjectStore | None = None) -> AsyncGenerator[TwoServers]:
    store = store or MemoryObjectStore(SystemClock())
    async with (
        service_bench(folder / "0", store=store, shard_count=2, own_shards=(0,)) as first,
        service_bench(folder / "1", store=store, shard_count=2, own_shards=(1,)) as second,
    ):
        await first.refresh()
        yield TwoServers(store, (first, second))


async def read(client: Client, partition: int, end_offset: int) -> list[bytes | None]:
    records: list[bytes | None] = []
    async for batch in client.consume("t", start={partition: 0}, until={partition: end_offset}).batches():
        records += [record.value for record in batch]
    return records


async def test_each_partition_is_served_by_the_owner_of_its_shard(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as both:
        topic_id = await both.create_topic()
        owners = [both.owner_of(topic_id, number) for number in range(PARTITION_COUNT)]
        assert {address(owner) for owner in owners} == {address(bench) for bench in both.servers}
        for bench in both.servers:
            async with Client(address(bench)) as client:
                # A client finds the owner, whichever server it asks first.
                for number in range(PARTITION_COUNT):
                    await client.append("t", number, [Record(0, 1000, b"k", b"%d" % number)])
        for bench in both.servers:
            async with Client(address(bench)) as client:
                for number in range(PARTITION_COUNT):
                    assert await read(client, number, 2) == [b"%d" % number] * 2
        for number, owner in enumerate(owners):
            assert owner.partition("t", number).log_end_offset == 2
            [other] = [bench for bench in both.servers if bench is not owner]
            with pytest.raises(NotOwnerError) as caught:
                await other.client.append("t", number, [Record(0, 1000, b"k", b"v")])
            assert caught.value.fields["endpoint"] == address(owner)


async def test_all_shards_of_a_server_have_one_limit_of_uploads(tmp_path: Path) -> None:
    config = {"remote.copy.max.requests.per.second": "5"}
    async with service_bench(tmp_path, shard_count=4, config=config) as bench:
        await bench.client.admin.create_topic("t", 4)
        for partition in range(4):
            await bench.client.append("t", partition, [Record(0, 1000, b"k", b"v")])
        begin_s = SystemClock().monotonic_s()
        uploaded = await bench.client.admin.upload(["t"])
        took_s = SystemClock().monotonic_s() - begin_s
        assert uploaded.object_count == 4
        # Of a put and a commit for each shard the first one, and a tenth of a second of them, need no wait.
        assert took_s >= (2 * 4 - 1) / 5 - 0.1 - 0.01


async def test_a_consumer_reads_the_partitions_of_both_owners(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as both:
        await both.create_topic()
        for bench in both.servers:
            async with Client(address(bench)) as client:
                for number in range(PARTITION_COUNT):
                    await client.append("t", number, [Record(0, 1000, b"k%d" % number, b"a")])
        for bench in both.servers:
            async with Client(address(bench)) as client:
                found = [record async for record in client.consume("t", until="latest")]
                assert sorted((one.partition, one.offset) for one in found) == [
                    (number, offset) for number in range(PARTITION_COUNT) for offset in range(2)
                ]
                assert await client.latest("t") == {
                    TopicPartition("t", number): 2 for number in range(PARTITION_COUNT)
                }
                places = {TopicPartition("t", number): 1 for number in range(PARTITION_COUNT)}
                fetched = await client.fetch(places)
                assert [(one.partition, one.error) for one in fetched] == [
                    (number, None) for number in range(PARTITION_COUNT)
                ]
                async with client.table("t", decode="utf-8") as table:
                    assert {key: table[key] for key in table} == {
                        f"k{number}": "a" for number in range(PARTITION_COUNT)
                    }


async def test_a_consumer_goes_on_while_an_owner_is_away_and_behind_its_successor(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "0", store=store, shard_count=2, own_shards=(0,)) as first:
        topic_id = UUID((await first.client.admin.create_topic("t", PARTITION_COUNT)).topic_id)
        of_second = [
            number
            for number in range(PARTITION_COUNT)
            if shard_of(TopicIdPartition(topic_id, number), 2) == 1
        ]
        of_first = [number for number in range(PARTITION_COUNT) if number not in of_second]
        async with Client(address(first), retry=RetryPolicy(deadline_s=60)) as client:
            consumer = client.consume("t")
            records = aiter(consumer)
            seen: list[tuple[int, bytes | str | None]] = []

            async def read_until(count: int) -> None:
                while len(seen) < count:
                    record = await anext(records)
                    seen.append((record.partition, record.value))

            async def write(word: bytes, numbers: Sequence[int]) -> None:
                for number in numbers:
                    await client.append("t", number, [Record(0, 1000, b"k", word)])

            async with service_bench(tmp_path / "1", store=store, own_shards=(1,)) as second:
                await first.refresh()
                await write(b"before", range(PARTITION_COUNT))
                await asyncio.wait_for(read_until(PARTITION_COUNT), PATIENCE_S)
                await second.client.admin.upload()
            # No server has the second shard; the reader of the other one does not wait for it.
            await write(b"meanwhile", of_first)
            await asyncio.wait_for(read_until(PARTITION_COUNT + len(of_first)), PATIENCE_S)
            async with service_bench(tmp_path / "2", store=store, own_shards=(1,)):
                await first.refresh()
                await write(b"after", range(PARTITION_COUNT))
                await asyncio.wait_for(
                    read_until(PARTITION_COUNT + len(of_first) + PARTITION_COUNT), PATIENCE_S
                )
            await consumer.aclose()
        for number in range(PARTITION_COUNT):
            words = [value for partition, value in seen if partition == number]
            expected = [b"before", b"meanwhile", b"after"] if number in of_first else [b"before", b"after"]
            assert words == expected


async def test_a_producer_writes_to_the_partitions_of_both_owners(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as both:
        await both.create_topic()
        async with Client(address(both.servers[0])) as client:
            async with client.producer() as producer:
                for turn in range(50):
                    for number in range(PARTITION_COUNT):
                        producer.send("t", value=b"%d" % turn, partition=number)
                    await producer.flush()
            for number in range(PARTITION_COUNT):
                assert await read(client, number, 50) == [b"%d" % turn for turn in range(50)]


async def test_metadata_and_status_show_all_shards_with_their_owners(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as both:
        topic_id = await both.create_topic()
        for bench in both.servers:
            [topic] = (await bench.client.log.Metadata(log_pb2.MetadataRequest())).topics
            found = {one.partition: (one.endpoint, one.HasField("error")) for one in topic.partitions}
            assert found == {
                number: (address(both.owner_of(topic_id, number)), False) for number in range(PARTITION_COUNT)
            }
            status = await bench.client.admin.tier_status()
            own = both.servers.index(bench)
            assert [(one.shard, one.foreign) for one in status.shards] == [(0, own != 0), (1, own != 1)]
            [foreign] = [one for one in status.shards if one.foreign]
            assert foreign.takeover is not None
            assert foreign.takeover.endpoint == address(both.servers[1 - own])
            assert not status.offline_partitions
            shown = await bench.command("tier", "status")
            assert "has owned shard" not in shown.stdout
            info = await bench.client.admin.server_info()
            assert [one.shard for one in info.owned_shards] == [own]


async def test_each_server_uploads_its_shard_and_restores_it(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with two_servers(tmp_path / "before", store) as both:
        await both.create_topic()
        async with Client(address(both.servers[0])) as client:
            for number in range(PARTITION_COUNT):
                await client.append("t", number, [Record(0, 1000, b"k", b"%d" % number)])
        for bench in both.servers:
            assert (await bench.client.admin.upload()).slice_count == PARTITION_COUNT // 2
    async with two_servers(tmp_path / "after", store) as both:
        async with Client(address(both.servers[0])) as client:
            for number in range(PARTITION_COUNT):
                assert await read(client, number, 1) == [b"%d" % number]
        # A deletion by one server is followed by the other one, in its own shard.
        await both.servers[1].client.admin.delete_topic("t")
        await both.servers[0].refresh()
        for bench in both.servers:
            assert await bench.topic_names() == []
            [shard] = bench.server.engine.tier.shards
            assert not shard.metadata.refresh().partitions


async def test_a_server_that_loses_one_shard_serves_and_uploads_the_other(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "both", store=store, shard_count=2) as bench:
        topic_id = UUID((await bench.client.admin.create_topic("t", PARTITION_COUNT, AT_ONCE)).topic_id)
        shard_of_number = {
            number: shard_of(TopicIdPartition(topic_id, number), 2) for number in range(PARTITION_COUNT)
        }
        lost = [number for number, shard in shard_of_number.items() if shard == 1]
        kept = [number for number, shard in shard_of_number.items() if shard == 0]
        for number in range(PARTITION_COUNT):
            await bench.append("t", [b"%d" % number], partition=number)
        async with service_bench(tmp_path / "one", store=store, own_shards=(1,)) as successor:
            await bench.refresh()
            for number in lost:
                with pytest.raises(NotOwnerError) as caught:
                    await bench.append("t", [b"late"], partition=number)
                assert caught.value.fields["endpoint"] == address(successor)
            for number in kept:
                assert await bench.append("t", [b"more"], partition=number) == 1
            health: Any = health_pb2_grpc.HealthStub(bench.client.channel.current)
            answer = await health.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            # All passes go on for the shard that is left, and leave the other one alone.
            manager = bench.server.engine.tier.manager
            for number in kept:
                bench.partition("t", number).log.roll()
            outcome = manager.upload_pass()
            assert (outcome.done["slices"], outcome.failures, outcome.failed_shards) == (len(kept), (), {})
            assert (await bench.client.admin.upload()).slice_count == 0
            for work in (manager.remote_retention_pass, manager.collect_pass, manager.fold_pass):
                outcome = work()
                assert (outcome.failures, outcome.failed_shards) == ((), {})
            assert bench.server.engine.tier.compaction.compact_pass().failed_shards == {}
            assert bench.server.engine.local.retention.run().failures == ()
            with pytest.raises(NotOwnerError):
                await bench.client.admin.upload(["t"])
            # The server follows the catalog: topics come, and the lost partitions are its successor's.
            await successor.client.admin.create_topic("u", PARTITION_COUNT)
            await bench.refresh()
            assert sorted(await bench.topic_names()) == ["t", "u"]
            await bench.client.admin.create_topic("v", PARTITION_COUNT)
            await successor.refresh()
            async with Client(address(bench)) as client:
                for number in range(PARTITION_COUNT):
                    await client.append("v", number, [Record(0, 1000, b"k", b"v")])
            status = await bench.client.admin.tier_status()
            assert [one.takeover is not None for one in status.shards] == [False, True]
            shown = (await bench.command("tier", "status")).stdout.splitlines()
            [line] = [line for line in shown if "has owned" in line]
            assert f"at {address(successor)}, has owned shard 1 since epoch 2" in line
            async with service_bench(tmp_path / "other", store=store, own_shards=(0,)):
                await bench.refresh()
                assert bench.server.engine.tier.shards.is_replaced
                # One more line, because the other shard has another owner.
                now_shown = (await bench.command("tier", "status")).stdout
                assert now_shown.count("has owned") == 2
                with pytest.raises(NotOwnerError):
                    await bench.client.admin.list_topics()


async def test_a_pass_goes_on_for_a_shard_beside_one_whose_store_fails(tmp_path: Path) -> None:
    broken: list[str] = []
    store = FaultyObjectStore(
        MemoryObjectStore(SystemClock()),
        Random(0),
        lambda call: Fault.FAILS if call.key.startswith(tuple(broken)) else Fault.NONE,
    )
    async with service_bench(tmp_path, store=store, shard_count=2) as bench:
        await bench.client.admin.create_topic("t", PARTITION_COUNT, AT_ONCE)
        for number in range(PARTITION_COUNT):
            await bench.append("t", [b"v"], partition=number)
            bench.partition("t", number).log.roll()
        manager = bench.server.engine.tier.manager
        broken.append("shards/0000/")
        outcome = await asyncio.to_thread(manager.upload_pass)
        assert outcome.done["slices"] == PARTITION_COUNT // 2
        assert isinstance(outcome.failed_shards[0], StoreUnavailableError)
        assert set((await asyncio.to_thread(manager.refresh_pass)).failed_shards) == {0}
        broken.clear()
        outcome = await asyncio.to_thread(manager.upload_pass)
        assert (outcome.done["slices"], outcome.failed_shards) == (PARTITION_COUNT // 2, {})


async def test_operations_over_all_shards_go_on_beside_one_whose_store_fails(tmp_path: Path) -> None:
    broken: list[str] = []
    store = FaultyObjectStore(
        MemoryObjectStore(SystemClock()),
        Random(0),
        lambda call: Fault.FAILS if call.key.startswith(tuple(broken)) else Fault.NONE,
    )
    async with service_bench(tmp_path, store=store, shard_count=2) as bench:
        await bench.client.admin.create_topic("t", PARTITION_COUNT, {**AT_ONCE, "cleanup.policy": "compact"})
        for number in range(PARTITION_COUNT):
            for _ in range(2):
                await bench.client.append("t", number, [Record(0, 1000, b"k", b"v")])
                await bench.client.admin.upload(["t"])
        broken.append("shards/0000/")
        results: dict[str, OperationResult | None] = {}
        for arguments in (("compaction", "run"), ("tier", "verify"), ("tier", "collect")):
            assert (await bench.command(*arguments)).exit_code != 0
            view = bench.server.engine.operations.operations()[0].view
            assert view.state is OperationState.FAILED
            assert isinstance(view.error, StoreUnavailableError)
            assert str(view.error.fields["failed_shards"]).startswith("0: "), "the other one did not fail"
            results[arguments[1]] = view.result
        compacted, verified, collected = results.values()
        assert isinstance(compacted, CompactionResult)
        [report] = compacted.reports
        assert (report.refused, report.partitions) == (None, PARTITION_COUNT // 2)
        assert isinstance(verified, VerificationResult)
        assert verified.report.slice_count == PARTITION_COUNT // 2
        assert verified.report.findings == ()
        assert isinstance(collected, CollectionResult)
        broken.clear()
        await bench.command("tier", "verify")
        view = bench.server.engine.operations.operations()[0].view
        assert view.state is OperationState.SUCCEEDED


async def test_a_commit_that_hangs_ends_by_its_deadline_and_the_next_pass_settles_it(tmp_path: Path) -> None:
    gate = Gate()

    def hold(operation: Operation) -> None:
        if (operation.verb, operation.key) == ("PUT", "shards/0000/head"):
            gate.pass_through()

    store = FaultyObjectStore(MemoryObjectStore(SystemClock()), Random(0), before=hold)
    async with service_bench(tmp_path, store=store, shard_count=2, metadata_request_ms=200) as bench:
        await bench.client.admin.create_topic("t", PARTITION_COUNT, AT_ONCE)
        for number in range(PARTITION_COUNT):
            await bench.append("t", [b"v"], partition=number)
            bench.partition("t", number).log.roll()
        gate.close()
        outcomes: list[PassOutcome] = []
        while not any(one.failed_shards for one in outcomes):
            assert len(outcomes) < PASS_COUNT
            await bench.run_task("upload")
            outcomes.append(bench.server.engine.passes.status("upload").last_outcome or PassOutcome())
        # The other shard was uploaded meanwhile, and the status names the one that hangs.
        assert sum(one.done["slices"] for one in outcomes) == PARTITION_COUNT // 2
        shown = (await bench.command("tier", "status")).stdout
        assert "shard 0: " in shown
        assert not bench.server.engine.tier.shards.is_replaced
        gate.open()
        partitions = [bench.partition("t", number) for number in range(PARTITION_COUNT)]
        for _ in range(PASS_COUNT):
            await bench.run_task("upload")
        assert all(one.tiered_end_offset == 1 for one in partitions)
        # A late put and the next pass have not stored anything twice.
        for partition in partitions:
            state = partition.tier_state()
            assert state is not None
            assert [(one.base_offset, one.end_offset) for one in state.slices] == [(0, 1)]


async def test_the_catalog_is_finalized_after_all_shards(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with two_servers(tmp_path / "0", store):
        pass
    for key in ("catalog/head", "shards/0000/head", "shards/0001/head"):
        head = json.loads(store.get(key).data)
        store.put(key, head_bytes(head | {"read_version": 1, "write_version": 1}))
    async with two_servers(tmp_path / "1", store) as both:
        first, second = both.servers
        heads = (await first.client.admin.finalize_metadata()).heads
        assert [one.new_metadata_version for one in heads] == [METADATA_VERSION, 1, 1]
        assert address(second) in heads[1].reason
        assert "shard 1" in heads[2].reason
        heads = (await second.client.admin.finalize_metadata()).heads
        assert [one.new_metadata_version for one in heads] == [METADATA_VERSION] * 3
        assert not any(one.reason for one in heads)


async def test_status_and_log_have_one_line_for_a_fault_of_several_shards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    is_away = False
    store = FaultyObjectStore(
        MemoryObjectStore(clock), Random(0), lambda _: Fault.FAILS if is_away else Fault.NONE
    )
    async with service_bench(
        tmp_path,
        store=store,
        clock=clock,
        shard_count=4,
        own_shards=(0, 1, 2),
        head_refresh_ms=1_000,
        max_silence_ms=10_000,
    ) as bench:
        await bench.client.admin.create_topic("paused", 1, {"remote.copy.pause": "true"})
        topic = bench.server.engine.topics.registry.topic("paused")
        while isinstance(topic.all_partitions[0], OfflinePartition):
            await bench.client.admin.delete_topic("paused")
            await bench.client.admin.create_topic("paused", 1, {"remote.copy.pause": "true"})
            topic = bench.server.engine.topics.registry.topic("paused")
        await bench.append("paused", [b"a", b"b"])
        is_away = True
        clock.advance(60_000)
        caplog.set_level(logging.DEBUG)
        await bench.run_task("head-refresh")
        lines = (await bench.command("tier", "status")).stdout.splitlines()
        heads = lines[: lines.index(next(one for one in lines if "WHAT" in one))]
        assert heads[0] == "shard 3: no server owns it; start one with --own-shards 3"
        assert heads[1].startswith("shards 0, 1, 2: the store has not answered for 1.0min, so appends at")
        assert heads[2].startswith("head-refresh has failed 1 time in a row, it has not succeeded")
        assert heads[3].startswith("uploads of paused are paused, with 2 records on the local disk")
        assert len(heads) == 4
        is_away = False
        await bench.run_task("head-refresh")
        told = [record for record in caplog.records if record.levelno >= logging.INFO]
        for text in ("the store has not answered", "the store answers again"):
            assert len([record for record in told if text in record.getMessage()]) == 1


async def test_the_number_of_shards_is_fixed(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "0", store=store, shard_count=3):
        pass
    with pytest.raises(StoreNotUsableError) as caught:
        async with service_bench(tmp_path / "1", store=store, shard_count=2):
            pass
    assert (caught.value.fields["shard_count"], caught.value.fields["store_shard_count"]) == (2, 3)
    with pytest.raises(StoreNotUsableError):
        async with service_bench(tmp_path / "0", store=store, shard_count=2):
            pass
    with pytest.raises(InvalidConfigError):
        async with service_bench(tmp_path / "1", store=store, own_shards=(3,)):
            pass
    async with service_bench(tmp_path / "0", store=store) as bench:
        assert len((await bench.client.admin.tier_status()).shards) == 3


@pytest.mark.parametrize("own_shards", [(0, 0), (2,), (-1,)])
def test_a_server_owns_shards_of_its_store_once(own_shards: tuple[int, ...]) -> None:
    with pytest.raises(InvalidConfigError):
        ServerSettings(data_dir="/data", shard_count=2, own_shards=own_shards)
