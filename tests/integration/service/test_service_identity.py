"""Which log, whose log: no client reads or writes another log than it means, and finds the right one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    InvalidRequestError,
    LogStoreError,
    LogTruncatedError,
    NotOwnerError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from stratalog.client.client import Client
from stratalog.client.errors import error_of_call, error_of_status
from stratalog.client.messages import fetched_parts
from stratalog.log.append_info import AppendInfo
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.v1 import log_pb2
from tests.support.service.error_details import error_info, retry_info
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench

T = TypeVar("T")
FIRST = log_pb2.Position(offset=0)
LOCAL = {"remote.storage.enable": "false"}


def batch_of(*values: bytes) -> bytes:
    return encode_batch([Record(0, 0, None, value) for value in values])


async def append(client: Client, *values: bytes, **identity: Any) -> log_pb2.AppendResponse:
    request = log_pb2.AppendRequest(topic="t", partition=0, batches=batch_of(*values), **identity)
    return await answered(client, client.log.Append(request))


async def append_in_stream(client: Client, *values: bytes, **identity: Any) -> log_pb2.AppendResponse:
    request = log_pb2.AppendStreamRequest(
        topic="t", partition=0, batches=batch_of(*values), sequence=1, **identity
    )
    call = client.log.AppendStream(iter([request]))
    [response] = [one async for one in call]
    if response.HasField("status"):
        raise error_of_status(response.status)
    return response.ack


async def fetch(client: Client, offset: int = 0, **identity: Any) -> log_pb2.FetchedPartition:
    """The answer of Fetch; that of a FetchStream must be the same."""
    partition = log_pb2.FetchPartition(topic="t", start=log_pb2.Position(offset=offset), **identity)
    request = log_pb2.FetchRequest(partitions=[partition])
    [answer] = (await answered(client, client.log.Fetch(request))).partitions
    if answer.HasField("error") or answer.batches:
        call = client.log.FetchStream(request)
        response = await call.read()
        assert isinstance(response, log_pb2.FetchResponse)
        assert list(response.partitions) == [answer]
        call.cancel()
    if answer.HasField("error"):
        raise error_of_status(answer.error)
    return answer


async def latest(client: Client, **identity: Any) -> log_pb2.OffsetAnswer:
    query = log_pb2.OffsetQuery(topic="t", at=log_pb2.Position(spec=log_pb2.OFFSET_SPEC_LATEST), **identity)
    request = log_pb2.ListOffsetsRequest(queries=[query])
    [answer] = (await answered(client, client.log.ListOffsets(request))).answers
    if answer.HasField("error"):
        raise error_of_status(answer.error)
    return answer


async def answered(client: Client, call: Awaitable[T]) -> T:
    """The answer of a call. Raises LogStoreError."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise error_of_call(error, client.address) from None


async def metadata(client: Client, *topics: str) -> log_pb2.MetadataResponse:
    return await answered(client, client.log.Metadata(log_pb2.MetadataRequest(topics=topics)))


def values_of(answer: log_pb2.FetchedPartition, fetch_offset: int) -> list[bytes | None]:
    return [record.value for part in fetched_parts(answer, fetch_offset) for record in part.records]


NAMED = {"topic": "t", "partition": 0}


async def refusals(client: Client, **identity: Any) -> list[LogStoreError]:
    """The refusal of each call that has these fields of the identity."""
    calls = (
        append(client, b"refused", **identity),
        append_in_stream(client, b"refused", **identity),
        fetch(client, **identity),
        latest(client, **identity),
    )
    errors: list[LogStoreError] = []
    for call in calls:
        with pytest.raises(LogStoreError) as refusal:
            await call
        errors.append(refusal.value)
    return errors


async def test_every_answer_names_the_log(bench: ServiceBench) -> None:
    topic = await bench.client.admin.create_topic("t", 1)
    epoch = bench.partition().shard.claimed.epoch
    client = bench.client
    identities: list[dict[str, Any]] = [{}, {"topic_id": topic.topic_id}, {"leader_epoch": epoch}]
    for known in identities:
        for ack in (await append(client, b"a", **known), await append_in_stream(client, b"b", **known)):
            assert (ack.topic_id, ack.partition, ack.leader_epoch) == (topic.topic_id, 0, epoch)
        for found in (await fetch(client, **known), await latest(client, **known)):
            assert (found.topic_id, found.leader_epoch) == (topic.topic_id, epoch)
    answer = await fetch(client)
    assert answer.last_epoch == epoch
    assert (await fetch(client, answer.next_fetch_offset, last_fetched_epoch=epoch)).last_epoch == epoch
    assert (await latest(client)).offset == 6
    beyond = await unread(bench, 99)
    assert (error_info(beyond.error).reason, beyond.last_epoch) == ("OFFSET_OUT_OF_RANGE", -1)


async def test_a_topic_of_the_same_name_is_another_one(bench: ServiceBench) -> None:
    admin = bench.client.admin
    former = await admin.create_topic("t", 1)
    await append(bench.client, b"of the former")
    await admin.delete_topic("t")
    for error in await refusals(bench.client, topic_id=former.topic_id):
        assert isinstance(error, UnknownTopicOrPartitionError)
    topic = await admin.create_topic("t", 1)
    for error in await refusals(bench.client, topic_id=former.topic_id):
        assert isinstance(error, InconsistentTopicIdError)
        assert error.fields == {
            "topic": "t",
            "partition": 0,
            "topic_id": former.topic_id,
            "current_topic_id": topic.topic_id,
        }
    assert (await latest(bench.client, topic_id=topic.topic_id)).offset == 0


async def test_a_topic_id_that_is_none_is_another_one(bench: ServiceBench) -> None:
    topic = await bench.client.admin.create_topic("t", 1)
    for topic_id in ("x", topic.topic_id.upper()):
        for error in await refusals(bench.client, topic_id=topic_id):
            assert isinstance(error, InconsistentTopicIdError)


async def test_an_append_that_waits_for_a_deleted_topic_is_not_in_the_new_one(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = bench.client.admin
    await admin.create_topic("t", 1, LOCAL)
    appender = bench.partition().log.appender
    is_at_the_log, may_go_on = threading.Event(), threading.Event()
    append_group = appender.append_group

    def held(*arguments: Any, **options: Any) -> list[AppendInfo | LogStoreError]:
        is_at_the_log.set()
        assert may_go_on.wait(PATIENCE_S)
        return append_group(*arguments, **options)

    monkeypatch.setattr(appender, "append_group", held)
    waiting = [asyncio.create_task(append(bench.client, b"first"))]
    assert await asyncio.to_thread(is_at_the_log.wait, PATIENCE_S)
    waiting += [
        asyncio.create_task(append(bench.client, b"queued")),
        asyncio.create_task(append_in_stream(bench.client, b"in a stream")),
    ]
    memory = bench.server.append_memory
    async with asyncio.timeout(PATIENCE_S):
        while memory.held_bytes < 3 * len(batch_of(b"first")):
            await asyncio.sleep(0)
    await admin.delete_topic("t")
    topic = await admin.create_topic("t", 1, LOCAL)
    may_go_on.set()
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, UnknownTopicOrPartitionError)
    found = await latest(bench.client)
    assert (found.offset, found.topic_id) == (0, topic.topic_id)


async def test_a_stream_of_appends_does_not_go_on_in_another_topic(bench: ServiceBench) -> None:
    admin = bench.client.admin
    former = await admin.create_topic("t", 1)
    requests: asyncio.Queue[log_pb2.AppendStreamRequest] = asyncio.Queue()

    async def sent() -> AsyncIterator[log_pb2.AppendStreamRequest]:
        while True:
            yield await requests.get()

    call = bench.client.log.AppendStream(sent())
    responses = aiter(call)

    async def outcome(sequence: int, topic_id: str, *, resume: bool = False) -> str:
        request = log_pb2.AppendStreamRequest(
            topic="t",
            partition=0,
            batches=batch_of(b"x"),
            sequence=sequence,
            topic_id=topic_id,
            resume=resume,
        )
        requests.put_nowait(request)
        async with asyncio.timeout(PATIENCE_S):
            response = await anext(responses)
        assert response.sequence == sequence
        return error_info(response.status).reason if response.HasField("status") else response.ack.topic_id

    assert await outcome(1, former.topic_id) == former.topic_id
    await admin.delete_topic("t")
    topic = await admin.create_topic("t", 1)
    assert await outcome(2, former.topic_id) == "INCONSISTENT_TOPIC_ID"
    assert await outcome(3, topic.topic_id) == "PRECEDING_APPEND_FAILED"
    assert await outcome(4, topic.topic_id, resume=True) == topic.topic_id
    assert (await latest(bench.client)).offset == 1
    call.cancel()


async def test_a_session_ends_with_its_topic_and_never_goes_on_in_the_next_one(bench: ServiceBench) -> None:
    admin = bench.client.admin
    former = await admin.create_topic("t", 1)
    await append(bench.client, b"of the former")
    partition = log_pb2.FetchPartition(topic="t", topic_id=former.topic_id, start=FIRST)
    call = bench.client.log.FetchStream(log_pb2.FetchRequest(partitions=[partition]))
    responses = aiter(call)
    [answer] = (await anext(responses)).partitions
    assert values_of(answer, 0) == [b"of the former"]
    await bench.until_waiting(1)
    await admin.delete_topic("t")
    topic = await admin.create_topic("t", 1)
    await append(bench.client, b"of the next", b"too", topic_id=topic.topic_id)
    async with asyncio.timeout(PATIENCE_S):
        [last] = [one async for one in responses]
    [answer] = last.partitions
    assert error_info(answer.error).reason == "UNKNOWN_TOPIC_OR_PARTITION"
    assert (answer.topic_id, answer.batches) == (former.topic_id, b"")


async def test_a_negative_epoch_is_no_epoch(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 1)
    for error in await refusals(bench.client, leader_epoch=-1):
        assert isinstance(error, InvalidRequestError)


# --- another server takes over -----------------------------------------------------------------------------


@asynccontextmanager
async def two_servers(folder: Path) -> AsyncGenerator[tuple[ServiceBench, ServiceBench]]:
    """A server with five tiered records and three on its disk only, and its successor, which has two others
    behind the five. The former server has not noticed yet.
    """
    store = MemoryObjectStore(SystemClock())
    async with service_bench(folder / "a", store=store) as former:
        await former.client.admin.create_topic("t", 1)
        await append(former.client, b"0", b"1", b"2", b"3", b"4")
        await former.client.admin.upload()
        await append(former.client, b"5", b"6", b"7")
        async with service_bench(folder / "b", store=store) as owner:
            await append(owner.client, b"five", b"six")
            yield former, owner


async def test_an_epoch_of_another_server_is_refused(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (former, owner):
        for error in await refusals(owner.client, leader_epoch=1):
            assert isinstance(error, FencedLeaderEpochError)
            assert error.fields == {**NAMED, "leader_epoch": 1, "current_leader_epoch": 2}
        for error in await refusals(former.client, leader_epoch=2):
            assert isinstance(error, UnknownLeaderEpochError)
            assert error.fields == {**NAMED, "leader_epoch": 2, "current_leader_epoch": 1}
            assert error.retriable
            assert error.retry_delay_s > 0
        with pytest.raises(UnknownLeaderEpochError):
            await fetch(former.client, 5, last_fetched_epoch=2)
        assert (await latest(former.client)).offset == 8
        assert (await latest(owner.client)).offset == 7
        await former.refresh()
        known: list[dict[str, Any]] = [{}, {"leader_epoch": 1}, {"leader_epoch": 2}, {"topic_id": "newer"}]
        for identity in known:
            for error in await refusals(former.client, **identity):
                assert isinstance(error, NotOwnerError)
                claim = owner.partition().shard.owner
                successor = {"owner": claim.owner, "endpoint": owner.client.address, "epoch": 2}
                assert error.fields == {**NAMED, **successor}


async def test_a_reader_of_lost_records_goes_on_where_the_logs_part(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (former, owner):
        read = await fetch(former.client)
        assert (read.next_fetch_offset, read.last_epoch, read.leader_epoch) == (8, 1, 1)
        await append(owner.client, b"seven", b"eight", b"nine")
        request = log_pb2.FetchPartition(
            topic="t", start=log_pb2.Position(offset=8), leader_epoch=2, last_fetched_epoch=1
        )
        [refused] = (await owner.client.log.Fetch(log_pb2.FetchRequest(partitions=[request]))).partitions
        info = error_info(refused.error)
        assert info.reason == "LOG_TRUNCATED"
        assert dict(info.metadata) == {
            "topic": "t",
            "partition": "0",
            "epoch": "1",
            "end_offset": "5",
            "offset": "8",
            "last_fetched_epoch": "1",
        }
        assert retry_info(refused.error) is None
        answer = await fetch(owner.client, 5, last_fetched_epoch=1)
        assert values_of(answer, 5) == [b"five", b"six", b"seven", b"eight", b"nine"]
        assert (answer.next_fetch_offset, answer.last_epoch) == (10, 2)
        # A reader of the tiered records alone has lost nothing, and one at an earlier offset neither.
        for offset, epoch in ((3, 1), (5, 1), (6, 2), (10, 2), (0, -1), (8, -1)):
            assert not (await fetch(owner.client, offset, last_fetched_epoch=epoch)).HasField("error")
        await owner.client.admin.upload(delete_local=True)
        assert [(await fetch(owner.client, offset)).last_epoch for offset in (3, 5)] == [1, 2], "a slice each"
        for offset in (6, 10):
            with pytest.raises(LogStoreError) as tiered:
                await fetch(owner.client, offset, last_fetched_epoch=1)
            assert (tiered.value.code, tiered.value.fields["end_offset"]) == ("LOG_TRUNCATED", 5)


async def test_epochs_that_the_local_log_has_lost_are_read_from_the_object_store(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t", 1)
        await append(bench.client, b"0", b"1", b"2", b"3", b"4")
    async with service_bench(tmp_path, store=store) as bench:
        await append(bench.client, b"5", b"6")
        await bench.client.admin.upload(delete_local=True)
    (tmp_path / "data" / "t-0" / "leader-epoch-checkpoint").unlink()
    async with service_bench(tmp_path, store=store) as bench:
        assert bench.partition().log.state.epochs.entries == ()
        for offset, epoch in ((1, 1), (5, 1), (6, 2), (7, 2)):
            assert not (await fetch(bench.client, offset, last_fetched_epoch=epoch)).HasField("error")
        assert (await fetch(bench.client, 0)).last_epoch == 2
        with pytest.raises(LogTruncatedError) as refusal:
            await fetch(bench.client, 7, last_fetched_epoch=1)
        assert refusal.value.fields["end_offset"] == 5


async def test_a_session_ends_when_another_server_takes_over(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "a", store=store) as former:
        await former.client.admin.create_topic("t", 1)
        call = former.client.log.FetchStream(
            log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="t", leader_epoch=1, start=FIRST)])
        )
        await former.until_waiting(1)
        async with service_bench(tmp_path / "b", store=store, advertise="log.example:443") as owner:
            await append(owner.client, b"elsewhere")
            await former.refresh()
            async with asyncio.timeout(PATIENCE_S):
                [last] = [one async for one in call]
            [answer] = last.partitions
            info = error_info(answer.error)
            assert (info.reason, info.metadata["endpoint"]) == ("NOT_OWNER", "log.example:443")
            assert (answer.leader_epoch, answer.batches) == (1, b"")


# --- Metadata ----------------------------------------------------------------------------------------------


async def test_metadata_names_topics_limits_and_owners(bench: ServiceBench) -> None:
    admin = bench.client.admin
    second = await admin.create_topic("u", 2, {"max.message.bytes": "5000"})
    first = await admin.create_topic("t", 1)
    found = await metadata(bench.client)
    assert found.store_id == str(bench.server.engine.tier.identity.store_id)
    assert found.max_request_bytes == bench.server.settings.max_request_bytes
    assert [(one.topic, one.topic_id) for one in found.topics] == [
        ("t", first.topic_id),
        ("u", second.topic_id),
    ]
    assert found.topics[1].max_message_bytes == 5000
    epoch = bench.partition().shard.claimed.epoch
    assert [
        (one.partition, one.endpoint, one.leader_epoch, one.HasField("error"))
        for one in found.topics[1].partitions
    ] == [(number, bench.client.address, epoch, False) for number in range(2)]
    named = await metadata(bench.client, "u", "nope", "t")
    assert [one.topic for one in named.topics] == ["nope", "t", "u"]
    unknown = named.topics[0]
    assert error_info(unknown.error).reason == "UNKNOWN_TOPIC_OR_PARTITION"
    assert (unknown.topic_id, list(unknown.partitions)) == ("", [])
    with pytest.raises(InvalidRequestError):
        await metadata(bench.client, *(f"t{number}" for number in range(10_001)))
    with pytest.raises(InvalidRequestError) as twice:
        await metadata(bench.client, "u", "t", "u")
    assert twice.value.fields == {"topic": "u"}


async def test_metadata_of_a_server_that_was_replaced_name_its_successor(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (former, owner):
        newer = await owner.client.admin.create_topic("newer", 1)

        async def owners(bench: ServiceBench) -> list[tuple[str, int]]:
            [topic] = (await metadata(bench.client, "t")).topics
            assert topic.topic_id == str(owner.partition().topic_id_partition.topic_id)
            return [(one.endpoint, one.leader_epoch) for one in topic.partitions]

        assert await owners(former) == [(former.client.address, 1)], "it has not noticed yet"
        await former.refresh()
        assert await owners(former) == await owners(owner) == [(owner.client.address, 2)]
        [unknown] = (await metadata(former.client, "newer")).topics
        info = error_info(unknown.error)
        assert (info.reason, info.metadata["endpoint"]) == ("NOT_OWNER", owner.client.address)
        async with Client(info.metadata["endpoint"]) as client:
            [found] = (await metadata(client, "newer")).topics
            assert found.topic_id == newer.topic_id


async def test_metadata_say_why_a_partition_is_not_served(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 2)
        await bench.client.append("t", 0, [Record(0, 0, None, b"x")])
    [log] = (tmp_path / "data" / "t-0").glob("*.log")
    log.write_bytes(b"\0" * 8)
    async with service_bench(tmp_path) as bench:
        [topic] = (await metadata(bench.client, "t")).topics
        failures = [error_info(one.error).reason for one in topic.partitions]
        assert failures == [error_info((await unread(bench)).error).reason, ""]
        assert failures[0]
        assert {one.endpoint for one in topic.partitions} == {bench.client.address}
        assert str(tmp_path).encode() not in topic.SerializeToString()


async def unread(bench: ServiceBench, offset: int = 0) -> log_pb2.FetchedPartition:
    """The answer to a fetch that fails."""
    partition = log_pb2.FetchPartition(topic="t", start=log_pb2.Position(offset=offset))
    request = log_pb2.FetchRequest(partitions=[partition])
    [answer] = (await bench.client.log.Fetch(request)).partitions
    return answer
