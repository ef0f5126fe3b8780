"""Appends at `object`, with the object store in a directory of the same disk.

* The time from `send` to the acknowledgement at 1 MiB/s of records of 1 KiB in one partition. Promised is a
  median of the commit interval and 15 ms.
* The rate of a producer that sends as fast as it can, beside the same producer at `disk` in turns.
* The rate of a producer to a few partitions, with a consumer that reads along, beside the least server that
  can take the same from the same clients (`floors/plain_append_server.py`), with the processor time of both
  servers.
* The same rate beside s2-lite and its own benchmark, which does the same with as many streams. Only where
  `s2` is at hand, see `s2_lite`.

The client keeps freed memory, as `docs/python.md` recommends where megabytes come and go.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import report
from floors import s2_lite
from server_process import ServerProcess, processor_row, running, stratalog_command
from stratalog.base.process_tuning import keep_freed_memory
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
STREAM_COUNT = 4
"""Partitions, or streams, beside s2-lite: its benchmark has a process for each."""
BATCH_BYTES = 2_000_000
"""Five batches of each partition are on their way. With 1 MB, as large as Kafka's default allows, four
partitions have 20 MB, less than the two objects of 8 MiB that are filled and stored at once and the batches
between."""
MAX_BATCH_BYTES = BATCH_BYTES + 100_000
S2_TARGET = 3.0
FLOOR_TARGET = 0.5
"""The least part of the rate of a server that checks, indexes and commits nothing, and the most of its
processor time: twice as much."""
FLOOR = Path(__file__).parent / "floors" / "plain_append_server.py"
RATE_TARGET = 0.5
"""The least part of the rate at `disk`: each byte is written twice, and fsynced twice."""


class Written(NamedTuple):
    """The bytes of values that a producer has written beside a reader, and their cost."""

    size_bytes: int
    spent_s: float
    """Until all were acknowledged."""
    processor_s: float
    """The time of the server on processors, until they were read, too."""

    @property
    def rate(self) -> float:
        return self.size_bytes / self.spent_s


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


async def write_beside_a_reader(client: Client, server: ServerProcess, duration_s: float) -> Written:
    """Write values that are acknowledged at `object` and read back meanwhile."""
    config = {"min.durability": "object", "max.message.bytes": str(MAX_BATCH_BYTES)}
    await client.topics.create("beside", partitions=STREAM_COUNT, config=config)
    count = read_count = end_count = 0

    async def read() -> None:
        nonlocal read_count, end_count
        async for records in client.consume("beside", follow=True).batches():
            read_count += len(records)
            end_count += records[-1].key is not None
            if end_count == STREAM_COUNT:
                return

    begin_processor_s = server.processor_s()
    reading = asyncio.create_task(read())
    async with client.producer(batch_bytes=BATCH_BYTES) as producer:
        await producer.learn("beside")
        begin_s = time.perf_counter()
        while time.perf_counter() - begin_s < duration_s:
            for partition in range(STREAM_COUNT):
                for _ in range(CHUNK_COUNT):
                    _ = producer.send("beside", None, RECORD, partition=partition)
                count += CHUNK_COUNT
                await producer.ready()
        await producer.flush()
        spent_s = time.perf_counter() - begin_s
        for partition in range(STREAM_COUNT):
            _ = producer.send("beside", b"end", None, partition=partition)
    await reading
    assert read_count == count + STREAM_COUNT
    return Written(count * len(RECORD), spent_s, server.processor_s() - begin_processor_s)


def s2_lite_rows(ours: Written, floor: Written, *, quick: bool) -> list[report.Row]:
    """The rows of our rate and of the floor's beside that of s2-lite, which runs after the others have ended;
    none without it. Where the floor does not reach the target, no server in Python does."""
    s2 = s2_lite.program()
    if s2 is None:
        print("s2-lite is left out: there is no `s2` on PATH, and $S2 names none", file=sys.stderr)
        return []
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        s2_lite.running(s2, folder) as environment,
    ):
        rate = s2_lite.write_rate(s2, environment, STREAM_COUNT, len(RECORD), _duration_s(quick=quick))
    return [
        report.Row(
            work=f"produce 1 KiB at object{name} beside s2-lite",
            unit="MB/s",
            ours=written.rate / MB,
            reference=rate / MB,
            target=S2_TARGET,
        )
        for name, written in (("", ours), (", the floor", floor))
    ]


def _duration_s(*, quick: bool) -> int:
    return 4 if quick else 10


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


async def measure_beside_a_reader(server: ServerProcess, duration_s: float) -> Written:
    async with Client(server.address) as client:
        return await write_beside_a_reader(client, server, duration_s)


def floor_rows(ours: Written, floor: Written) -> list[report.Row]:
    """The rows of our server beside the floor."""
    work = "produce 1 KiB at object beside the floor"
    floor_s = floor.processor_s * ours.size_bytes / floor.size_bytes
    return [
        report.Row(
            work=work, unit="MB/s", ours=ours.rate / MB, reference=floor.rate / MB, target=FLOOR_TARGET
        ),
        processor_row(work, ours.size_bytes, ours.processor_s, floor_s, FLOOR_TARGET),
    ]


def measure(quick: bool) -> Iterator[report.Row]:
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder, running(*stratalog_command(f"{folder}/data")) as server:
        yield from asyncio.run(measure_at(server.address, quick=quick))
        ours = asyncio.run(measure_beside_a_reader(server, _duration_s(quick=quick)))
    with tempfile.TemporaryDirectory() as folder, running(str(FLOOR), folder) as server:
        floor = asyncio.run(measure_beside_a_reader(server, _duration_s(quick=quick)))
    yield from floor_rows(ours, floor)
    yield from s2_lite_rows(ours, floor, quick=quick)


if __name__ == "__main__":
    sys.exit(report.run(measure))
