"""The Python producer over a loopback connection, beside a bare stream of batches, and `send` alone.

* Records of one partition, with keys of 16 bytes, through a producer that is idempotent as by default. The
  reference sends the same bytes as prebuilt batches over the same AppendStream: what a client can do that
  makes nothing. Both run against a server in a process of its own, in turns. A third turn writes as many
  bytes to a file of the same disk: a long run is as slow as the page cache gets memory. A virtual machine may
  get it from its host at the first touch, at a tenth of the rate of memory that was used before.
* `send` alone, without an event loop and a server: the accumulator. The reference is `produce` of
  confluent-kafka into its local queue without a broker, if it can be imported (it is no requirement of ours);
  otherwise a million calls a second, which are promised.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc

import report
from append_fetch import LOG, OPTIONS, appends_of, push_stream
from kafka_peers import confluent_kafka_or_none
from server_process import running, stratalog_command
from stratalog.base.process_tuning import keep_freed_memory
from stratalog.base.types import Durability
from stratalog.client.client import Client
from stratalog.record.builder import encode_batch
from stratalog.record.native.record_accumulator import RecordAccumulator
from stratalog.record.record import Record

KEY_BYTES = 16
BATCH_BYTES = 512 << 10
IN_FLIGHT_COUNT = 5
WRITE_TARGET = 0.05
"""Where the page cache has memory at hand, a plain write is at the rate of a copy."""
SEND_TARGET = 1_000_000
CHUNK_COUNT = 500
MB = 1_000_000
SHAPES = ((100, "records/s", 0.3), (1024, "MB/s", 0.5))
"""The size of values, the unit of the rate, and the least part of the bare stream's rate."""


def keys_of(count: int) -> list[bytes]:
    return [b"%0*d" % (KEY_BYTES, number) for number in range(count)]


async def produce(client: Client, topic: str, count: int, value: bytes) -> float:
    """Seconds to send records and have all acknowledged."""
    keys = keys_of(CHUNK_COUNT)
    producer = client.producer(durability=Durability.OS)
    await producer.learn(topic)
    start_s = time.perf_counter()
    for _ in range(count // CHUNK_COUNT):
        for key in keys:
            producer.send(topic, key, value)
        await producer.ready()
    await producer.close()
    return time.perf_counter() - start_s


async def stream(address: str, topic: str, count: int, value: bytes) -> float:
    """Seconds to send the same records as batches that are there already."""
    record_bytes = KEY_BYTES + len(value) + 10
    batch_count = max(1, count * record_bytes // BATCH_BYTES)
    batch = encode_batch([Record(0, 1, key, value) for key in keys_of(count // batch_count)])
    async with grpc.aio.insecure_channel(address, OPTIONS) as channel:
        start_s = time.perf_counter()
        await push_stream(
            channel, LOG + "AppendStream", appends_of(topic, 1, batch), batch_count, IN_FLIGHT_COUNT
        )
        return time.perf_counter() - start_s


def write_plainly(path: Path, size_bytes: int) -> float:
    """Seconds to write as many bytes behind the end of a file, in pieces as large as batches."""
    piece = bytes(BATCH_BYTES)
    with path.open("ab", buffering=0) as file:
        start_s = time.perf_counter()
        for _ in range(size_bytes // BATCH_BYTES):
            file.write(piece)
        return time.perf_counter() - start_s


async def measure_producer(address: str, folder: Path, quick: bool) -> list[report.Row]:
    rows: list[report.Row] = []
    async with Client(address) as client:
        for value_bytes, unit, target in SHAPES:
            topic = f"values-of-{value_bytes}"
            await client.topics.create(topic, partitions=1)
            count = (60_000_000 if quick else 240_000_000) // (value_bytes + KEY_BYTES)
            count -= count % CHUNK_COUNT
            value = bytes(value_bytes)
            beside_bare: list[tuple[float, float]] = []
            beside_write: list[tuple[float, float]] = []
            for _ in range(3 if quick else 7):
                ours_s = await produce(client, topic, count, value)
                beside_bare.append((ours_s, await stream(address, topic, count, value)))
                plain_s = write_plainly(folder / "plain", count * (value_bytes + KEY_BYTES))
                beside_write.append((ours_s, plain_s))
            amount = count if unit == "records/s" else count * value_bytes / MB
            references = [("bare stream", beside_bare, target)]
            if unit == "MB/s":
                references.append(("plain write", beside_write, WRITE_TARGET))
            for reference, pairs, least in references:
                ours_s, reference_s = report.pair_of_median_ratio(pairs)
                rows.append(
                    report.Row(
                        work=f"producer, {value_bytes} B values / {reference}",
                        unit=unit,
                        ours=amount / ours_s,
                        reference=amount / reference_s,
                        target=least,
                    )
                )
    return rows


def median(numbers: list[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]


# --- send alone ---------------------------------------------------------------------------------------------


def no_receipt(_topic: str, _partition: int) -> None:
    """Nothing waits for the records."""


def send_rate(count: int, value: bytes) -> float:
    accumulator = RecordAccumulator(BATCH_BYTES, 1 << 40, no_receipt)
    accumulator.hold_topic("t", 1, 0)
    accumulator.open_topic("t")
    keys = keys_of(CHUNK_COUNT)
    start_s = time.perf_counter()
    for _ in range(count // CHUNK_COUNT):
        for key in keys:
            accumulator.send("t", key, value)
        accumulator.take_batches()
    return count / (time.perf_counter() - start_s)


def confluent_rate(confluent: Any, count: int, value: bytes) -> float:
    """Calls of confluent-kafka's `produce` a second, whose records go nowhere."""
    settings = {
        "bootstrap.servers": "127.0.0.1:1",
        "queue.buffering.max.messages": 10_000_000,
        "queue.buffering.max.kbytes": 2_000_000,
        "log_level": 0,
    }
    producer: Any = confluent.Producer(settings)
    keys = keys_of(CHUNK_COUNT)
    start_s = time.perf_counter()
    for _ in range(count // CHUNK_COUNT):
        for key in keys:
            producer.produce("t", value, key, partition=0)
    rate = count / (time.perf_counter() - start_s)
    producer.purge()
    return rate


def send_row(quick: bool) -> report.Row:
    count, value = 500_000 if quick else 2_000_000, bytes(100)
    work = "send alone, 16 B keys, 100 B values"
    confluent = confluent_kafka_or_none()
    if confluent is None:
        ours = median([send_rate(count, value) for _ in range(5)])
        return report.promised(work, "records/s", ours, SEND_TARGET)
    ours, reference = report.pair_of_median_ratio(
        (send_rate(count, value), confluent_rate(confluent, count, value)) for _ in range(5)
    )
    return report.Row(work=work, unit="records/s", ours=ours, reference=reference, target=1.0)


def measure(quick: bool) -> list[report.Row]:
    """The producer beside a bare stream, and `send` alone."""
    keep_freed_memory()
    with (
        tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder,
        running(*stratalog_command(f"{folder}/data")) as server,
    ):
        rows = asyncio.run(measure_producer(server.address, Path(folder), quick))
    return [*rows, send_row(quick)]


if __name__ == "__main__":
    sys.exit(report.run(measure))
