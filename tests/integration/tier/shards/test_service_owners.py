"""Clients of two owners: a producer has one stream for each, and none waits for the other; calls of the
control plane go to the owner of each partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    InvalidRequestError,
    NotOwnerError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import Durability, TopicIdPartition
from stratalog.client.client import Client
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.retry import RetryPolicy
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.header import parse_header
from stratalog.record.record import Record
from stratalog.remote.store_layout import shard_of
from stratalog.server.append.append_pipeline import AppendPipeline
from tests.support.service.scripted_service import ScriptedService, scripted
from tests.support.service.server_process import ServerProcess
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench

PARTITION_COUNT = 4
PATIENT = RetryPolicy(deadline_s=PATIENCE_S, first_pause_s=0.001, max_pause_s=0.05)
SMALL_BATCHES: Any = {"batch_bytes": 200, "linger_ms": 0}


def numbers_by_shard(topic_id: str) -> tuple[list[int], list[int]]:
    """The partitions of shard 0, and those of shard 1."""
    shards = [shard_of(TopicIdPartition(UUID(topic_id), number), 2) for number in range(PARTITION_COUNT)]
    of_first, of_second = ([number for number, shard in enumerate(shards) if shard == one] for one in (0, 1))
    assert of_first
    assert of_second
    return of_first, of_second


async def values_of(client: Client, topic: str = "t") -> list[list[bytes | str | None]]:
    """The values of each partition, in order."""
    values: list[list[bytes | str | None]] = [[] for _ in range(PARTITION_COUNT)]
    async for record in client.consume(topic, until="latest"):
        values[record.partition].append(record.value)
    return values


@asynccontextmanager
async def two_owners(folder: Path) -> AsyncGenerator[tuple[ServiceBench, ServiceBench]]:
    """The servers of shard 0 and of shard 1, which know the topic t."""
    store = MemoryObjectStore(SystemClock())
    async with (
        service_bench(folder / "0", store=store, shard_count=2, own_shards=(0,)) as first,
        service_bench(folder / "1", store=store, own_shards=(1,)) as second,
    ):
        await first.client.admin.create_topic("t", PARTITION_COUNT)
        await second.refresh()
        await first.refresh()
        yield first, second


async def test_a_single_append_goes_to_the_owner_that_is_known(tmp_path: Path) -> None:
    async with two_owners(tmp_path) as (first, second):
        batch = encode_batch([Record(0, 1000, None, b"v")])
        async with Client(first.client.address, retry=PATIENT) as client:
            await client.owners.look_up(["t"])
            for is_outdated in (False, True):
                for number in range(PARTITION_COUNT):
                    if is_outdated:
                        # As before a move: each partition has the other server's address.
                        found = client.owners._endpoints["t"]  # pyright: ignore[reportPrivateUsage]  # an old answer
                        other = {first.client.address: second.client.address}.get(found[number])
                        found[number] = other or first.client.address
                    await client.append_batches("t", number, batch)
                    assert client.address == first.client.address
            assert await values_of(client) == [[b"v"] * 2] * PARTITION_COUNT


async def test_a_producer_has_one_stream_for_each_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream_count = 0
    answers = AppendPipeline.answers

    def counting(pipeline: AppendPipeline) -> Any:
        nonlocal stream_count
        stream_count += 1
        return answers(pipeline)

    async with two_owners(tmp_path) as (first, _), Client(first.client.address, retry=PATIENT) as client:
        producer = client.producer(**SMALL_BATCHES)
        for turn in range(5):
            for number in range(PARTITION_COUNT):
                producer.send("t", value=b"%d" % turn, partition=number)
            await producer.flush()
        monkeypatch.setattr(AppendPipeline, "answers", counting)
        deliveries = [
            producer.send("t", value=b"%d" % turn, partition=number)
            for turn in range(5, 205)
            for number in range(PARTITION_COUNT)
        ]
        await producer.flush()
        assert all(delivery.is_done for delivery in deliveries)
        # It knows the owners, and no batch comes to a wrong one.
        assert stream_count == 2
        await producer.close()
        assert await values_of(client) == [[b"%d" % turn for turn in range(205)]] * PARTITION_COUNT


@pytest.mark.parametrize("idempotent", [True, False])
async def test_an_owner_that_is_away_delays_its_own_partitions_only(tmp_path: Path, idempotent: bool) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "0", store=store, shard_count=2, own_shards=(0,)) as first:
        topic = await first.client.admin.create_topic("t", PARTITION_COUNT)
        of_first, of_second = numbers_by_shard(topic.topic_id)
        async with Client(first.client.address, retry=PATIENT) as client, asyncio.timeout(PATIENCE_S):
            producer = client.producer(**SMALL_BATCHES, idempotent=idempotent)

            def send(word: bytes, numbers: Sequence[int]) -> list[Any]:
                return [producer.send("t", value=word, partition=number) for number in numbers]

            async with service_bench(tmp_path / "1", store=store, own_shards=(1,)) as second:
                await first.refresh()
                await asyncio.gather(*send(b"before", range(PARTITION_COUNT)))
                await second.client.admin.upload()
            # No server has the second shard, and the other one's partitions do not wait for it.
            waiting = send(b"waits", of_second) + send(b"waits, too", of_second)
            for _ in range(20):
                await asyncio.gather(*send(b"meanwhile", of_first))
            assert not any(delivery.is_done for delivery in waiting)
            async with service_bench(tmp_path / "2", store=store, own_shards=(1,)):
                await first.refresh()
                await asyncio.gather(*waiting)
                await producer.close()
                values = await values_of(client)
        for number in of_first:
            assert values[number] == [b"before", *[b"meanwhile"] * 20]
        for number in of_second:
            assert values[number] == [b"before", b"waits", b"waits, too"]


async def test_an_owner_that_stays_away_fails_its_own_partitions_at_the_deadline(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "0", store=store, shard_count=2, own_shards=(0,)) as first:
        topic = await first.client.admin.create_topic("t", PARTITION_COUNT)
        of_first, of_second = numbers_by_shard(topic.topic_id)
        policy = RetryPolicy(deadline_s=0.5, first_pause_s=0.001, max_pause_s=0.05)
        async with Client(first.client.address, retry=PATIENT) as client, asyncio.timeout(PATIENCE_S):
            producer = client.producer(**SMALL_BATCHES, retry=policy)
            async with service_bench(tmp_path / "1", store=store, own_shards=(1,)):
                await first.refresh()
                for number in range(PARTITION_COUNT):
                    await producer.send("t", value=b"before", partition=number)
            lost = [producer.send("t", value=b"lost", partition=number) for number in of_second * 3]
            for outcome in await asyncio.gather(*lost, return_exceptions=True):
                assert isinstance(outcome, ServerUnavailableError)
                assert outcome.fields["outcome"] == "not stored"
            for number in of_first:
                assert (await producer.send("t", value=b"kept", partition=number)).offset == 1
            await producer.close()


async def test_a_batch_in_doubt_goes_to_the_next_owner_with_its_numbers() -> None:
    first, second, successor = (ScriptedService([], partition_count=2) for _ in range(3))
    async with (
        scripted(first) as one,
        scripted(successor) as last,
        Client(one, retry=PATIENT) as client,
        asyncio.timeout(PATIENCE_S),
    ):
        producer = client.producer(linger_ms=0)
        async with scripted(second) as other:
            first.endpoints = second.endpoints = (one, other)
            first.append_refusal = NotOwnerError("not here", endpoint=other)
            delivery = producer.send("t", value=b"in doubt", partition=1)
            # The owner takes the batch, does not answer, and is gone.
            await second.is_appended.wait()
            first.endpoints = (one, last)
        await successor.is_appended.wait()
        [refused], [doubted], [repeated] = first.appends, second.appends, successor.appends
        assert refused.batches == doubted.batches == repeated.batches
        header = parse_header(repeated.batches)
        assert (header.producer_id, header.base_sequence) == (first.producer_id, 0)
        assert not delivery.is_done
        producer.abandon()


@pytest.mark.parametrize("seed", [20261128])
async def test_a_killed_owner_loses_and_repeats_no_record_at_object_durability(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    turn_count = 70
    kill_turns = random.sample(range(20, turn_count - 20), 2)
    store_url = f"file://{tmp_path}/store"
    first = ServerProcess(
        f"{tmp_path}/0", store_url=store_url, options=("--shards", "2", "--own-shards", "0")
    )
    owners = [
        ServerProcess(f"{tmp_path}/{number}", store_url=store_url, options=("--own-shards", "1"))
        for number in range(1, 4)
    ]
    with ExitStack() as stack:
        stack.enter_context(first)
        stack.enter_context(owners[0])
        # It learns of the other one's claim.
        first.stop()
        first.start()
        async with Client(first.address, retry=PATIENT) as client, asyncio.timeout(2 * PATIENCE_S):
            await client.admin.create_topic("t", PARTITION_COUNT)
            producer = client.producer(**SMALL_BATCHES, durability=Durability.OBJECT)
            deliveries: list[Any] = []
            for turn in range(turn_count):
                if turn in kill_turns:
                    # Batches are on their way, and some of them are committed.
                    owners.pop(0).kill()
                    await asyncio.to_thread(stack.enter_context, owners[0])
                for number in range(PARTITION_COUNT):
                    await producer.ready()
                    deliveries.append(producer.send("t", value=str(turn), partition=number))
                if turn % 10 == 0:
                    await random.choice(deliveries)
            await producer.close()
            acks = [await delivery for delivery in deliveries]
            assert {ack.durability for ack in acks} == {Durability.OBJECT}
            expected = [b"%d" % turn for turn in range(turn_count)]
            assert await values_of(client) == [expected] * PARTITION_COUNT


async def test_calls_about_partitions_go_to_their_owners(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with (
        service_bench(tmp_path / "0", store=store, shard_count=2, own_shards=(0,)) as first,
        service_bench(tmp_path / "1", store=store, own_shards=(1,)) as second,
    ):
        await first.refresh()
        # One of the servers owns nothing of a topic of one partition.
        counts = {"t": PARTITION_COUNT, "one": 1}
        for topic, count in counts.items():
            await first.client.admin.create_topic(topic, count)
        await second.refresh()
        for end_offset, bench in enumerate((first, second), 1):
            async with Client(bench.client.address, retry=PATIENT) as client:
                for topic, count in counts.items():
                    numbers = list(range(count))
                    for number in numbers:
                        await client.append(topic, number, [Record(0, 1000, b"k", b"v")])
                    logs = await client.admin.describe_log(topic)
                    assert [(one.partition, one.log_end_offset, one.offline) for one in logs] == [
                        (number, end_offset, None) for number in numbers
                    ]
                    rolled = await client.admin.roll(topic)
                    assert [(one.partition, one.active_base_offset, one.error) for one in rolled] == [
                        (number, end_offset, None) for number in numbers
                    ]
                    flushed = await client.admin.flush(topic, numbers[::-1])
                    assert [(one.partition, one.recovery_point, one.error) for one in flushed] == [
                        (number, end_offset, None) for number in numbers[::-1]
                    ]
                    for place in ("latest", end_offset):
                        deleted = await client.admin.delete_records_of(topic, dict.fromkeys(numbers, place))
                        assert [(one.partition, one.log_start_offset, one.error) for one in deleted] == [
                            (number, end_offset, None) for number in numbers
                        ]
                    with pytest.raises(InvalidRequestError):
                        await client.admin.roll(topic, [0, 0])
                    with pytest.raises(UnknownTopicOrPartitionError):
                        await client.admin.flush(topic, [count])


async def test_a_partition_whose_owner_is_away_is_described_as_offline(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "0", store=store, shard_count=2, own_shards=(0,)) as first:
        topic = await first.client.admin.create_topic("t", PARTITION_COUNT)
        of_first, of_second = numbers_by_shard(topic.topic_id)
        async with Client(first.client.address, retry=RetryPolicy(deadline_s=0.5)) as client:
            async with service_bench(tmp_path / "1", store=store, own_shards=(1,)):
                await first.refresh()
                assert all(one.offline is None for one in await client.admin.describe_log("t"))
            logs = await client.admin.describe_log("t")
            assert [one.partition for one in logs if one.offline is None] == of_first
            assert [one.partition for one in logs if one.offline is not None] == of_second
            with pytest.raises(ServerUnavailableError):
                await client.admin.roll("t")
            assert [one.error for one in await client.admin.roll("t", of_first)] == [None] * len(of_first)


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
async def test_an_owner_that_does_not_know_the_topic_yet_learns_of_it(tmp_path: Path, is_first: bool) -> None:
    store = MemoryObjectStore(SystemClock())
    async with (
        service_bench(tmp_path / "0", store=store, shard_count=2, own_shards=(0,)) as first,
        service_bench(tmp_path / "1", store=store, own_shards=(1,)) as second,
    ):
        await first.refresh()
        await first.client.admin.create_topic("t", PARTITION_COUNT)
        address = (first if is_first else second).client.address
        async with (
            Client(address, retry=PATIENT) as client,
            client.producer(**SMALL_BATCHES) as producer,
            asyncio.timeout(PATIENCE_S),
        ):
            sent = [producer.send("t", value=b"x", partition=one) for one in range(PARTITION_COUNT)]
            assert [(await delivery).offset for delivery in sent] == [0] * PARTITION_COUNT
            assert await values_of(client) == [[b"x"]] * PARTITION_COUNT
            # A topic that is gone is not waited for.
            await first.client.admin.delete_topic("t")
            await second.refresh()
            gone = [producer.send("t", value=b"x", partition=one) for one in range(PARTITION_COUNT)]
            for outcome in await asyncio.gather(*gone, return_exceptions=True):
                assert isinstance(outcome, UnknownTopicOrPartitionError)
