"""Readers that begin while one of two owners is away: they read the partitions of the other one at once, and
add the missing ones when their owner answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicIdPartition
from stratalog.client.client import Client
from stratalog.client.consuming.consumer import Consumer
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.retry import RetryPolicy
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.remote.store_layout import shard_of
from tests.support.service.scripted_service import ScriptedService, answer, scripted
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench, until

PARTITION_COUNT = 4
PATIENT = RetryPolicy(deadline_s=PATIENCE_S, first_pause_s=0.001, max_pause_s=0.05)
HANG_S = 20.0
"""Less than the timeout of a call."""
HASTY = RetryPolicy(deadline_s=0.2, first_pause_s=0.001, max_pause_s=0.05)


@dataclass
class HalfStore:
    """A topic of two shards, each partition with a record of its number, whose second owner is away."""

    folder: Path
    store: MemoryObjectStore
    first: ServiceBench
    client: Client
    of_first: list[int]
    of_second: list[int]
    lost_address: str
    broken: list[LogStoreError] = field(default_factory=list)
    """The interruptions that readers with `on_broken` have reported."""

    async def bring_back(self, stack: AsyncExitStack) -> ServiceBench:
        """Start a successor of the second owner, under another address."""
        bench = service_bench(self.folder / "successor", store=self.store, own_shards=(1,))
        successor = await stack.enter_async_context(bench)
        await self.first.refresh()
        return successor

    @property
    def waiting(self) -> str:
        """The partitions of the owner that is away, as errors name them."""
        return ",".join(map(str, self.of_second))


@asynccontextmanager
async def half_store(folder: Path) -> AsyncGenerator[HalfStore]:
    store = MemoryObjectStore(SystemClock())
    async with (
        service_bench(folder / "0", store=store, shard_count=2, own_shards=(0,)) as first,
        Client(first.client.address, retry=PATIENT) as client,
        asyncio.timeout(PATIENCE_S),
    ):
        topic_id = UUID((await first.client.admin.create_topic("t", PARTITION_COUNT)).topic_id)
        shards = [shard_of(TopicIdPartition(topic_id, number), 2) for number in range(PARTITION_COUNT)]
        of_first, of_second = ([n for n, shard in enumerate(shards) if shard == one] for one in (0, 1))
        assert of_first
        assert of_second
        async with service_bench(folder / "1", store=store, own_shards=(1,)) as second:
            await first.refresh()
            for number in range(PARTITION_COUNT):
                await client.append("t", number, [Record(0, 1000, b"%d" % number, b"v")])
            await second.client.admin.upload()
            lost_address = second.client.address
        async with Client(first.client.address, retry=PATIENT) as fresh:
            yield HalfStore(
                folder=folder,
                store=store,
                first=first,
                client=fresh,
                of_first=of_first,
                of_second=of_second,
                lost_address=lost_address,
            )


async def partitions_of(consumer: Consumer, count: int) -> list[int]:
    """The partitions of so many records, sorted."""
    records = aiter(consumer)
    return sorted([(await anext(records)).partition for _ in range(count)])


async def test_a_consumer_begins_with_the_owners_that_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with half_store(tmp_path) as half, AsyncExitStack() as stack:
        consumer = half.client.consume("t", on_broken=half.broken.append)
        assert await partitions_of(consumer, len(half.of_first)) == half.of_first
        assert consumer.positions == dict.fromkeys(half.of_first, 1)
        reading = asyncio.ensure_future(partitions_of(consumer, len(half.of_second)))
        await until(lambda: bool(half.broken))
        await half.bring_back(stack)
        assert await reading == half.of_second
        assert consumer.positions == dict.fromkeys(range(PARTITION_COUNT), 1)
        await consumer.aclose()
        error = half.broken[0]
        assert isinstance(error, ServerUnavailableError)
        assert (error.fields["topic"], error.fields["partitions"]) == ("t", half.waiting)
        assert error.fields["server"] == half.lost_address
        # Once, and not with each attempt.
        assert [one.fields["server"] for one in half.broken].count(half.lost_address) == 1
        [warning] = [one.getMessage() for one in caplog.records if half.lost_address in one.getMessage()]
        assert f"partitions {half.waiting} of topic t" in warning
        assert {one.levelno for one in caplog.records if half.lost_address in one.getMessage()} == {
            logging.WARNING
        }


async def test_latest_is_that_of_the_moment_when_the_owner_answers(tmp_path: Path) -> None:
    async with half_store(tmp_path) as half, AsyncExitStack() as stack:
        consumer = half.client.consume("t", start="latest", on_broken=half.broken.append)
        reading = asyncio.ensure_future(partitions_of(consumer, PARTITION_COUNT))
        await until(lambda: bool(half.broken) and len(consumer.positions) == len(half.of_first))
        successor = await half.bring_back(stack)
        await until(lambda: len(consumer.positions) == PARTITION_COUNT)
        assert consumer.positions == dict.fromkeys(range(PARTITION_COUNT), 1)
        for number in range(PARTITION_COUNT):
            owner = half.first if number in half.of_first else successor
            await owner.client.append("t", number, [Record(0, 1000, b"k", b"new")])
        assert await reading == list(range(PARTITION_COUNT))
        await consumer.aclose()


async def test_a_given_offset_stays_the_position_of_a_partition_that_waits(tmp_path: Path) -> None:
    async with half_store(tmp_path) as half, AsyncExitStack() as stack:
        start = dict.fromkeys(half.of_first, 0) | dict.fromkeys(half.of_second, 1)
        consumer = half.client.consume("t", start=start)
        assert await partitions_of(consumer, len(half.of_first)) == half.of_first
        # To continue from here loses and repeats nothing.
        assert consumer.positions == dict.fromkeys(range(PARTITION_COUNT), 1)
        await consumer.aclose()
        # An offset that the log does not have is found out when its owner answers.
        late = half.client.consume("t", start=dict.fromkeys(half.of_second, 2), auto_offset_reset="earliest")
        assert await partitions_of(late, len(half.of_first)) == half.of_first
        sought = asyncio.ensure_future(late.seek(half.of_second[0], 0))
        await half.bring_back(stack)
        await sought
        assert late.positions[half.of_second[0]] == 0
        assert await partitions_of(late, len(half.of_second)) == half.of_second
        await late.aclose()


@pytest.mark.parametrize("kind", ["consumer", "arrow"])
async def test_a_range_with_an_end_is_complete_or_fails(tmp_path: Path, kind: str) -> None:
    async with half_store(tmp_path) as half, AsyncExitStack() as stack:

        async def read(**settings: Any) -> list[int]:
            if kind == "arrow":
                table = await half.client.read_arrow("t", on_broken=half.broken.append, **settings)
                numbers: list[Any] = table["partition"].to_pylist()
                return sorted(numbers)
            consumer = half.client.consume("t", until="latest", on_broken=half.broken.append, **settings)
            return sorted([record.partition async for record in consumer])

        with pytest.raises(ServerUnavailableError) as caught:
            await read(retry=HASTY)
        assert caught.value.fields["server"] == half.lost_address
        half.broken.clear()
        reading = asyncio.ensure_future(read())
        await until(lambda: bool(half.broken))
        assert not reading.done()
        await half.bring_back(stack)
        assert await reading == list(range(PARTITION_COUNT))


async def test_a_table_is_entered_when_it_is_complete(tmp_path: Path) -> None:
    async with half_store(tmp_path) as half, AsyncExitStack() as stack:
        with pytest.raises(ServerUnavailableError):
            async with half.client.table("t", retry=HASTY):
                pass
        table = half.client.table("t", decode="utf-8", on_broken=half.broken.append)
        entering = asyncio.ensure_future(stack.enter_async_context(table))
        await until(lambda: bool(half.broken) and len(table) == len(half.of_first))
        assert not entering.done()
        assert half.broken[0].fields["partitions"] == half.waiting
        await half.bring_back(stack)
        await entering
        assert sorted(table) == [str(number) for number in range(PARTITION_COUNT)]
        # A choice of partitions waits for their owners only.
        async with half.client.table("t", partitions=half.of_first) as some:
            assert len(some) == len(half.of_first)


async def test_an_owner_that_hangs_holds_up_no_other_partition() -> None:
    silence = asyncio.Event()

    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silence.wait()
        writer.close()

    sessions = [[answer(0, 1, partition=0)], [answer(0, 1, partition=0)]]
    service = ScriptedService(sessions, partition_count=2)
    service.log_end_offset = 1
    hanging = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with scripted(service) as one, asyncio.timeout(HANG_S):
        host, port = hanging.sockets[0].getsockname()
        service.endpoints = (one, f"{host}:{port}")
        async with Client(one, retry=PATIENT) as client:
            consumer = client.consume("t")
            assert await partitions_of(consumer, 1) == [0]
            # The new session of the other owner does not wait for an answer of this one, either.
            await consumer.seek(0, 0)
            assert await partitions_of(consumer, 1) == [0]
            assert consumer.positions == {0: 1}
            await consumer.aclose()
    silence.set()
    hanging.close()
    await hanging.wait_closed()
