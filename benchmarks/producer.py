"""The Python producer over a loopback connection, beside a bare stream; `send` alone; and the sink of Spark.

* Records of one partition, with keys of 16 bytes, through a producer that is idempotent as by default. The
  reference sends the same bytes as prebuilt batches over the same AppendStream: what a client can do that
  makes nothing. Both run against a server in a process of its own, in turns. A third turn writes as many
  bytes to a file of the same disk: a long run is as slow as the page cache gets memory. A virtual machine may
  get it from its host at the first touch, at a tenth of the rate of memory that was used before.
* `send` alone, without an event loop and a server: the accumulator. The reference is `produce` of
  confluent-kafka into its local queue without a broker, if it can be imported (it is no requirement of ours);
  otherwise a million calls a second, which are promised.
* The sink of Spark, without Spark: rows that a task stages, each once. The reference is its delivery at least
  once: a producer appends the same Arrow batches. Exactly once a task stages each row, and the server copies
  it to its partition. In a cluster many tasks stage at a time. Rates are of processor time, of the server
  too: staged rows are fsynced, at the rate of the disk.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa

import report
from append_fetch import LOG, OPTIONS, appends_of, push_stream
from kafka_peers import confluent_kafka_or_none
from server_process import ServerProcess, running, stratalog_command
from stratalog.base.process_tuning import keep_freed_memory
from stratalog.base.types import Durability
from stratalog.client.blocking.sync_client import SyncClient
from stratalog.client.client import Client
from stratalog.pipeline.sink.batch_commit import BatchCommit
from stratalog.pipeline.sink.sink_options import SinkOptions, parse_sink_options
from stratalog.pipeline.sink.staging_topic import staging_topic_name
from stratalog.pipeline.sink.task_appends import append_rows
from stratalog.pipeline.sink.task_staging import TaskStaging
from stratalog.record.builder import encode_batch
from stratalog.record.native.record_accumulator import RecordAccumulator
from stratalog.record.record import Record

KEY_BYTES = 16
BATCH_BYTES = 512 << 10
IN_FLIGHT_COUNT = 5
WRITE_TARGET = 0.05
"""Where the page cache has memory at hand, a plain write is at the rate of a copy."""
SEND_TARGET = 1_000_000
PARTITION_COUNT = 12
"""The partitions that rows of Spark go to."""
ROW_COUNT = 10_000
"""Rows of an Arrow batch, as Spark makes them."""
SINK_SHAPES = ((100, 0.5), (1024, 0.5))
"""The size of values, and the least part of the rate at least once."""
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


# --- the sink of Spark --------------------------------------------------------------------------------------


def batches_of(value_bytes: int, size_bytes: int) -> list[pa.RecordBatch]:
    batch_count = max(1, size_bytes // (ROW_COUNT * value_bytes))
    return [
        pa.RecordBatch.from_pydict(
            {
                "key": [b"%016d" % (number * ROW_COUNT + row) for row in range(ROW_COUNT)],
                "value": [bytes(value_bytes)] * ROW_COUNT,
            }
        )
        for number in range(batch_count)
    ]


def append_plainly(client: SyncClient, options: SinkOptions, batches: Sequence[pa.RecordBatch]) -> None:
    """Append the rows in the task."""
    append_rows(client, batches, options)


def write_once(
    client: SyncClient, options: SinkOptions, batches: Sequence[pa.RecordBatch], name: str
) -> None:
    """Stage the rows in a task, and commit them in the driver."""
    topic = staging_topic_name(name)

    async def commit() -> None:
        async with options.service.client() as driver:
            await BatchCommit(driver, topic, None).commit(0, [task])

    task = TaskStaging(client, topic, name, options).stage(batches, 0)
    client.run(commit())


def processor_s_of(server: ServerProcess, work: Callable[[], None]) -> float:
    """Seconds of processor time that the work takes, here and in the server."""
    start_s = time.process_time() + server.processor_s()
    work()
    return time.process_time() + server.processor_s() - start_s


def sink_rows(server: ServerProcess, quick: bool) -> list[report.Row]:
    """Writes of Spark's rows, exactly once and at least once."""
    rows: list[report.Row] = []
    names = map(str, count())
    with SyncClient(server.address) as client:
        for value_bytes, target in SINK_SHAPES:
            topic = f"rows-of-{value_bytes}"
            client.topics.create(topic, partitions=PARTITION_COUNT)
            options = parse_sink_options({"server": server.address, "topic": topic}, is_stream=False)
            batches = batches_of(value_bytes, (50 if quick else 100) * MB)
            size_mb = len(batches) * ROW_COUNT * value_bytes / MB
            ours_s, reference_s = report.pair_of_median_ratio(
                (
                    processor_s_of(server, partial(write_once, client, options, batches, next(names))),
                    processor_s_of(server, partial(append_plainly, client, options, batches)),
                )
                for _ in range(3 if quick else 5)
            )
            rows.append(
                report.Row(
                    work=f"sink, {value_bytes} B values / at least once",
                    unit="MB/processor-s",
                    ours=size_mb / ours_s,
                    reference=size_mb / reference_s,
                    target=target,
                )
            )
    return rows


def measure(quick: bool) -> list[report.Row]:
    """The producer beside a bare stream, `send` alone, and the sink of Spark."""
    keep_freed_memory()
    with (
        tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder,
        running(*stratalog_command(f"{folder}/data")) as server,
    ):
        rows = asyncio.run(measure_producer(server.address, Path(folder), quick))
        of_sink = sink_rows(server, quick)
    return [*rows, send_row(quick), *of_sink]


if __name__ == "__main__":
    sys.exit(report.run(measure))
