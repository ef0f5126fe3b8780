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
from server_process import running, stratalog_command
from stratalog.base.process_tuning import keep_freed_memory
from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.client.consuming.topic_follower import PARTITION_MAX_BYTES, STREAM_MAX_BYTES
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import FetchStart, fetch_request
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import parse_header
from stratalog.record.reading.record_portions import RecordReading, record_portions
from stratalog.record.record import Record

OBJECTS_PER_S = 1_600_000
ARROW_ROWS_PER_S = 5_000_000


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


class Topic:
    """A topic that is read in several ways. Belongs to one event loop."""

    def __init__(self, client: Client, name: str, batch: bytes, batch_count: int) -> None:
        self._client = client
        self.name = name
        self.batch = batch
        self._batch_count = batch_count
        self.count = parse_header(batch).records_count * batch_count

    async def bare(self) -> int:
        found, size_bytes = 0, 0
        starts = {TopicPartition(self.name, 0): FetchStart(0)}
        request = fetch_request(
            starts, 0, 1, STREAM_MAX_BYTES, PARTITION_MAX_BYTES, IsolationLevel.READ_UNCOMMITTED
        )
        call = self._client.log.FetchStream(request)
        async for response in call:
            for answer in response.partitions:
                size_bytes += len(answer.batches)
                found = answer.next_fetch_offset
            if found == self.count:
                break
        call.cancel()
        assert size_bytes == len(self.batch) * self._batch_count
        return found

    async def objects(self) -> int:
        found = 0
        async for _ in self._client.consume(self.name, until="latest"):
            found += 1
        return found

    async def lists(self) -> int:
        found = 0
        async for records in self._client.consume(self.name, until="latest").batches():
            for _ in records:
                found += 1
        return found

    async def arrow(self) -> int:
        return (await self._client.read_arrow(self.name)).num_rows

    async def arrow_offsets(self) -> int:
        return (await self._client.read_arrow(self.name, columns=("offset", "timestamp"))).num_rows

    async def pure_loop(self) -> int:
        found, data = 0, self.batch * 50
        for _ in range(self._batch_count // 50):
            for portion in record_portions(data, RecordReading("t", 0), lambda _: True):
                for _ in portion.records:
                    found += 1
        return found


async def measure_topic(title: str, topic: Topic, repeats: int) -> list[report.Row]:
    async def per_s(read: Callable[[], Awaitable[int]]) -> float:
        return topic.count / await best_s(read, topic.count, repeats)

    bare, loop = await per_s(topic.bare), await per_s(topic.pure_loop)
    objects, lists = await per_s(topic.objects), await per_s(topic.lists)
    arrow, offsets = await per_s(topic.arrow), await per_s(topic.arrow_offsets)

    def row(work: str, ours: float, reference: float, target: float) -> report.Row:
        return report.Row(
            work=f"{title}: {work}", unit="records/s", ours=ours, reference=reference, target=target
        )

    rows = [row("objects / pure loop", objects, loop, 0.4), row("Arrow / pure loop", arrow, loop, 0.4)]
    if parse_header(topic.batch).codec is not Codec.NONE:
        # The bare stream does not decompress, which takes most of the time.
        return rows
    return [
        *rows,
        report.promised(f"{title}: objects", "records/s", objects, OBJECTS_PER_S),
        report.promised(f"{title}: Arrow", "records/s", arrow, ARROW_ROWS_PER_S),
        row("objects / bare stream", objects, bare, 0.2),
        row("lists / bare stream", lists, bare, 0.2),
        row("Arrow / bare stream", arrow, bare, 0.4),
        row("Arrow, two columns / bare stream", offsets, bare, 0.5),
    ]


async def measure_all(quick: bool, address: str) -> list[report.Row]:
    record_count, repeats = (400_000, 3) if quick else (2_000_000, 5)
    rows: list[report.Row] = []
    async with Client(address) as client:
        for title, batch in (("16 KiB", batch_of(128, Codec.NONE)), ("zstd", batch_of(2000, Codec.ZSTD))):
            batch_count = record_count // parse_header(batch).records_count // 50 * 50
            topic = Topic(client, title.replace(" ", ""), batch, batch_count)
            await fill(client, topic.name, batch, batch_count)
            rows += await measure_topic(title, topic, repeats)
    return rows


def measure(quick: bool) -> list[report.Row]:
    """Consume records, beside the bare bytes and a loop without a server."""
    keep_freed_memory()
    with (
        tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder,
        running(*stratalog_command(f"{folder}/data")) as server,
    ):
        return asyncio.run(measure_all(quick, server.address))


if __name__ == "__main__":
    sys.exit(report.run(measure))
