"""Fetch and FetchStream over a loopback connection: what comes back, when, and from which tier."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import grpc
import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    NotOwnerError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import Durability, TopicPartition
from stratalog.client.errors import error_of_status
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import FetchAnswer, FetchedPartition, FetchStart, fetch_request, fetched_parts
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.fetch.fetch_cursor import FetchCursor
from stratalog.server.fetch.fetch_session import FetchSession
from stratalog.server.rpc.log_servicer import MAX_FETCH_PARTITION_COUNT
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.v1 import log_pb2, log_pb2_grpc
from tests.support.service.error_details import error_info
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench, until

T0 = TopicPartition("t", 0)


def values_of(answer: FetchAnswer, fetch_offset: int) -> list[bytes | None]:
    return [record.value for part in fetched_parts(answer, fetch_offset) for record in part.records]


async def fetch_one(bench: ServiceBench, offset: int, **limits: Any) -> FetchedPartition:
    [answer] = await bench.client.fetch({T0: offset}, **limits)
    return answer


def objects_of(*kinds: type[object]) -> list[object]:
    """Those of these types that are there, of other tests too; the list keeps them."""
    return [one for one in gc.get_objects() if isinstance(one, kinds)]


async def with_topic(bench: ServiceBench, partition_count: int = 1, durability: str = "os") -> None:
    await bench.client.admin.create_topic("t", partition_count, {"min.durability": durability})


async def test_a_fetch_begins_at_the_record_that_was_asked_for(bench: ServiceBench) -> None:
    await with_topic(bench)
    await bench.append("t", [b"0", b"1", b"2"])
    await bench.append("t", [b"3", b"4"])
    for offset in range(6):
        answer = await fetch_one(bench, offset)
        assert values_of(answer, offset) == [b"%d" % number for number in range(offset, 5)]
        assert (answer.next_fetch_offset, answer.high_watermark, answer.last_stable_offset) == (5, 5, 5)


async def test_calls_that_have_ended_leave_no_memory_to_the_garbage_collector(bench: ServiceBench) -> None:
    await with_topic(bench)
    await bench.append("t", [b"0"])
    gc.collect()
    former = objects_of(FetchSession)
    gc.disable()
    try:
        await fetch_one(bench, 0)
        await fetch_one(bench, 1, max_wait_ms=1)
        partition = log_pb2.FetchPartition(topic="t", start=log_pb2.Position(offset=0))
        call = bench.client.log.FetchStream(log_pb2.FetchRequest(partitions=[partition]))
        await call.read()
        call.cancel()
        await until(lambda: len(objects_of(FetchSession)) <= len(former))
    finally:
        gc.enable()


async def test_one_failing_partition_does_not_hide_the_others(bench: ServiceBench) -> None:
    await with_topic(bench, 2)
    await bench.append("t", [b"x"], partition=1)
    positions = {
        TopicPartition("t", 1): 0,
        TopicPartition("nope", 0): 0,
        TopicPartition("t", 7): 0,
        T0: 9,
    }
    answers = await bench.client.fetch(positions, max_wait_ms=60_000)
    assert [answer.error and answer.error.code for answer in answers] == [
        None,
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "OFFSET_OUT_OF_RANGE",
    ]
    assert values_of(answers[0], 0) == [b"x"]


async def test_a_fetch_without_sense_is_refused(bench: ServiceBench) -> None:
    for request in (
        log_pb2.FetchRequest(),
        log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="t")], max_bytes=-1),
        log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="t")], max_wait_ms=-1),
        log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="t", max_bytes=-1)]),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bench.client.log.Fetch(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_answer_keeps_to_its_budget_and_to_whole_batches(bench: ServiceBench) -> None:
    await with_topic(bench)
    for number in range(10):
        await bench.append("t", [bytes([number]) * 100])
    size_bytes = len((await fetch_one(bench, 0)).batches) // 10
    for room in (1, size_bytes, 2 * size_bytes + 1, 5 * size_bytes - 1):
        answer = await fetch_one(bench, 0, max_bytes=room)
        assert len(answer.batches) == max(1, room // size_bytes) * size_bytes
        assert len((await fetch_one(bench, 0, partition_max_bytes=room)).batches) == len(answer.batches)


async def test_the_budget_is_shared_by_the_partitions_in_turn(bench: ServiceBench) -> None:
    await with_topic(bench, 4)
    for partition in range(4):
        await bench.append("t", [bytes(1000)], partition=partition)
    positions = {TopicPartition("t", partition): 0 for partition in range(4)}
    answers = await bench.client.fetch(positions, max_bytes=2500)
    assert [bool(answer.batches) for answer in answers] == [True, True, False, False]
    assert [answer.next_fetch_offset for answer in answers] == [1, 1, 0, 0]


# --- byte budgets ------------------------------------------------------------------------------------------


async def test_a_session_reaches_every_partition_whatever_the_budget(bench: ServiceBench) -> None:
    await with_topic(bench, 4)
    for partition in range(4):
        for _ in range(5):
            await bench.append("t", [bytes(1000)], partition=partition)
    positions = {TopicPartition("t", partition): 0 for partition in range(4)}
    reached: dict[int, int] = {}
    order: list[int] = []
    async for response in bench.fetch_stream(positions, max_bytes=1):
        for answer in response.partitions:
            reached[answer.partition] = answer.next_fetch_offset
            order.append(answer.partition)
        if sum(reached.values()) == 20:
            break
    assert set(order[:4]) == {0, 1, 2, 3}, "every partition had its turn before any had its second"


# --- waiting -----------------------------------------------------------------------------------------------


async def test_a_long_poll_wakes_when_records_arrive(bench: ServiceBench) -> None:
    await with_topic(bench)
    poll = asyncio.create_task(fetch_one(bench, 0, max_wait_ms=60_000))
    await bench.until_waiting(1)
    await bench.append("t", [b"x"])
    answer = await asyncio.wait_for(poll, PATIENCE_S)
    assert values_of(answer, 0) == [b"x"]
    await bench.until_waiting(0)


async def test_a_long_poll_ends_empty_at_its_deadline(bench: ServiceBench) -> None:
    await with_topic(bench)
    for max_wait_ms in (0, 30):
        answer = await fetch_one(bench, 0, max_wait_ms=max_wait_ms)
        assert (answer.batches, answer.next_fetch_offset, answer.high_watermark) == (b"", 0, 0)
        assert answer.error is None


async def test_a_long_poll_waits_for_as_much_as_it_asked_for(bench: ServiceBench) -> None:
    await with_topic(bench)
    poll = asyncio.create_task(fetch_one(bench, 0, max_wait_ms=60_000, min_bytes=3000))
    await bench.until_waiting(1)
    for _ in range(3):
        assert not poll.done()
        await bench.append("t", [bytes(1000)])
    answer = await asyncio.wait_for(poll, PATIENCE_S)
    assert answer.next_fetch_offset == 3


async def test_a_poll_for_more_than_fits_does_not_wait_in_vain(bench: ServiceBench) -> None:
    await with_topic(bench)
    for _ in range(4):
        await bench.append("t", [bytes(1000)])
    limits = {"max_wait_ms": 60_000, "min_bytes": 1 << 20, "partition_max_bytes": 1500}
    answer = await asyncio.wait_for(fetch_one(bench, 0, **limits), PATIENCE_S)
    assert answer.next_fetch_offset == 1


async def test_records_that_could_still_be_lost_are_not_shown(bench: ServiceBench) -> None:
    await with_topic(bench, durability="disk")
    partition = bench.partition()
    partition.log.appender.append_as_leader(encode_batch([Record(0, 0, None, b"x")]), 1)
    answer = await fetch_one(bench, 0)
    assert (answer.batches, answer.high_watermark) == (b"", 0)
    poll = asyncio.create_task(fetch_one(bench, 0, max_wait_ms=60_000))
    await bench.until_waiting(1)
    await bench.client.append("t", 0, [Record(0, 0, None, b"y")], durability=Durability.OS)
    assert values_of(await asyncio.wait_for(poll, PATIENCE_S), 0) == [b"x", b"y"]


async def test_a_poll_that_is_cancelled_leaves_no_waiter(bench: ServiceBench) -> None:
    await with_topic(bench)
    poll = asyncio.create_task(fetch_one(bench, 0, max_wait_ms=60_000))
    await bench.until_waiting(1)
    poll.cancel()
    await bench.until_waiting(0)


# --- sessions ----------------------------------------------------------------------------------------------


async def test_a_session_follows_what_is_appended(bench: ServiceBench) -> None:
    await with_topic(bench, 2)
    seen: list[bytes | None] = []
    next_value = 0
    async with asyncio.timeout(PATIENCE_S):
        await bench.append("t", [b"0"])
        async for records in bench.client.consume("t").batches():
            seen += [record.value for record in records]
            next_value += 1
            if next_value == 20:
                break
            await bench.append("t", [b"%d" % next_value], partition=next_value % 2)
    assert seen == [b"%d" % number for number in range(20)]


async def test_a_partition_that_fails_leaves_the_session_and_the_others_go_on(bench: ServiceBench) -> None:
    await with_topic(bench, 2)
    positions = {T0: 9, TopicPartition("t", 1): 0}
    errors: list[str] = []
    values: list[bytes | None] = []
    async with asyncio.timeout(PATIENCE_S):
        async for response in bench.fetch_stream(positions):
            for answer in response.partitions:
                if answer.HasField("error"):
                    errors.append(error_info(answer.error).reason)
                    await bench.append("t", [b"a"], partition=1)
                else:
                    values += values_of(answer, 0)
            if values:
                break
        assert (errors, values) == (["OFFSET_OUT_OF_RANGE"], [b"a"])
        # A session without a partition left ends.
        [response] = [response async for response in bench.fetch_stream({T0: 5})]
    assert [error_info(answer.error).reason for answer in response.partitions] == ["OFFSET_OUT_OF_RANGE"]


async def test_deleting_a_topic_ends_its_readers(bench: ServiceBench) -> None:
    await with_topic(bench)
    poll = asyncio.create_task(fetch_one(bench, 0, max_wait_ms=60_000))
    await bench.until_waiting(1)
    await bench.client.admin.delete_topic("t")
    answer = await asyncio.wait_for(poll, PATIENCE_S)
    assert isinstance(answer.error, UnknownTopicOrPartitionError)


async def test_a_shutdown_ends_polls_and_sessions_at_once(tmp_path: Path) -> None:
    async with service_bench(tmp_path, shutdown_grace_s=PATIENCE_S) as bench:
        await with_topic(bench)
        poll = asyncio.create_task(fetch_one(bench, 0, max_wait_ms=60_000))
        session = bench.client.log.FetchStream(
            log_pb2.FetchRequest(
                partitions=[log_pb2.FetchPartition(topic="t", start=log_pb2.Position(offset=0))]
            )
        )
        await bench.until_waiting(2)
        stopping = asyncio.create_task(bench.server.stop())
        assert (await poll).batches == b""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await session.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.wait_for(stopping, PATIENCE_S / 2)


async def test_a_replaced_server_refuses_readers_and_writers(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await with_topic(bench)
        poll = asyncio.create_task(fetch_one(bench, 0, max_wait_ms=60_000))
        await bench.until_waiting(1)
        store = f"file://{tmp_path}/data.store"
        async with service_bench(tmp_path / "other", store_url=store):
            await bench.refresh()
            assert isinstance((await asyncio.wait_for(poll, PATIENCE_S)).error, NotOwnerError)
            with pytest.raises(NotOwnerError):
                await bench.append("t", [b"x"])
            with pytest.raises(NotOwnerError):
                await bench.client.admin.upload()
            with pytest.raises(NotOwnerError):
                await bench.client.admin.create_topic("u")


# --- across tiers ------------------------------------------------------------------------------------------


TIERED_PARTITION_COUNT = 500
WIDE_BYTES = 32 << 20


async def tiered_partitions(bench: ServiceBench) -> dict[TopicPartition, int]:
    """Many partitions with a record each, in the object store alone; where they begin."""
    await with_topic(bench, TIERED_PARTITION_COUNT)
    for partition in range(TIERED_PARTITION_COUNT):
        await bench.append("t", [b"%d" % partition], partition=partition)
    await bench.client.admin.upload(delete_local=True)
    return {TopicPartition("t", partition): 0 for partition in range(TIERED_PARTITION_COUNT)}


async def test_more_tiered_partitions_than_reads_may_wait_are_read_without_an_error(tmp_path: Path) -> None:
    disk, store = MemoryFileSystem(), MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, filesystem=disk, store=store) as bench:
        positions = await tiered_partitions(bench)
        values: dict[int, list[bytes | None]] = {}
        fetch_count = 0
        while len(values) < TIERED_PARTITION_COUNT:
            fetch_count += 1
            assert fetch_count < 10, "a large part of them at a time"
            for answer in await bench.client.fetch(positions, max_bytes=WIDE_BYTES):
                assert answer.error is None
                topic_partition = TopicPartition("t", answer.partition)
                if answer.batches:
                    values[answer.partition] = values_of(answer, positions[topic_partition])
                positions[topic_partition] = answer.next_fetch_offset
        assert values == {partition: [b"%d" % partition] for partition in range(TIERED_PARTITION_COUNT)}
        assert fetch_count > 1, "more than fit into one"

        async def read_all() -> list[list[bytes | None]]:
            return await bench.values("t")

        # Two sessions at once leave each other room.
        for records in await asyncio.gather(read_all(), read_all()):
            assert records == [[b"%d" % partition] for partition in range(TIERED_PARTITION_COUNT)]


@pytest.mark.parametrize("offset", [-1, 4, 1 << 62])
async def test_an_offset_outside_the_log_is_refused(bench: ServiceBench, offset: int) -> None:
    await bench.client.admin.create_topic("t")
    await bench.append("t", [b"a", b"b", b"c"])
    request = fetch_request({T0: FetchStart(offset)}, 0, 1, 0, 0, IsolationLevel.READ_UNCOMMITTED)
    [answer] = (await bench.client.log.Fetch(request)).partitions
    assert isinstance(error_of_status(answer.error), OffsetOutOfRangeError)


async def test_the_errors_of_as_many_partitions_as_a_fetch_may_name_fit_an_answer(
    bench: ServiceBench,
) -> None:
    name = "n" * 249
    await bench.client.admin.create_topic(name)
    numbers = range(1, MAX_FETCH_PARTITION_COUNT + 1)
    request = log_pb2.FetchRequest(
        partitions=[log_pb2.FetchPartition(topic=name, partition=number) for number in numbers]
    )
    # A client takes 4 MiB unless it asks for more, as ours does.
    async with grpc.aio.insecure_channel(bench.client.address) as channel:
        stub = log_pb2_grpc.LogServiceStub(channel)
        response = await stub.Fetch(request)
        async for page in stub.FetchStream(request):
            assert 0 < page.ByteSize() <= 4 << 20
            break
    assert [(one.topic, one.partition) for one in response.partitions] == [(name, one) for one in numbers]
    errors = [error_of_status(one.error) for one in response.partitions]
    assert {type(error) for error in errors} == {UnknownTopicOrPartitionError}
    assert errors[0].fields == {"topic": name, "partition": 1, "partition_count": 1}
    assert errors[-1].fields == {}


@pytest.mark.parametrize("call", ["Fetch", "Read"])
async def test_a_failed_call_leaves_nothing_for_the_collector_of_garbage(
    bench: ServiceBench, call: str
) -> None:
    """Thousands of partitions may fail in one call, and the collector comes rarely."""
    await with_topic(bench)
    kept = (FetchCursor, OffsetOutOfRangeError, UnknownTopicOrPartitionError)
    behind = log_pb2.Position(offset=7)
    gc.collect()
    former = objects_of(*kept)
    gc.disable()
    try:
        if call == "Fetch":
            absent = [log_pb2.FetchPartition(topic="absent", partition=number) for number in range(20)]
            asked = [*absent, log_pb2.FetchPartition(topic="t", start=behind)]
            response = await bench.client.log.Fetch(log_pb2.FetchRequest(partitions=asked))
            assert all(one.HasField("error") for one in response.partitions)
        else:
            parts = [log_pb2.ReadPartition(partition=number, start=behind) for number in range(20)]
            read = log_pb2.ReadRequest(topic="t", partitions=parts)
            answers = [one async for answer in bench.client.log.Read(read) for one in answer.partitions]
            assert sum(one.HasField("error") for one in answers) == len(parts)
        await until(lambda: len(objects_of(*kept)) <= len(former))
    finally:
        gc.enable()
