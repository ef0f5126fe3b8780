"""kill -9 of a real server under load: what was acknowledged is there after the restart, in order, once."""

from __future__ import annotations

import asyncio
import functools
import itertools
from pathlib import Path

import pytest

from stratalog.base.types import Durability, TopicPartition
from stratalog.client.client import Client
from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.retry import RetryPolicy
from stratalog.client.sealed_batch import Acknowledged
from tests.support.service.server_process import ServerProcess

PARTITION_COUNT = 3
PATIENT = RetryPolicy(deadline_s=30.0)
ENOUGH_COUNT = 20_000
"""Acknowledged before the kill: by then segments have rolled and objects are uploaded."""


class Load:
    """Sends numbered records until the server is gone. Belongs to the event loop."""

    def __init__(self, address: str, durability: Durability) -> None:
        self.acknowledged: dict[bytes, Acknowledged] = {}
        self.enough = asyncio.Event()
        self._address = address
        self._settings = ProducerSettings(
            durability=durability, linger_ms=1, batch_bytes=4_000, max_buffered_bytes=100_000
        )
        self._has_failed = False

    async def run(self) -> None:
        async with Client(self._address, retry=RetryPolicy(deadline_s=0)) as client:
            producer = client.producer(self._settings)
            for number in itertools.count():
                value = b"%09d" % number
                future = await producer.send("t", None, value, partition=number % PARTITION_COUNT)
                future.add_done_callback(functools.partial(self._note, value))
                if self._has_failed:
                    break
            await producer.flush()

    def _note(self, value: bytes, future: asyncio.Future[Acknowledged]) -> None:
        if future.exception() is not None:
            self._has_failed = True
            return
        self.acknowledged[value] = future.result()
        if len(self.acknowledged) > ENOUGH_COUNT:
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
        load = Load(server.address, durability)
        loading = asyncio.create_task(load.run())
        async with asyncio.timeout(120):
            await load.enough.wait()
            server.kill()
            await loading

        server.start()
        values = await read_back(server.address)
        for value, where in load.acknowledged.items():
            assert values[where.topic_partition][where.offset] == value
            assert where.durability is durability
        for found in values.values():
            # Nothing twice and nothing out of order, the unacknowledged tail included.
            assert found == sorted(found, key=lambda value: value or b"")
            assert len(set(found)) == len(found)

        async with Client(server.address, retry=PATIENT) as client:
            await client.admin.upload(delete_local=True)
            status = await client.admin.tier_status()
            assert (status.shards[0].epoch, status.last_upload_error) == (2, "")
        assert await read_back(server.address) == values
        assert server.stop() == 0
