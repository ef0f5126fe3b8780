"""Partitions that are added, trimmed, rolled and flushed, and the description of the server, over gRPC."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import grpc
import pytest
import pytest_asyncio

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    DataDirectoryError,
    InconsistentTopicIdError,
    InvalidRequestError,
    LogStoreError,
    OffsetOutOfRangeError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.randomness import SystemIdGenerator
from stratalog.base.types import TopicPartition
from stratalog.client import values
from stratalog.client.admin import Admin
from stratalog.client.client import Client
from stratalog.client.errors import ServerUnavailableError, error_of_call
from stratalog.client.position import Place
from stratalog.log.unified_log import UnifiedLog
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.store_identity import StoreIdentity
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.rpc.admin.admin_servicer import AdminServicer
from stratalog.server.rpc.admin.server_info import installed_version
from stratalog.server.rpc.call_guard import Context
from stratalog.testing.manual_clock import ManualClock
from stratalog.v1 import admin_pb2_grpc, log_pb2, partition_pb2
from tests.support.service.service_bench import (
    PATIENCE_S,
    ServiceBench,
    catalog_elsewhere,
    service_bench,
)

if TYPE_CHECKING:
    from stratalog.v1.admin_pb2_grpc import AdminServiceAsyncStub


@pytest_asyncio.fixture(loop_scope="session")
async def stub(bench: ServiceBench) -> AsyncGenerator[AdminServiceAsyncStub]:
    """The calls as another language has them."""
    async with grpc.aio.insecure_channel(bench.client.address) as channel:
        yield admin_pb2_grpc.AdminServiceStub(channel)


# --- partitions that are added ------------------------------------------------------------------------------


async def test_added_partitions_take_appends_and_the_former_keep_their_records(bench: ServiceBench) -> None:
    admin = bench.client.admin
    created = await admin.create_topic("t", 2, {"retention.ms": "-1"})
    await bench.append("t", [b"x"], 1)
    altered = await admin.add_partitions("t", 5, topic_id=created.topic_id)
    assert (altered.partition_count, altered.topic_id) == (5, created.topic_id)
    assert altered.config_overrides == created.config_overrides
    assert [altered] == await admin.describe_topics(["t"])
    assert catalog_elsewhere(bench.server.engine.tier.store).topics()["t"].partition_count == 5
    for number in range(5):
        await bench.append("t", [b"%d" % number], number)
    assert await bench.values("t") == [[b"0"], [b"x", b"1"], [b"2"], [b"3"], [b"4"]]
    # The same number again is no change.
    assert await admin.add_partitions("t", 5) == altered


async def test_an_addition_is_refused_with_a_reason(bench: ServiceBench) -> None:
    admin = bench.client.admin
    created = await admin.create_topic("t", 3)

    async def refusal(
        error: type[LogStoreError], topic: str, count: int, topic_id: str = ""
    ) -> LogStoreError:
        with pytest.raises(error) as caught:
            await admin.add_partitions(topic, count, topic_id=topic_id)
        return caught.value

    for count in (-1, 0, 2):
        smaller = await refusal(InvalidRequestError, "t", count)
        assert smaller.fields["partition_count"] == count
    assert smaller.fields["min_partition_count"] == 3
    assert smaller.fields["max_partition_count"] == 10_000
    for count in (10_001, 2**31 - 1):
        larger = await refusal(InvalidRequestError, "t", count)
        assert larger.fields == {**smaller.fields, "partition_count": count}
    other_id = str(uuid4())
    assert (await refusal(InconsistentTopicIdError, "t", 4, other_id)).fields == {
        "topic": "t",
        "topic_id": other_id,
        "current_topic_id": created.topic_id,
    }
    assert (await refusal(UnknownTopicOrPartitionError, "nope", 4)).fields == {"topic": "nope"}
    [listed] = await admin.list_topics()
    assert listed.partition_count == 3


async def test_the_catalog_decides_what_was_added_elsewhere(bench: ServiceBench) -> None:
    """Another process has added more partitions than this call wants, and this server has not looked yet."""
    created = await bench.client.admin.create_topic("t")
    catalog = catalog_elsewhere(bench.server.engine.tier.store)
    catalog.alter(catalog.topics()["t"].topic_id, partition_count=4)
    with pytest.raises(InvalidRequestError) as caught:
        await bench.client.admin.add_partitions("t", 3)
    assert caught.value.fields["min_partition_count"] == 4
    assert (await bench.client.admin.add_partitions("t", 4)).partition_count == 4
    assert created.partition_count == 1
    catalog.delete(catalog.topics()["t"].topic_id)
    with pytest.raises(UnknownTopicOrPartitionError):
        await bench.client.admin.add_partitions("t", 5)
    await bench.refresh()


async def test_partitions_whose_logs_could_not_be_created_come_with_a_later_look(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t")
        in_the_way = tmp_path / "data" / "t-1"
        in_the_way.touch()
        with pytest.raises(DataDirectoryError):
            await bench.client.admin.add_partitions("t", 3)
        assert len(bench.server.engine.topics.registry.topic("t").all_partitions) == 1
        in_the_way.unlink()
        await bench.refresh()
        assert await bench.append("t", [b"x"], 2) == 0


async def test_added_partitions_are_there_after_a_restart(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t")
        await bench.client.admin.add_partitions("t", 3)
        await bench.append("t", [b"x"], 2)
    async with service_bench(tmp_path) as bench:
        assert await bench.values("t") == [[], [], [b"x"]]


# --- records that are deleted -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_tiered", ["true", "false"])
async def test_records_of_many_partitions_are_deleted_in_one_call(
    bench: ServiceBench, is_tiered: str
) -> None:
    admin = bench.client.admin
    topic = await admin.create_topic("t", 4, {"remote.storage.enable": is_tiered})
    for number in range(4):
        await bench.append("t", [b"x"] * (number + 2), number)
    seqs = [shard.metadata.state().seq for shard in bench.server.engine.tier.shards]
    deleted = await admin.delete_records_of("t", {3: 4, 0: "latest", 2: 0}, topic_id=topic.topic_id)
    assert [(one.partition, one.log_start_offset, one.error is not None) for one in deleted] == [
        (3, 4, False),
        (0, 2, False),
        (2, 0, False),
    ]
    assert [log.log_start_offset for log in await admin.describe_log("t")] == [2, 0, 0, 4]
    after = [shard.metadata.state().seq for shard in bench.server.engine.tier.shards]
    assert after == [seq + (is_tiered == "true") for seq in seqs], "one commit for all partitions of a shard"
    # It never moves back.
    assert [one.log_start_offset for one in await admin.delete_records_of("t", {0: 1, 3: 0})] == [2, 4]


@pytest.mark.parametrize(("place", "is_repeated"), [("latest", False), (-3, False), (5, True)])
async def test_a_lost_answer_of_a_deletion_deletes_no_newer_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Place, is_repeated: bool
) -> None:
    starts: list[int] = []
    answer = AdminServicer.DeleteRecords

    async def lose_the_first_answer(
        servicer: AdminServicer, request: partition_pb2.DeleteRecordsRequest, context: Context
    ) -> partition_pb2.DeleteRecordsResponse:
        deleted = await answer(servicer, request, context)
        starts.append(deleted.partitions[0].log_start_offset)
        if len(starts) == 1:
            await bench.append("t", [b"new"] * 5)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection is lost")
        return deleted

    monkeypatch.setattr(AdminServicer, "DeleteRecords", lose_the_first_answer)
    async with service_bench(tmp_path) as bench, Client(bench.client.address) as patient:
        await bench.client.admin.create_topic("t")
        await bench.append("t", [b"old"] * 10)
        if is_repeated:
            assert await patient.admin.delete_records("t", 0, place) == starts[0]
        else:
            with pytest.raises(ServerUnavailableError):
                await patient.admin.delete_records("t", 0, place)
        assert len(starts) == 1 + is_repeated
        assert set((await bench.client.earliest("t")).values()) == {starts[0]}


async def test_a_deletion_that_is_wrong_in_one_partition_deletes_nothing(
    bench: ServiceBench, stub: AdminServiceAsyncStub
) -> None:
    admin = bench.client.admin
    await admin.create_topic("t", 3)
    for number in range(3):
        await bench.append("t", [b"x"] * 2, number)

    async def refusal(error: type[LogStoreError], *partitions: tuple[int, int]) -> LogStoreError:
        request = partition_pb2.DeleteRecordsRequest(
            topic="t",
            partitions=[
                partition_pb2.RecordsToDelete(partition=number, before=log_pb2.Position(offset=offset))
                for number, offset in partitions
            ],
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.DeleteRecords(request)
        found = error_of_call(caught.value, "")
        assert isinstance(found, error), found
        return found

    beyond = await refusal(OffsetOutOfRangeError, (0, 1), (1, 3))
    assert beyond.fields == {
        "topic": "t",
        "partition": 1,
        "offset": 3,
        "log_start_offset": 0,
        "log_end_offset": 2,
    }
    await refusal(OffsetOutOfRangeError, (0, 1), (1, -2))
    unknown = await refusal(UnknownTopicOrPartitionError, (0, 1), (3, 0))
    assert unknown.fields == {"topic": "t", "partition": 3, "partition_count": 3}
    assert (await refusal(InvalidRequestError, (0, 1), (1, 1), (0, 2))).fields == {
        "topic": "t",
        "partition": 0,
    }
    assert (await refusal(InvalidRequestError)).fields["partition_count"] == 0
    many = await refusal(InvalidRequestError, *((number, 0) for number in range(10_001)))
    assert many.fields["max_partition_count"] == 10_000
    with pytest.raises(InconsistentTopicIdError):
        await admin.delete_records_of("t", {0: 1}, topic_id=str(uuid4()))
    assert [log.log_start_offset for log in await admin.describe_log("t")] == [0, 0, 0]


async def test_a_partition_that_fails_keeps_its_records_and_the_others_go_on(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = bench.client.admin
    await admin.create_topic("t", 3, {"remote.storage.enable": "false"})
    for number in range(3):
        await bench.append("t", [b"x"], number)
    increment = UnifiedLog.increment_log_start_offset

    def fail_one(log: UnifiedLog, offset: int) -> None:
        if log.topic_partition == TopicPartition("t", 1):
            raise DataDirectoryError("the disk is full", path="/secret")
        increment(log, offset)

    monkeypatch.setattr(UnifiedLog, "increment_log_start_offset", fail_one)
    deleted = await admin.delete_records_of("t", {0: 1, 1: 1, 2: 1})
    assert [one.log_start_offset for one in deleted] == [1, -1, 1]
    error = deleted[1].error
    assert isinstance(error, DataDirectoryError)
    assert error.fields == {"topic": "t", "partition": 1}, "paths stay in the server's log"
    with pytest.raises(DataDirectoryError):
        await admin.delete_records("t", 1, 1)


async def test_a_store_that_does_not_answer_fails_the_tiered_partitions(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = bench.client.admin
    await admin.create_topic("t", 2)
    for number in range(2):
        await bench.append("t", [b"x"], number)
    [shard] = bench.server.engine.tier.shards

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError("the store does not answer; try again later")

    monkeypatch.setattr(shard.metadata, "advance_log_start", away)
    deleted = await admin.delete_records_of("t", {0: "latest", 1: "latest"})
    errors = [one.error for one in deleted]
    assert [(type(error), error is not None and error.retriable) for error in errors] == [
        (StoreUnavailableError, True)
    ] * 2
    assert [log.log_start_offset for log in await admin.describe_log("t")] == [0, 0]


async def test_each_shard_commits_the_log_starts_of_its_partitions_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryObjectStore(SystemClock())
    StoreIdentity.open_or_create(store, SystemIdGenerator(), 2)
    async with service_bench(tmp_path, store=store) as bench:
        admin, shards = bench.client.admin, list(bench.server.engine.tier.shards)
        await admin.create_topic("t", 4)
        for number in range(4):
            await bench.append("t", [b"x"] * 2, number)
        before = [shard.metadata.state().seq for shard in shards]
        deleted = await admin.delete_records_of("t", dict.fromkeys(range(4), 1))
        assert [one.log_start_offset for one in deleted] == [1] * 4
        assert [shard.metadata.state().seq for shard in shards] == [seq + 1 for seq in before]

        def away(*_: object, **__: object) -> None:
            raise StoreUnavailableError("the store does not answer; try again later")

        monkeypatch.setattr(shards[0].metadata, "advance_log_start", away)
        deleted = await admin.delete_records_of("t", dict.fromkeys(range(4), 2))
        expected = [-1 if bench.partition("t", number).shard is shards[0] else 2 for number in range(4)]
        assert [one.log_start_offset for one in deleted] == expected
        assert sorted(expected) == [-1, -1, 2, 2]
        assert [one.error is not None for one in deleted] == [start == -1 for start in expected]


@pytest.mark.parametrize("is_tiered", ["true", "false"])
@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (2, 2),
        ("latest", 5),
        ("earliest", 0),
        (-2, 3),
        (-99, 0),
        (datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC), 2),
        (datetime(2100, 1, 1, tzinfo=UTC), 5),
        ("max-timestamp", 4),
    ],
)
async def test_records_are_deleted_before_a_place(
    bench: ServiceBench, is_tiered: str, before: Place, expected: int
) -> None:
    admin = bench.client.admin
    await admin.create_topic("t", 1, {"remote.storage.enable": is_tiered})
    for number in range(1, 6):
        await bench.client.append("t", 0, [Record(0, 1000 * number, None, b"x")])
    if is_tiered == "true":
        await admin.upload(delete_local=True)
    assert await admin.delete_records("t", 0, before) == expected
    [log] = await admin.describe_log("t")
    assert log.log_start_offset == expected


async def test_a_place_that_is_none_deletes_nothing(bench: ServiceBench, stub: AdminServiceAsyncStub) -> None:
    admin = bench.client.admin
    await admin.create_topic("t", 2)
    for number in range(2):
        await bench.append("t", [b"x"] * 2, number)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        await admin.delete_records_of("t", {0: 1, 1: "latest-tiered"})
    assert (caught.value.fields["topic"], caught.value.fields["partition"]) == ("t", 1)
    for wrong in (
        log_pb2.Position(),
        log_pb2.Position(tail_count=-1),
        log_pb2.Position(timestamp_ms=-1),
        log_pb2.Position(spec=log_pb2.OFFSET_SPEC_UNSPECIFIED),
    ):
        request = partition_pb2.DeleteRecordsRequest(
            topic="t",
            partitions=[
                partition_pb2.RecordsToDelete(partition=0, before=log_pb2.Position(offset=1)),
                partition_pb2.RecordsToDelete(partition=1, before=wrong),
            ],
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.DeleteRecords(request)
        assert isinstance(error_of_call(refused.value, ""), InvalidRequestError)
    assert [log.log_start_offset for log in await admin.describe_log("t")] == [0, 0]


async def test_a_place_that_cannot_be_looked_up_fails_its_partition(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = bench.client.admin
    await admin.create_topic("t", 2)
    for number in range(2):
        await bench.append("t", [b"x"] * 2, number)
    await admin.upload(delete_local=True)

    def away(*_: object) -> None:
        raise StoreUnavailableError("the store does not answer; try again later")

    monkeypatch.setattr(bench.partition("t", 0), "tiered_offset_for_timestamp", away)
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    failed, deleted = await admin.delete_records_of("t", {0: moment, 1: moment})
    assert isinstance(failed.error, StoreUnavailableError)
    assert (failed.log_start_offset, deleted.log_start_offset) == (-1, 2)


# --- topic ids ----------------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[Admin, str], Awaitable[object]]] = {
    "delete": lambda admin, topic_id: admin.delete_topic("t", topic_id=topic_id),
    "alter": lambda admin, topic_id: admin.alter_configs({"retention.ms": "5"}, "t", topic_id=topic_id),
    "roll": lambda admin, topic_id: admin.roll("t", topic_id=topic_id),
    "flush": lambda admin, topic_id: admin.flush("t", [0], topic_id=topic_id),
    "move": lambda admin, topic_id: admin.move_partition("t", 0, "/nowhere", topic_id=topic_id),
    "delete records": lambda admin, topic_id: admin.delete_records("t", 0, "latest", topic_id=topic_id),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_another_topic_of_the_name_is_not_changed(bench: ServiceBench, change: str) -> None:
    admin = bench.client.admin
    former = await admin.create_topic("t")
    await admin.delete_topic("t", topic_id=former.topic_id)
    newer = await admin.create_topic("t")
    await bench.append("t", [b"x"])
    with pytest.raises(InconsistentTopicIdError) as caught:
        await CHANGES[change](admin, former.topic_id)
    named = {"partition": 0} if change == "move" else {}
    assert caught.value.fields == {
        **named,
        "topic": "t",
        "topic_id": former.topic_id,
        "current_topic_id": newer.topic_id,
    }
    assert await admin.describe_topics(["t"]) == [newer]
    assert await bench.values("t") == [[b"x"]]
    if change != "move":
        await CHANGES[change](admin, newer.topic_id)


async def test_a_topic_that_is_created_between_check_and_move_stays(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = bench.client.admin
    former = await admin.create_topic("t")
    hosted = bench.partition()
    await admin.delete_topic("t")
    newer = await admin.create_topic("t")
    registry = bench.server.engine.topics.registry

    def look_up_before(*_: object) -> HostedPartition:
        return hosted

    monkeypatch.setattr(registry, "partition", look_up_before)
    with pytest.raises(InconsistentTopicIdError) as caught:
        await admin.move_partition("t", 0, "/nowhere", topic_id=former.topic_id)
    assert caught.value.fields["current_topic_id"] == newer.topic_id


async def test_the_server_has_no_topic_id(bench: ServiceBench) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await bench.client.admin.alter_configs({"log.cleaner.threads": "1"}, topic_id="an id")
    assert caught.value.fields == {"topic_id": "an id"}


# --- compacted_upto -----------------------------------------------------------------------------------------


async def test_the_compacted_end_is_that_of_the_store_or_of_the_cleaned_log(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = bench.client.admin
    await admin.create_topic("t", 1, {"cleanup.policy": "compact"})
    await admin.create_topic("local", 1, {"cleanup.policy": "compact", "remote.storage.enable": "false"})
    for _ in range(2):
        await bench.client.append("t", 0, [Record(0, 0, b"k", b"v")] * 3)
        await admin.upload(["t"])
    await admin.run_compaction(["t"])
    [log] = await admin.describe_log("t")
    # Local segments still have all records, which is a matter of readers.
    assert (log.compacted_upto, log.local_log_start_offset) == (6, 0)
    assert bench.partition().compacted_upto == 0
    [local] = await admin.describe_log("local")
    assert local.compacted_upto == 0
    partition = bench.partition("local")
    bench.server.engine.local.logs.cleaner._checkpoints.put(  # pyright: ignore[reportPrivateUsage]  # a clean needs a full segment
        partition.topic_partition, partition.log.local_log.log_dir, 3
    )
    [local] = await admin.describe_log("local")
    assert local.compacted_upto == 3


# --- rolls and flushes --------------------------------------------------------------------------------------


async def test_a_roll_closes_the_active_segments_that_have_records(bench: ServiceBench) -> None:
    admin = bench.client.admin
    await admin.create_topic("t", 3)
    await bench.append("t", [b"x"] * 3, 0)
    await bench.append("t", [b"x"] * 2, 2)
    for _ in range(2):
        rolled = await admin.roll("t")
        assert [(one.partition, one.active_base_offset) for one in rolled] == [(0, 3), (1, 0), (2, 2)]
    counts = [log.segment_count for log in await admin.describe_log("t")]
    assert counts == [2, 1, 2]
    await bench.append("t", [b"y"], 0)
    [only] = await admin.roll("t", [0])
    assert (only.partition, only.active_base_offset) == (0, 4)


async def test_a_flush_makes_records_durable_and_visible(bench: ServiceBench) -> None:
    admin = bench.client.admin
    await admin.create_topic("t", 2)
    await bench.append("t", [b"x"] * 3, 1)
    [log] = await admin.describe_log("t", [1])
    assert (log.recovery_point, log.log_end_offset) == (0, 3)
    flushed = await admin.flush("t")
    assert [(one.partition, one.recovery_point) for one in flushed] == [(0, 0), (1, 3)]
    [log] = await admin.describe_log("t", [1])
    assert log.recovery_point == 3


async def test_a_flush_wakes_readers_who_wait_for_durable_records(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 1, {"min.durability": "disk"})
    partition = bench.partition()
    batch = encode_batch([Record(0, 0, None, b"v")])
    await asyncio.to_thread(partition.log.appender.append_group, [batch], 1)
    assert partition.log.offsets.high_watermark == 0
    waiter = asyncio.Event()
    partition.signal.enter(waiter)
    await bench.client.admin.flush("t", [0])
    await asyncio.wait_for(waiter.wait(), PATIENCE_S)
    assert partition.log.offsets.high_watermark == 1


@pytest.mark.parametrize("call", ["roll", "flush"])
async def test_a_roll_and_a_flush_name_existing_partitions_once(bench: ServiceBench, call: str) -> None:
    run = getattr(bench.client.admin, call)
    await bench.client.admin.create_topic("t", 2)
    with pytest.raises(UnknownTopicOrPartitionError):
        await run("nope")
    with pytest.raises(UnknownTopicOrPartitionError):
        await run("t", [0, 2])
    with pytest.raises(InvalidRequestError) as caught:
        await run("t", [1, 0, 1])
    assert caught.value.fields == {"topic": "t", "partition": 1}


@pytest.mark.parametrize("call", ["roll", "flush"])
async def test_a_failed_partition_has_its_error_and_the_others_go_on(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    await bench.client.admin.create_topic("t", 2)
    for number in range(2):
        await bench.append("t", [b"x"], number)

    def refuse(*_: object, **__: object) -> None:
        raise DataDirectoryError("the disk is full", path="/secret")

    log = bench.partition("t", 0).log
    monkeypatch.setattr(*((log, "roll", refuse) if call == "roll" else (log.flusher, "flush", refuse)))
    failed, done = await getattr(bench.client.admin, call)("t")
    field = "active_base_offset" if call == "roll" else "recovery_point"
    assert (getattr(failed, field), getattr(done, field), done.error is not None) == (-1, 1, False)
    assert isinstance(failed.error, DataDirectoryError)


# --- lag and the server -------------------------------------------------------------------------------------


async def test_the_lag_is_what_the_store_does_not_have(bench: ServiceBench) -> None:
    admin = bench.client.admin
    await admin.create_topic("t", 2)
    await admin.create_topic("local", 1, {"remote.storage.enable": "false"})
    await bench.append("t", [b"x"] * 5, 0)
    await admin.upload()
    await bench.append("t", [b"y" * 100] * 2, 0)
    await admin.roll("t")
    await bench.append("t", [b"z"], 0)
    first, second = await admin.describe_log("t")
    waiting_bytes = sum(one.size_bytes for one in await admin.list_segments("t", 0) if one.base_offset >= 5)
    assert (first.pending_upload_record_count, first.pending_upload_bytes) == (3, waiting_bytes)
    assert waiting_bytes > 200
    assert (second.pending_upload_record_count, second.pending_upload_bytes) == (0, 0)
    # Deleted records wait no longer.
    await admin.delete_records("t", 0, 7)
    [first] = await admin.describe_log("t", [0])
    assert first.pending_upload_record_count == 1
    [local] = await admin.describe_log("local")
    assert (local.pending_upload_record_count, local.pending_upload_bytes) == (-1, -1)
    assert (local.earliest_pending_upload_offset, local.segment_count, local.slice_count) == (-1, 1, 0)


async def test_the_server_describes_itself(tmp_path: Path) -> None:
    clock = ManualClock()
    async with service_bench(tmp_path, clock=clock, max_partition_count=7) as bench:
        begin_ms = clock.now_ms()
        info = await bench.client.admin.server_info()
        assert (info.version, info.python_version) == (
            metadata.version("stratalog"),
            platform.python_version(),
        )
        assert (info.start_time_ms, info.uptime_ms) == (begin_ms, 0)
        assert info.store_url == bench.server.engine.tier.store.url
        assert info.store_id == (await bench.client.admin.tier_status()).store_id
        assert [(one.shard, one.epoch) for one in info.owned_shards] == [(0, 1)]
        settings = bench.server.settings
        assert info.limits == values.ServerLimits(
            max_request_bytes=settings.max_request_bytes,
            max_fetch_bytes=settings.max_fetch_bytes,
            max_fetch_wait_ms=60_000,
            max_partition_count=7,
            max_request_memory_bytes=512 << 20,
            max_append_call_count=1_000,
            max_read_call_count=1_000,
            max_admin_call_count=200,
        )
        clock.advance(90_000)
        info = await bench.client.admin.server_info()
        assert (info.start_time_ms, info.uptime_ms) == (begin_ms, 90_000)


async def test_a_server_that_was_replaced_owns_no_shard_and_changes_nothing(tmp_path: Path) -> None:
    store_url = f"file://{tmp_path}/store"
    async with service_bench(tmp_path / "a", store_url=store_url) as former:
        admin = former.client.admin
        await admin.create_topic("t", 1, {"remote.storage.enable": "false"})
        await former.append("t", [b"x"])
        async with service_bench(tmp_path / "b", store_url=store_url):
            await former.refresh()
            assert list((await admin.server_info()).owned_shards) == []
            with pytest.raises(LogStoreError) as refusal:
                await former.append("t", [b"x"])
            # It changes nothing any more.
            errors = [
                *(one.error for one in await admin.roll("t")),
                *(one.error for one in await admin.flush("t")),
            ]
            assert [error.code for error in errors if error is not None] == [refusal.value.code] * 2
            for refused in (
                partial(admin.delete_records_of, "t", {0: 1}),
                partial(admin.add_partitions, "t", 2),
                partial(admin.describe_topics, ["t"]),
                partial(admin.describe_configs, "t"),
                admin.list_topics,
            ):
                with pytest.raises(type(refusal.value)):
                    await refused()
            assert former.partition().log.offsets.log_start_offset == 0
            assert len(former.partition().log.reader.segments()) == 1


async def test_the_limit_of_the_server_bounds_a_topic_and_a_request(tmp_path: Path) -> None:
    """Another limit than the default one."""
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("wide", 4)
    async with service_bench(tmp_path, max_partition_count=2) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1)
        for refused in (
            partial(admin.create_topic, "u", 3),
            partial(admin.add_partitions, "t", 3),
            partial(admin.delete_records_of, "wide", dict.fromkeys(range(3), 0)),
        ):
            with pytest.raises(InvalidRequestError) as refusal:
                await refused()
            assert refusal.value.fields["max_partition_count"] == 2
        assert (await admin.add_partitions("t", 2)).partition_count == 2
        assert (await admin.add_partitions("wide", 4)).partition_count == 4, "the present number"
        with pytest.raises(InvalidRequestError):
            await admin.add_partitions("wide", 5)


@pytest.mark.parametrize(
    ("record", "commit"),
    [
        (None, ""),
        ('{"url": "file:///x", "dir_info": {}}', ""),
        ('{"url": "https://x", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}', "abc123"),
    ],
)
def test_the_commit_is_that_of_an_installation_from_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str | None, commit: str
) -> None:
    (tmp_path / "METADATA").write_text("Version: 9.9\n")
    if record is not None:
        (tmp_path / "direct_url.json").write_text(record)

    def found(_: str) -> metadata.Distribution:
        return metadata.PathDistribution(tmp_path)

    monkeypatch.setattr(metadata, "distribution", found)
    assert installed_version() == ("9.9", commit)


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "distribution", missing)
    assert installed_version() == ("", "")
