"""kill -9 of a real server under load: what was acknowledged is there after the restart, in order, once."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path

import pytest

from stratalog.base.types import Durability, TopicPartition
from stratalog.client.client import Client
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.retry import RetryPolicy
from stratalog.record.ack import Ack
from stratalog.record.native.record_accumulator import Delivery
from tests.support.service.server_process import ServerProcess

PARTITION_COUNT = 3
PATIENT = RetryPolicy(deadline_s=30.0)
ENOUGH_COUNT = 20_000
"""Acknowledged before the kill: by then segments have rolled and objects are uploaded."""


class Load:
    """Sends numbered records until the server is gone, or until it is stopped. Belongs to the event loop."""

    def __init__(self, address: str, durability: Durability, retry: RetryPolicy) -> None:
        self.acknowledged: dict[bytes, Ack] = {}
        self.sent_count = 0
        self.is_stopped = False
        self.enough_count = ENOUGH_COUNT
        self.enough = asyncio.Event()
        self._address = address
        self._durability = durability
        self._retry = retry
        self._pending: deque[tuple[bytes, Delivery]] = deque()

    async def run(self) -> None:
        async with Client(self._address, retry=self._retry) as client:
            producer = client.producer(
                durability=self._durability, linger_ms=1, batch_bytes=4_000, max_buffered_bytes=100_000
            )
            with suppress(ServerUnavailableError):
                while not self.is_stopped:
                    value = b"%09d" % self.sent_count
                    partition = self.sent_count % PARTITION_COUNT
                    self._pending.append((value, producer.send("t", None, value, partition=partition)))
                    self.sent_count += 1
                    await producer.ready()
                    await self._take_acks()
            with suppress(ServerUnavailableError):
                await producer.close()
            while self._pending:
                with suppress(ServerUnavailableError):
                    await self._take_acks()

    async def _take_acks(self) -> None:
        while self._pending and self._pending[0][1].is_done:
            value, delivery = self._pending.popleft()
            self.acknowledged[value] = await delivery
        if len(self.acknowledged) > self.enough_count:
            self.enough.set()


async def read_back(address: str) -> dict[TopicPartition, list[bytes | None]]:
    """All values, by partition; offsets must be dense."""
    async with Client(address, retry=PATIENT) as client:
        ends = await client.latest("t")
        values: dict[TopicPartition, list[bytes | None]] = {partition: [] for partition in ends}
        async for record in client.consume("t", until="latest"):
            partition = TopicPartition("t", record.partition)
            assert record.offset == len(values[partition])
            values[partition].append(record.value)
        assert {partition: len(found) for partition, found in values.items()} == ends
        return values


@pytest.mark.parametrize("durability", [Durability.OS, Durability.DISK], ids=["os", "disk"])
async def test_nothing_acknowledged_is_lost_when_the_process_is_killed(
    tmp_path: Path, durability: Durability
) -> None:
    with ServerProcess(f"{tmp_path}/data", options=["--upload-interval", "1"]) as server:
        async with Client(server.address, retry=PATIENT) as client:
            config = {"segment.bytes": "20000", "min.durability": durability.config_value}
            await client.admin.create_topic("t", PARTITION_COUNT, config)
        load = Load(server.address, durability, RetryPolicy(deadline_s=0))
        loading = asyncio.create_task(load.run())
        async with asyncio.timeout(120):
            await load.enough.wait()
            server.kill()
            await loading

        server.start()
        values = await read_back(server.address)
        for value, where in load.acknowledged.items():
            assert values[TopicPartition(where.topic, where.partition)][where.offset] == value
            assert where.durability is durability
        for found in values.values():
            # Nothing twice and nothing out of order, the unacknowledged tail included.
            assert found == sorted(found, key=lambda value: value or b"")
            assert len(set(found)) == len(found)

        async with Client(server.address, retry=PATIENT) as client:
            await client.admin.upload(delete_local=True)
            status = await client.admin.tier_status()
            assert (status.shards[0].epoch, [one.last_error for one in status.passes if one.last_error]) == (
                2,
                [],
            )
        assert await read_back(server.address) == values
        assert server.stop() == 0


async def test_nothing_acknowledged_at_object_is_lost_with_the_machine(tmp_path: Path) -> None:
    """The process is killed under load, and then its disk is gone, each time."""
    store_url = f"file://{tmp_path}/bucket"
    options = ["--config", "remote.append.commit.interval.ms=30"]
    with ServerProcess(f"{tmp_path}/data", store_url=store_url, options=options) as server:
        server.add_options("--listen", server.address)
        async with Client(server.address, retry=PATIENT) as client:
            config = {"segment.bytes": "20000", "min.durability": "object"}
            await client.admin.create_topic("t", PARTITION_COUNT, config)
        for turn in range(1, 4):
            load = Load(server.address, Durability.OBJECT, RetryPolicy(deadline_s=0))
            load.enough_count = 300
            loading = asyncio.create_task(load.run())
            async with asyncio.timeout(120):
                await load.enough.wait()
                server.kill()
                await loading
            shutil.rmtree(tmp_path / "data")
            server.start()
            values = await read_back(server.address)
            for value, where in load.acknowledged.items():
                assert values[TopicPartition(where.topic, where.partition)][where.offset] == value, turn
                assert where.durability is Durability.OBJECT
            # Each load begins with the same values.
            assert all(max(Counter(found).values()) <= turn for found in values.values()), "nothing twice"
        assert server.stop() == 0


async def test_a_producer_loses_and_doubles_no_record_though_the_process_is_killed_again_and_again(
    tmp_path: Path,
) -> None:
    with ServerProcess(f"{tmp_path}/data") as server:
        server.add_options("--listen", server.address)
        async with Client(server.address, retry=PATIENT) as client:
            await client.topics.create("t", partitions=PARTITION_COUNT)
        load = Load(server.address, Durability.DISK, PATIENT)
        loading = asyncio.create_task(load.run())
        async with asyncio.timeout(300):
            for turn in range(1, 6):
                load.enough_count = turn * 1_500
                load.enough.clear()
                await load.enough.wait()
                server.kill()
                await asyncio.to_thread(server.start)
            load.is_stopped = True
            await loading
        values = await read_back(server.address)
    assert len(load.acknowledged) == load.sent_count
    for partition in range(PARTITION_COUNT):
        assert values[TopicPartition("t", partition)] == [
            b"%09d" % number for number in range(partition, load.sent_count, PARTITION_COUNT)
        ]
    for value, where in load.acknowledged.items():
        assert values[TopicPartition(where.topic, where.partition)][where.offset] == value
