"""Sessions of consumers with a server whose answers are written here: what a consumer sends when it comes
back, and how it takes a topic that changes under it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from stratalog.base.errors import (
    CorruptRecordError,
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    LogStoreError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    StoppingError,
    UnknownTopicOrPartitionError,
)
from stratalog.client.client import Client
from stratalog.client.consuming.consumer import Consumer
from stratalog.client.errors import ClientClosedError
from stratalog.client.retry import RetryPolicy
from stratalog.record.native.consumer_records import ConsumerRecord
from stratalog.server.rpc.status import status_of_error
from stratalog.v1 import log_pb2
from tests.support.service.scripted_service import ScriptedService, answer, scripted
from tests.support.service.service_bench import PATIENCE_S, ServiceBench

QUICK = RetryPolicy(deadline_s=30, first_pause_s=0.001)
STOPPING = StoppingError("the server stops")


async def offsets_until(records: AsyncIterator[ConsumerRecord], count: int) -> list[tuple[int, int]]:
    """Partition and offset of the next records."""
    async with asyncio.timeout(PATIENCE_S):
        return [(one.partition, one.offset) for one in [await anext(records) for _ in range(count)]]


async def records_until_error(consumer: Consumer) -> tuple[list[int], LogStoreError]:
    """The offsets of the records, and the error that ends them."""
    found: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        try:
            async for records in consumer.batches():
                found += [record.offset for record in records]
        except LogStoreError as error:
            return found, error
    raise AssertionError("the consumer came to an end")


async def test_a_session_that_comes_back_names_topic_position_and_epoch() -> None:
    service = ScriptedService(
        [
            [answer(0, 3, epoch=1), answer(3, 2, epoch=4), STOPPING],
            [STOPPING],
            [answer(5, 2, epoch=5), answer(0, 1, partition=1)],
        ],
        partition_count=2,
    )
    broken: list[LogStoreError] = []
    async with scripted(service) as address, Client(address, retry=QUICK) as client:
        records = aiter(client.consume("t", on_broken=broken.append))
        found = await offsets_until(records, 8)
    assert found == [(0, offset) for offset in range(7)] + [(1, 0)]
    starts = [
        [
            (
                one.partition,
                one.start.offset,
                one.topic_id,
                one.HasField("last_fetched_epoch"),
                one.last_fetched_epoch,
            )
            for one in request.partitions
        ]
        for request in service.requests
    ]
    untouched = (1, 0, "id-1", False, 0)
    assert starts[0] == [(0, 0, "id-1", False, 0), untouched]
    assert starts[1:] == [[(0, 5, "id-1", True, 4), untouched]] * 2
    assert [type(error) for error in broken] == [StoppingError], "once each time that it breaks"


async def test_the_epoch_at_the_end_of_an_answer_is_the_servers() -> None:
    """Compaction may have left no batch of the last epoch before the position."""
    service = ScriptedService([[answer(0, 5, epoch=4, last_epoch=6), STOPPING], [answer(5, 1, last_epoch=6)]])
    async with scripted(service) as address, Client(address, retry=QUICK) as client:
        await offsets_until(aiter(client.consume("t", start=0)), 6)
    assert [one.last_fetched_epoch for one in service.requests[1].partitions if one.partition == 0] == [6]


async def test_new_partitions_appear_from_their_log_starts() -> None:
    service = ScriptedService([[answer(7, 1)], [answer(3, 2, partition=1)]])
    service.log_end_offset = 8
    async with scripted(service) as address, Client(address) as client:
        consumer = client.consume("t", start=7, metadata_max_age_s=0.001)
        records = aiter(consumer)
        assert await offsets_until(records, 1) == [(0, 7)]
        service.log_start_offset, service.partition_count = 3, 2
        assert await offsets_until(records, 2) == [(1, 3), (1, 4)]
        assert consumer.positions == {0: 8, 1: 5}
    assert [(one.partition, one.start.offset) for one in service.requests[1].partitions] == [(0, 8), (1, 3)]


async def test_chosen_partitions_stay_as_they_are() -> None:
    service = ScriptedService([[answer(0, 1)]])
    async with scripted(service) as address, Client(address) as client:
        records = aiter(client.consume("t", partitions=[0], metadata_max_age_s=0.001))
        await offsets_until(records, 1)
        service.partition_count = 2
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(records), 0.1)
    assert len(service.requests) == 1


@pytest.mark.parametrize("where", ["answer", "refresh", "begin"])
async def test_another_topic_of_the_name_is_noticed(where: str) -> None:
    later = answer(1, 1, topic_id="id-2" if where == "answer" else "")
    service = ScriptedService([[answer(0, 1, topic_id="id-1"), *([later] if where == "answer" else [])]])
    async with scripted(service) as address, Client(address) as client:
        stored_id = "id-0" if where == "begin" else ""
        consumer = client.consume("t", topic_id=stored_id, metadata_max_age_s=0.001)
        if where == "refresh":
            assert await offsets_until(aiter(consumer), 1) == [(0, 0)]
            assert consumer.topic_id == "id-1"
            service.topic_id = "id-2"
        found, error = await records_until_error(consumer)
    assert found == ([0] if where == "answer" else [])
    assert isinstance(error, InconsistentTopicIdError)
    expected = ("id-0", "id-1") if where == "begin" else ("id-1", "id-2")
    assert (error.fields["topic_id"], error.fields["current_topic_id"]) == expected


@pytest.mark.parametrize(
    "error",
    [
        LogTruncatedError("the log parted", end_offset=1, offset=2, last_fetched_epoch=3),
        OffsetOutOfRangeError("the offset is gone", offset=2, log_start_offset=7),
        InconsistentTopicIdError("another topic", topic="t", topic_id="id-1", current_topic_id="id-2"),
    ],
    ids=lambda error: error.code,
)
async def test_an_error_of_a_partition_is_raised_with_its_fields(error: LogStoreError) -> None:
    service = ScriptedService([[answer(0, 2), STOPPING], [error]])
    async with scripted(service) as address, Client(address, retry=QUICK) as client:
        consumer = client.consume("t")
        found, raised = await records_until_error(consumer)
    assert (found, type(raised), raised.fields) == ([0, 1], type(error), error.fields)
    assert consumer.positions == {0: 2}


@pytest.mark.parametrize(
    "error",
    [
        LogTruncatedError("the log parted", end_offset=1),
        OffsetOutOfRangeError("the offset is gone", topic="t", partition=1, offset=2),
    ],
    ids=lambda error: error.code,
)
async def test_the_error_of_an_answer_names_its_partition(error: LogStoreError) -> None:
    failed = log_pb2.FetchedPartition(topic="t", partition=1, error=status_of_error(error))
    service = ScriptedService([[answer(0, 2), failed]], partition_count=2)
    async with scripted(service) as address, Client(address) as client:
        found, raised = await records_until_error(client.consume("t"))
    assert (found, type(raised)) == ([0, 1], type(error))
    assert raised.fields == {"topic": "t", "partition": 1, **error.fields}


async def test_a_damaged_batch_is_refused_behind_the_records_before_it() -> None:
    damaged = answer(3, 2, partition=1)
    damaged.batches = damaged.batches[:-1] + b"x"
    service = ScriptedService([[answer(0, 3, partition=1), damaged]], partition_count=2)
    async with scripted(service) as address, Client(address) as client:
        consumer = client.consume("t")
        found, error = await records_until_error(consumer)
    assert (found, type(error)) == ([0, 1, 2], CorruptRecordError)
    place = {"topic": "t", "partition": 1, "base_offset": 3}
    assert place.items() <= error.fields.items()
    assert consumer.positions == {0: 0, 1: 3}


async def test_a_server_that_ends_sessions_without_a_word_is_left_at_the_deadline() -> None:
    service = ScriptedService([])
    service.close()
    impatient = RetryPolicy(deadline_s=0.05, first_pause_s=0.001)
    async with scripted(service) as address, Client(address, retry=impatient) as client:
        found, error = await records_until_error(client.consume("t"))
    assert (found, error.code) == ([], "SERVER_UNAVAILABLE")
    assert len(service.requests) > 1


async def test_a_consumer_begins_when_the_server_is_back() -> None:
    """A call has little patience, and the consumer more."""
    service = ScriptedService([[answer(0, 1)]])
    service.refusal = STOPPING
    broken: list[LogStoreError] = []
    async with scripted(service) as address, Client(address, retry=RetryPolicy(deadline_s=0)) as client:
        records = aiter(client.consume("t", retry=QUICK, on_broken=broken.append))
        waiting = asyncio.ensure_future(offsets_until(records, 1))
        while service.refused_count < 3:
            await asyncio.wait((waiting,), timeout=0.001)
            assert not waiting.done(), "it waits"
        service.refusal = None
        assert await waiting == [(0, 0)]
    assert [type(error) for error in broken] == [StoppingError]


async def test_a_table_begins_when_the_server_is_back() -> None:
    service = ScriptedService([[answer(0, 1)]])
    service.log_end_offset, service.refusal = 1, STOPPING
    async with scripted(service) as address, Client(address, retry=RetryPolicy(deadline_s=0)) as client:
        table = client.table("t", retry=QUICK)
        entering = asyncio.ensure_future(table.__aenter__())
        while service.refused_count < 3:
            await asyncio.wait((entering,), timeout=0.001)
            assert not entering.done(), "it waits"
        service.refusal = None
        async with asyncio.timeout(PATIENCE_S):
            assert (await entering)["k"] == b"0"
        await table.aclose()


async def test_a_consumer_that_cannot_begin_fails_at_its_deadline() -> None:
    service = ScriptedService([])
    service.refusal = STOPPING
    impatient = RetryPolicy(deadline_s=0.05, first_pause_s=0.001)
    async with scripted(service) as address, Client(address, retry=impatient) as client:
        found, error = await records_until_error(client.consume("t"))
        with pytest.raises(StoppingError):
            async with asyncio.timeout(PATIENCE_S), client.table("t"):
                pass
    assert (found, type(error)) == ([], StoppingError)


async def test_a_server_that_fences_its_own_epoch_is_asked_with_pauses() -> None:
    fenced = log_pb2.FetchedPartition(
        topic="t", partition=0, error=status_of_error(FencedLeaderEpochError("replaced", leader_epoch=3))
    )
    service = ScriptedService([[fenced]] * 10_000)
    service.log_end_offset, service.leader_epoch = 1, 3
    slow = RetryPolicy(deadline_s=0.3, first_pause_s=0.1)
    async with scripted(service) as address, Client(address, retry=slow) as client:
        found, error = await records_until_error(client.consume("t", until="latest"))
    assert (found, type(error)) == ([], FencedLeaderEpochError)
    assert 2 <= len(service.requests) <= 5, "the pauses are at least 50, 100 and 200 milliseconds"


@pytest.mark.parametrize("until", [1, "latest"])
async def test_offsets_of_another_topic_of_the_name_are_not_compared(until: int | str) -> None:
    """The topic is made again between the look at it and the look at its offsets, which it does not have."""
    service = ScriptedService([])
    service.offsets_topic_id = "id-2"
    async with scripted(service) as address, Client(address) as client:
        found, error = await records_until_error(client.consume("t", start=5, until=until))
    assert (found, type(error)) == ([], InconsistentTopicIdError)
    assert (error.fields["topic_id"], error.fields["current_topic_id"]) == ("id-1", "id-2")


@pytest.mark.parametrize("is_made_again", [True, False])
async def test_a_topic_that_is_deleted_during_a_session(is_made_again: bool) -> None:
    service = ScriptedService([[UnknownTopicOrPartitionError("there is no such topic")]])
    async with scripted(service) as address, Client(address, retry=QUICK) as client:
        consumer = client.consume("t")
        if is_made_again:
            # The session breaks before the other topic is there; its reader asks later.
            service.may_play.clear()
            begun = asyncio.ensure_future(anext(aiter(consumer)))
            while not service.requests:
                await asyncio.wait((begun,), timeout=0.001)
            begun.cancel()
            await asyncio.wait((begun,))
            arriving = consumer._follower._arriving  # pyright: ignore[reportPrivateUsage]  # goes on by itself
            assert arriving is not None
            service.may_play.set()
            await asyncio.wait((arriving,))
            service.topic_id = "id-2"
        found, error = await records_until_error(consumer)
    expected = InconsistentTopicIdError if is_made_again else UnknownTopicOrPartitionError
    assert (found, type(error)) == ([], expected)


async def test_a_server_that_ends_sessions_without_a_word_is_left_for_another(bench: ServiceBench) -> None:
    await bench.client.topics.create("t")
    await bench.append("t", [b"0"])
    # Both are servers of one store.
    [topic] = (await bench.client.metadata(["t"])).topics
    service = ScriptedService([], topic_id=topic.topic_id)
    service.close()
    addresses = f"%s,{bench.client.address}"
    async with scripted(service) as silent, Client(addresses % silent, retry=QUICK) as client:
        assert await offsets_until(aiter(client.consume("t")), 1) == [(0, 0)]
        assert client.address == bench.client.address
        assert len(service.requests) == 1


async def test_the_client_closed_between_two_iterations(bench: ServiceBench) -> None:
    await bench.client.topics.create("t")
    await bench.append("t", [b"0"])
    client = Client(bench.client.address)
    consumer = client.consume("t")
    assert await offsets_until(aiter(consumer), 1) == [(0, 0)]
    await consumer.aclose()
    await client.close()
    with pytest.raises(ClientClosedError):
        await offsets_until(aiter(consumer), 1)
    with pytest.raises(ClientClosedError):
        await consumer.seek(0, 0)
