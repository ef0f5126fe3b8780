"""The end of a range is an offset in the log of one server. Records of a successor are behind it, wherever
they lie, and a tail that is lost is not waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    CorruptRecordError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
)
from stratalog.client.client import Client
from stratalog.client.consuming.consumer import Consumer
from stratalog.client.retry import RetryPolicy
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.v1 import log_pb2
from tests.support.service.scripted_service import ScriptedService, answer, scripted
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench

PATIENT = RetryPolicy(deadline_s=PATIENCE_S, first_pause_s=0.001, max_pause_s=0.01)
LOST_COUNT = 2


def records(count: int) -> list[Record]:
    return [Record(0, 0, None, b"x")] * count


async def offsets(consumer: Consumer) -> list[int]:
    async with asyncio.timeout(PATIENCE_S):
        return [record.offset async for record in consumer]


async def opened(consumer: Consumer) -> Consumer:
    """The consumer, which has looked up where it begins and ends, and has no session."""
    follower: Any = consumer._follower  # pyright: ignore[reportPrivateUsage]  # iterating would open a session
    await follower.open()
    for owned in follower._client.owners.groups("t", follower._left()):
        await follower._find_late_starts(owned)
    return consumer


class Takeover(NamedTuple):
    """A topic of two records that stay and two that a successor does not have."""

    folder: Path
    store: MemoryObjectStore
    former: ServiceBench
    client: Client

    @asynccontextmanager
    async def successor(self) -> AsyncGenerator[ServiceBench]:
        async with service_bench(self.folder / "b", store=self.store) as owner:
            await self.former.refresh()
            yield owner


@pytest.fixture
async def takeover(tmp_path: Path) -> AsyncGenerator[Takeover]:
    store = MemoryObjectStore(SystemClock())
    async with (
        service_bench(tmp_path / "a", store=store) as former,
        Client(former.client.address, retry=PATIENT) as client,
    ):
        await client.topics.create("t")
        await client.append("t", 0, records(2))
        await client.admin.upload()
        await client.append("t", 0, records(LOST_COUNT))
        yield Takeover(tmp_path, store, former, client)


# --- a tail that is lost -----------------------------------------------------------------------------------


@pytest.mark.parametrize("early_count", [0, 1, LOST_COUNT, 9])
@pytest.mark.parametrize("options", [{"follow": False}, {"until": 99}, {"until": {0: 4}}], ids=str)
async def test_records_of_the_successor_are_behind_the_range(
    takeover: Takeover, options: dict[str, Any], early_count: int
) -> None:
    """They come before the reader compares its ends, and after."""
    consumer = await opened(takeover.client.consume("t", **options))
    async with takeover.successor() as owner:
        if early_count:
            await owner.client.append("t", 0, records(early_count))
        found = await offsets(consumer)
        await owner.client.append("t", 0, records(9))
        found += await offsets(consumer)
        assert found == [0, 1]
        assert consumer.positions == {0: 2}


async def test_a_position_inside_of_a_batch_of_the_successor(takeover: Takeover) -> None:
    consumer = await opened(takeover.client.consume("t", start=3, until="latest"))
    async with takeover.successor() as owner:
        await owner.client.append("t", 0, records(9))
        assert await offsets(consumer) == []
        assert consumer.positions == {0: 3}


async def test_a_number_is_an_end_in_any_log_for_a_reader_that_waits_for_it(takeover: Takeover) -> None:
    consumer = await opened(takeover.client.consume("t", until=4, follow=True))
    async with takeover.successor() as owner:
        await owner.client.append("t", 0, records(9))
        assert await offsets(consumer) == [0, 1, 2, 3]


async def test_a_reader_that_has_read_the_tail_goes_back_and_ends(takeover: Takeover) -> None:
    # More than one part, so that the position stays inside of the range.
    await takeover.client.append("t", 0, records(6000))
    consumer = takeover.client.consume("t", follow=False)
    found = [(await anext(aiter(consumer))).offset]
    await consumer.aclose()

    async def read() -> None:
        async for record in consumer:
            found.append(record.offset)

    async with takeover.successor():
        with pytest.raises(LogTruncatedError) as parted:
            await read()
        assert parted.value.fields["end_offset"] == 2
        assert 2 < len(found) < 6004, "it has read a part of the tail"
        await consumer.seek(0, 2)
        found += await offsets(consumer)
    assert found == list(range(len(found)))


@pytest.mark.parametrize(("reset", "expected"), [("earliest", [0, 1]), ("latest", [])])
async def test_a_start_in_the_tail_is_outside_of_the_log(
    takeover: Takeover, reset: Any, expected: list[int]
) -> None:
    consumers = [
        await opened(takeover.client.consume("t", start=3, until="latest", **options))
        for options in ({}, {"auto_offset_reset": reset})
    ]
    async with takeover.successor():
        with pytest.raises(OffsetOutOfRangeError):
            await offsets(consumers[0])
        assert await offsets(consumers[1]) == expected


# --- nothing is lost ---------------------------------------------------------------------------------------


async def test_a_range_outlives_a_restart(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path, store=store) as first:
        address = first.client.address
        await first.client.topics.create("t", partitions=2)
        for number in range(2):
            await first.client.append("t", number, records(3))
        client = Client(address, retry=PATIENT)
        consumer = await opened(client.consume("t", until={0: 2, 1: "latest"}))
    async with client, service_bench(tmp_path, store=store, listen=address) as second:
        for number in range(2):
            await second.client.append("t", number, records(3))
        assert sorted(await offsets(consumer)) == [0, 0, 1, 1, 2]
        assert consumer.positions == {0: 2, 1: 3}


async def test_a_former_server_that_has_not_noticed_is_not_read(takeover: Takeover) -> None:
    store = takeover.store
    async with service_bench(takeover.folder / "b", store=store) as owner:
        await owner.client.append("t", 0, records(LOST_COUNT))
        hasty = RetryPolicy(deadline_s=0.2, first_pause_s=0.001, max_pause_s=0.01)
        client = Client(f"{owner.client.address},{takeover.former.client.address}", retry=hasty)
        consumer = await opened(client.consume("t", follow=False))
    async with client:
        with pytest.raises(UnknownLeaderEpochError):
            await offsets(consumer)
        assert client.address == takeover.former.client.address


# --- answers that are written here -------------------------------------------------------------------------


def of_two_servers(first: log_pb2.FetchedPartition, *others: log_pb2.FetchedPartition) -> ScriptedService:
    """An answer with the batches of all, of a log whose end was 9 in leader epoch 4."""
    for other in others:
        first.batches += other.batches
        first.next_fetch_offset = other.next_fetch_offset
    service = ScriptedService([[first]])
    service.leader_epoch, service.log_end_offset = 4, 9
    return service


@pytest.mark.parametrize("last_epoch", [-1, 5, 7])
@pytest.mark.parametrize("as_arrow", [False, True])
async def test_the_range_ends_inside_of_an_answer(last_epoch: int, as_arrow: bool) -> None:
    service = of_two_servers(answer(0, 2, epoch=3, last_epoch=last_epoch), answer(2, 3, epoch=5))
    async with scripted(service) as address, Client(address) as client:
        if as_arrow:
            async with asyncio.timeout(PATIENCE_S):
                table = await client.read_arrow("t")
            assert table["offset"].to_pylist() == [0, 1]
        else:
            assert await offsets(client.consume("t", until="latest")) == [0, 1]


async def test_epochs_up_to_that_of_the_end_are_inside() -> None:
    service = of_two_servers(answer(0, 2, epoch=0), answer(2, 3, epoch=3), answer(5, 4, epoch=4))
    async with scripted(service) as address, Client(address) as client:
        assert await offsets(client.consume("t", until="latest")) == list(range(9))


async def test_damage_is_found_where_it_lies() -> None:
    service = of_two_servers(answer(0, 2, epoch=3), answer(2, 3, epoch=4))
    [[part]] = service._sessions  # pyright: ignore[reportPrivateUsage]  # to damage it
    assert isinstance(part, log_pb2.FetchedPartition)
    part.batches = part.batches[:-1]
    async with scripted(service) as address, Client(address) as client:
        consumer = client.consume("t", until="latest")
        assert [(await anext(aiter(consumer))).offset for _ in range(2)] == [0, 1]
        with pytest.raises(CorruptRecordError):
            await offsets(consumer)
