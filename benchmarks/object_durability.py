"""Appends at `object`, with the object store in a directory of the same disk.

* The time from `send` to the acknowledgement at 1 MiB/s of records of 1 KiB in one partition. Promised is a
median
  of the commit interval and 15 ms.
* The rate of a producer that sends as fast as it can, beside the same producer at `disk` in turns. s2-lite,
the
  reference of the promised rate, is a program of its own that is not at hand here.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time

import report
from server_process import running, stratalog_command
from stratalog.base.types import Durability
from stratalog.client.client import Client
from stratalog.record.native.record_accumulator import Delivery

INTERVAL_MS = 250
SLACK_MS = 15
LINGER_MS = 60
"""A producer has five batches of a partition in flight, so that they must last for the interval."""
PARTITION_COUNT = 16
RECORD = b"v" * 1024
RECORDS_PER_S = 1024
CHUNK_COUNT = 500
MB = 1_000_000
RATE_TARGET = 0.5
"""The least part of the rate at `disk`: each byte is written twice, and fsynced twice."""


async def acknowledged_ms(delivery: Delivery, begin_s: float) -> float:
    await delivery
    return (time.perf_counter() - begin_s) * 1000


async def median_wait_ms(client: Client, count: int) -> float:
    """The median time to the acknowledgement of records that come evenly."""
    producer = client.producer(durability=Durability.OBJECT, linger_ms=LINGER_MS)
    await producer.learn("wait")
    begin_s = time.perf_counter()
    waits: list[asyncio.Task[float]] = []
    for number in range(count):
        pause_s = begin_s + number / RECORDS_PER_S - time.perf_counter()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        begun_s = time.perf_counter()
        delivery = producer.send("wait", None, RECORD)
        waits.append(asyncio.create_task(acknowledged_ms(delivery, begun_s)))
    found = await asyncio.gather(*waits)
    await producer.close()
    return statistics.median(found)


async def rate(client: Client, durability: Durability, count: int) -> float:
    """Bytes of values in a second, until all are acknowledged."""
    producer = client.producer(durability=durability)
    await producer.learn("rate")
    begin_s = time.perf_counter()
    for number in range(count // CHUNK_COUNT):
        for _ in range(CHUNK_COUNT):
            _ = producer.send("rate", None, RECORD, partition=number % PARTITION_COUNT)
        await producer.ready()
    await producer.flush()
    spent_s = time.perf_counter() - begin_s
    await producer.close()
    return count * len(RECORD) / spent_s


async def measure_at(address: str, *, quick: bool) -> list[report.Row]:
    async with Client(address) as client:
        for topic, partition_count in (("wait", 1), ("rate", PARTITION_COUNT)):
            await client.topics.create(topic, partitions=partition_count)
        wait_ms = await median_wait_ms(client, (3 if quick else 10) * RECORDS_PER_S)
        rates: dict[Durability, list[float]] = {Durability.OBJECT: [], Durability.DISK: []}
        for _ in range(2 if quick else 4):
            for durability, found in rates.items():
                found.append(await rate(client, durability, 20_000 if quick else 60_000))
    return [
        report.Row(
            work="ack at object, 1 MiB/s of 1 KiB, median",
            unit="ms",
            ours=wait_ms,
            reference=INTERVAL_MS + SLACK_MS,
            target=1.0,
            is_cost=True,
        ),
        report.Row(
            work="produce 1 KiB at object beside disk",
            unit="MB/s",
            ours=statistics.median(rates[Durability.OBJECT]) / MB,
            reference=statistics.median(rates[Durability.DISK]) / MB,
            target=RATE_TARGET,
        ),
    ]


def measure(quick: bool) -> list[report.Row]:
    with tempfile.TemporaryDirectory() as folder, running(*stratalog_command(folder)) as server:
        return asyncio.run(measure_at(server.address, quick=quick))


if __name__ == "__main__":
    sys.exit(report.run(measure))
