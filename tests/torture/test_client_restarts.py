"""A producer and a consumer through restarts of their server: for seconds, or by `make torture` for ten
minutes with a new seed. Each record arrives once, and those of a partition in the order in which they were
sent.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from stratalog.base.types import Durability
from stratalog.client import Client
from stratalog.client.retry import RetryPolicy
from tests.support.service.server_process import ServerProcess

DURATION_S = float(os.environ.get("STRATALOG_TORTURE_S", "8"))
SEED = int(os.environ.get("STRATALOG_TORTURE_SEED", "1"))
PARTITION_COUNT = 6
KEY_COUNT = 1000
BURST_COUNT = 500
TOPIC = "t"
# Small segments, so that records come from the object store, too.
CONFIG = {"segment.bytes": "1048576", "local.retention.ms": "1", "remote.storage.enable": "true"}
PATIENT = RetryPolicy(deadline_s=120.0)


class Seen(NamedTuple):
    """A record that the consumer got."""

    partition: int
    offset: int
    number: int


@pytest.mark.timeout(300 + 3 * DURATION_S)
async def test_each_record_arrives_once_and_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = Random(SEED)
    restarts: Counter[str] = Counter()
    options = ("--upload-interval", "1")
    with ServerProcess(f"{tmp_path}/data", options=options) as server:
        server.add_options("--listen", server.address)
        async with Client(server.address, retry=PATIENT) as client:
            await client.topics.create(TOPIC, partitions=PARTITION_COUNT, config=CONFIG)
            sent = asyncio.Event()
            sending = asyncio.create_task(send_all(client, sent))
            seeing = asyncio.create_task(see_all(client, sending))
            try:
                await restart_often(server, chance, restarts, sent)
            finally:
                sent.set()
            sent_count, seen = await sending, await seeing
    with capsys.disabled():
        sys.stdout.write(f"\nseed {SEED}, {DURATION_S:g} s: {sent_count} records, {dict(restarts)}\n")
    assert restarts.total() > 0, "a run without restarts shows little"
    assert sorted(one.number for one in seen) == list(range(sent_count))
    for partition in range(PARTITION_COUNT):
        own = [one for one in seen if one.partition == partition]
        assert [one.offset for one in own] == list(range(len(own)))
        assert [one.number for one in own] == sorted(one.number for one in own)


async def send_all(client: Client, is_enough: asyncio.Event) -> int:
    """Send numbered records until it is enough; returns their count once all are acknowledged."""
    number = 0
    async with client.producer(compression="zstd", durability=Durability.DISK) as producer:
        while not is_enough.is_set():
            for _ in range(BURST_COUNT):
                producer.send(TOPIC, b"%d" % (number % KEY_COUNT), b"%d" % number)
                number += 1
                await producer.ready()
            await asyncio.sleep(0.01)
    return number


async def see_all(client: Client, sent_count: Awaitable[int]) -> list[Seen]:
    """Follow the topic until as many records have come as were sent, and the end of the log is reached."""
    seen: list[Seen] = []
    counted = asyncio.ensure_future(sent_count)
    consumer = client.consume(TOPIC, retry=PATIENT)

    async def collect() -> None:
        async for records in consumer.batches():
            seen.extend(Seen(one.partition, one.offset, int(one.value or b"")) for one in records)

    collecting = asyncio.create_task(collect())
    await counted
    ends = await client.latest(TOPIC)
    # All that the log has, whether it was sent or not: a record that came twice is seen twice.
    while sum(consumer.positions.values()) < sum(ends.values()):
        assert not collecting.done(), "the consumer ended"
        await asyncio.sleep(0.05)
    collecting.cancel()
    await asyncio.gather(collecting, return_exceptions=True)
    return seen


async def restart_often(
    server: ServerProcess, chance: Random, restarts: Counter[str], is_enough: asyncio.Event
) -> None:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + DURATION_S
    while loop.time() < end_s and not is_enough.is_set():
        await asyncio.sleep(chance.uniform(0.2, 3.0))
        if chance.random() < 0.6:
            server.kill()
            restarts["killed"] += 1
        else:
            await asyncio.to_thread(server.stop)
            restarts["stopped"] += 1
        await asyncio.to_thread(server.start)
