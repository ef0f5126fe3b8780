"""A server of a shared store knows a topic as soon as another server has created it, in every call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from random import Random

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import NotOwnerError, StoreUnavailableError, UnknownTopicOrPartitionError
from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.client.errors import error_of_status
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.topics import missed_topics
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault
from stratalog.v1 import log_pb2
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench

TwoServers = tuple[ServiceBench, ServiceBench]


async def append(client: Client, topic: str) -> None:
    await client.append(topic, 0, [Record(0, 1000, b"k", b"v")])


async def send(client: Client, topic: str) -> None:
    async with client.producer() as producer:
        await producer.send(topic, value=b"v", partition=0)


async def stream(client: Client, topic: str) -> None:
    """Append by a stream that knows nothing of the topic, as a plain client does."""
    request = log_pb2.AppendStreamRequest(
        topic=topic, partition=0, sequence=1, batches=encode_batch([Record(0, 1000, b"k", b"v")])
    )

    async def requests() -> AsyncIterator[log_pb2.AppendStreamRequest]:
        yield request

    async for response in client.log.AppendStream(requests()):
        if response.HasField("status"):
            raise error_of_status(response.status)


async def fetch(client: Client, topic: str) -> None:
    [answer] = await client.fetch({TopicPartition(topic, 0): 0})
    if answer.error is not None:
        raise answer.error


async def consume(client: Client, topic: str) -> None:
    async with aclosing(client.consume(topic, partitions=[0], until="latest")) as consumer:
        assert [record async for record in consumer] == []


CALLS: list[Callable[[Client, str], Awaitable[object]]] = [
    append,
    send,
    stream,
    fetch,
    consume,
    lambda client, topic: client.list_offsets([(TopicPartition(topic, 0), "latest")]),
    lambda client, topic: client.fence(topic, 0, "token"),
    lambda client, topic: client.admin.describe_log(topic),
    lambda client, topic: client.admin.describe_configs(topic),
    lambda client, topic: client.admin.alter_configs({"retention.ms": 1000}, topic),
    lambda client, topic: client.admin.list_segments(topic, 0),
    lambda client, topic: client.admin.roll(topic),
    lambda client, topic: client.admin.explain_retention([topic]),
    lambda client, topic: client.admin.start_upload([topic]),
    lambda client, topic: client.admin.add_partitions(topic, 3),
    lambda client, topic: client.admin.delete_topic(topic),
]


@pytest.fixture
async def two_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[TwoServers]:
    monkeypatch.setattr(missed_topics, "LOOK_PERIOD_S", 0.0)
    store = MemoryObjectStore(SystemClock())
    async with (
        service_bench(tmp_path / "0", store=store, shard_count=2, own_shards=(0,)) as first,
        service_bench(tmp_path / "1", store=store, own_shards=(1,)) as second,
        asyncio.timeout(PATIENCE_S),
    ):
        await first.refresh()
        yield first, second


async def test_no_call_refuses_a_topic_that_another_server_has_created(two_servers: TwoServers) -> None:
    first, second = two_servers
    endpoints: list[object] = []
    for number, call in enumerate(CALLS):
        await first.client.admin.create_topic(f"t{number}", 2)
        try:
            await call(second.client, f"t{number}")
        except NotOwnerError as error:
            # It knows the topic, and the owner of the partition.
            endpoints.append(error.fields["endpoint"])
    assert set(endpoints) == {first.client.address}


async def test_a_topic_that_exists_nowhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missed_topics, "LOOK_PERIOD_S", 0.0)
    is_away = False
    store = FaultyObjectStore(
        MemoryObjectStore(SystemClock()), Random(0), lambda _: Fault.FAILS if is_away else Fault.NONE
    )
    async with (
        service_bench(tmp_path / "0", store=store, shard_count=2, own_shards=(0,)) as bench,
        asyncio.timeout(PATIENCE_S),
    ):
        with pytest.raises(UnknownTopicOrPartitionError):
            await append(bench.client, "nowhere")
        is_away = True
        with pytest.raises(StoreUnavailableError):
            await append(bench.client, "nowhere")
        # A stream goes on for the records of other topics.
        with pytest.raises(UnknownTopicOrPartitionError):
            await stream(bench.client, "nowhere")
        is_away = False
