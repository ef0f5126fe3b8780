"""Consume as objects and as Arrow columns over a loopback connection, beside the same bytes without a client.

The server runs in a process of its own. A topic of one partition has records with a key of 12 bytes and a
value of 100, in uncompressed batches of about 16 KiB, as a busy Kafka producer makes them, or in zstd batches
of about 256 KiB. References of the same run:

* the bare stream: the bytes of a FetchStream, parsed as a protobuf message and thrown away. It is the most
  that a client of this server can get;
* a pure loop: the decoder's records in a `for` loop, from bytes that are in memory already.

The promises are those of a client in Python: as many records a second, as objects, as Kafka's own
`kafka-consumer-perf-test.sh` reads in Java on such a machine, and as Arrow rows several times as many.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable

import report
from append_fetch import running, stratalog_command
from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import fetch_request
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.record.record_portions import RecordReading, record_portions
from stratalog.server.process_tuning import keep_freed_memory

OBJECTS_PER_S = 1_600_000
ARROW_ROWS_PER_S = 5_000_000
VALUE_BYTES = 100
STREAM_BYTES = 4 << 20


def batch_of(count: int, codec: Codec) -> bytes:
    """A batch of records whose values compress to about a half."""
    records = [
        Record(
            0, 1_357_034_400_000 + number, b"%012d" % number, (b"%025d%025d" % (number * 7919, number)) * 2
        )
        for number in range(count)
    ]
    return encode_batch(records, codec=codec)


async def fill(client: Client, topic: str, batch: bytes, batch_count: int) -> None:
    """Append the batch so many times, many with one call."""
    await client.admin.create_topic(topic)
    group = max(1, (8 << 20) // len(batch))
    for begin in range(0, batch_count, group):
        await client.append_batches(topic, 0, batch * min(group, batch_count - begin))


async def best_s(work: Callable[[], Awaitable[int]], count: int, repeats: int) -> float:
    """Seconds of the fastest run; each run must read `count` records."""
    fastest = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        found = await work()
        fastest = min(fastest, time.perf_counter() - begin)
        assert found == count, (found, count)
    return fastest


async def measure_topic(
    client: Client, name: str, topic: str, batch: bytes, per_batch: int, quick: bool
) -> list[report.Row]:
    batch_count = (400_000 if quick else 2_000_000) // per_batch
    count, repeats = per_batch * batch_count, 3 if quick else 5
    await fill(client, topic, batch, batch_count)

    async def bare() -> int:
        found, size_bytes = 0, 0
        request = fetch_request(
            {TopicPartition(topic, 0): 0}, 0, 1, STREAM_BYTES, STREAM_BYTES, IsolationLevel.READ_UNCOMMITTED
        )
        call = client.log.FetchStream(request)
        async for response in call:
            for answer in response.partitions:
                size_bytes += len(answer.batches)
                found = answer.next_fetch_offset
            if found == count:
                break
        call.cancel()
        assert size_bytes == len(batch) * batch_count
        return found

    async def objects() -> int:
        found = 0
        async for _ in client.consume(topic, until="latest"):
            found += 1
        return found

    async def lists() -> int:
        found = 0
        async for records in client.consume(topic, until="latest").batches():
            for _ in records:
                found += 1
        return found

    async def arrow() -> int:
        return (await client.read_arrow(topic)).num_rows

    async def offsets() -> int:
        return (await client.read_arrow(topic, columns=("offset", "timestamp"))).num_rows

    async def pure_loop() -> int:
        data = batch * (count // 10 // per_batch)
        found = 0
        for _ in range(10):
            for portion in record_portions(data, RecordReading("t", 0), lambda _: True):
                for _ in portion.records:
                    found += 1
        return found

    loop_count = count // 10 // per_batch * per_batch * 10
    bare_per_s = count / await best_s(bare, count, repeats)
    loop_per_s = loop_count / await best_s(pure_loop, loop_count, repeats)
    objects_per_s = count / await best_s(objects, count, repeats)
    arrow_per_s = count / await best_s(arrow, count, repeats)
    lists_per_s = count / await best_s(lists, count, repeats)
    offsets_per_s = count / await best_s(offsets, count, repeats)

    def row(work: str, ours: float, reference: float, target: float) -> report.Row:
        return report.Row(
            work=f"{name}: {work}", unit="records/s", ours=ours, reference=reference, target=target
        )

    return [
        report.promised(f"{name}: objects", "records/s", objects_per_s, OBJECTS_PER_S),
        report.promised(f"{name}: Arrow", "records/s", arrow_per_s, ARROW_ROWS_PER_S),
        row("objects beside the bare stream", objects_per_s, bare_per_s, 0.2),
        row("objects beside a pure loop", objects_per_s, loop_per_s, 0.2),
        row("lists beside the bare stream", lists_per_s, bare_per_s, 0.2),
        row("Arrow beside the bare stream", arrow_per_s, bare_per_s, 0.5),
        row("Arrow, two columns, beside the bare stream", offsets_per_s, bare_per_s, 0.5),
    ]


async def measure_all(quick: bool, address: str) -> list[report.Row]:
    async with Client(address) as client:
        rows = await measure_topic(client, "16 KiB", "plain", batch_of(128, Codec.NONE), 128, quick)
        return rows + await measure_topic(client, "zstd", "zstd", batch_of(2000, Codec.ZSTD), 2000, quick)


def measure(quick: bool) -> list[report.Row]:
    """Consume records, beside the bare bytes and a loop without a server."""
    keep_freed_memory()
    with (
        tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder,
        running(*stratalog_command(f"{folder}/data")) as server,
    ):
        return asyncio.run(measure_all(quick, server))


if __name__ == "__main__":
    sys.exit(report.run(measure))
