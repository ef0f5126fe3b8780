"""Cold reads of tiered data through gRPC, beside bare ranged GETs of the same objects.

The sequential reference fetches the objects' bytes in ranges of 4 MiB with as many connections as the server
has threads for reads of tiered data, by boto3 alone. Ours are streams of all partitions side by side, whose
batches are counted and not decoded; the server proves each checksum. A second reference is the floor: the
least that a gRPC server in Python can do to stream the same ranges (`floors/plain_stream_server.py`), read by
as many streams. Rounds take turns between two topics. Each is larger than the server's cache, so the read of
one evicts the other: a read is cold, and the cache is full, as it is where readers catch up for long.

First reads of one record are at random offsets of 10,000 objects, which the uploader alone has made: of one
or two slices with an index interval each. Their server is a new process that has memory for no page of
metadata, as if the pages were many times as large as its cache for them; it has fetched them to its disk by
itself. Its requests are counted for each read, and it sends no second one for a slow one, which is up to 5 in
100 more by default. No read begins where an earlier one ended: the server takes that for a reader that goes
on, and reads ahead. The reference is two bare GETs of the sizes that such a read needs, one after the other.

All talk to one S3 server (SeaweedFS) on the same machine, which takes its share of the
processors. The client keeps freed memory, as both servers do: how the kernel clears pages is not measured.
Without the S3 server there is nothing to measure.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import grpc

from floors.plain_stream_server import METHOD, ObjectRange
from report import Row, pair_of_median_ratio, promised_cost, run, seconds
from server_process import ServerProcess, processor_row, running
from stratalog.base.process_tuning import keep_freed_memory
from stratalog.client.client import Client
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.v1 import log_pb2, log_pb2_grpc
from tests.support.tiered.s3_servers import (
    BENCHMARK_MEMORY_MIB,
    S3Server,
    ServerMissingError,
    seaweedfs_server,
)
from tests.support.tiered.tiered_logs import TieredLogs
from upload import Threads

SEQUENTIAL_TARGET: Final = 0.7
FLOOR_TARGET: Final = 0.9
PROCESSOR_TARGET: Final = 0.6
FIRST_READ_ALLOWANCE_S: Final = 0.005
CONNECTION_COUNT: Final = 8
CHUNK_BYTES: Final = 4 << 20
INTERVAL_BYTES: Final = 64 << 10
PARTITION_COUNT: Final = 4
BATCH_BYTES: Final = 128 << 10
REPEATS: Final = 5
TOPIC: Final = "t"
SEQUENTIAL_TOPICS: Final = ("t0", "t1")
TOPIC_BYTES: Final = 256 << 20
"""More than the server's cache of tiered data has by default."""
RANDOM_READS: Final = 200
MAX_GETS: Final = 2
MANY_OBJECTS: Final = 10_000
QUICK_OBJECTS: Final = 500
MANY_PARTITION_COUNT: Final = 100
BATCHES_OF_AN_OBJECT: Final = 2
BATCHES_OF_A_ROUND: Final = 4
RECORDS_OF_A_BATCH: Final = 64
FIRST_READ_PREFIX: Final = "first"
_REQUESTS: Final = "stratalog_object_store_requests_total"


class Round(NamedTuple):
    """One round of sequential reads: how long each took, and the processor time of both servers."""

    bare_s: float
    floor_s: float
    ours_s: float
    floor_processor_s: float
    ours_processor_s: float


class Floor:
    """The least server, and a channel to it. Belongs to the event loop."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self._channel = grpc.aio.insecure_channel(
            process.address, options=[("grpc.max_receive_message_length", -1)]
        )

    async def close(self) -> None:
        await self._channel.close()

    async def read_all(self, ranges: list[ObjectRange]) -> int:
        """Read the ranges by as many streams as there are partitions; returns the bytes."""
        shares = (ranges[number::PARTITION_COUNT] for number in range(PARTITION_COUNT))
        return sum(await asyncio.gather(*map(self._read, shares)))

    async def _read(self, ranges: list[ObjectRange]) -> int:
        size_bytes = 0
        channel: Any = self._channel
        async for body in channel.unary_stream(METHOD)(json.dumps(ranges).encode()):
            size_bytes += len(body)
        return size_bytes


class Bench:
    """A server with two tiered topics. Belongs to the event loop."""

    def __init__(self, address: str, store: S3Server, prefix: str) -> None:
        self._client = Client(address)
        self._s3 = store.client()
        self._bucket = store.bucket
        self._prefix = prefix
        self._channel = grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self._log: Any = log_pb2_grpc.LogServiceStub(self._channel)
        self._random = Random(1)
        self._record_counts = {topic: [0] * PARTITION_COUNT for topic in SEQUENTIAL_TOPICS}
        self._objects: dict[str, list[tuple[str, int]]] = {}

    async def close(self) -> None:
        await self._channel.close()
        await self._client.close()

    async def fill(self, topic_bytes: int) -> None:
        """Append to both topics, upload, and delete the local copies."""
        for topic in SEQUENTIAL_TOPICS:
            before = self._all_objects()
            await self._fill_topic(topic, topic_bytes)
            self._objects[topic] = sorted(self._all_objects() - before)

    async def _fill_topic(self, topic: str, topic_bytes: int) -> None:
        admin = self._client.admin
        await admin.create_topic(topic, PARTITION_COUNT, {"segment.bytes": str(8 << 20)})
        record_count = BATCH_BYTES // 1024
        for partition in range(PARTITION_COUNT):
            for _ in range(topic_bytes // PARTITION_COUNT // BATCH_BYTES):
                records = [
                    Record(0, 1, b"k%07d" % number, self._random.randbytes(1000))
                    for number in range(record_count)
                ]
                request = log_pb2.AppendRequest(
                    topic=topic, partition=partition, batches=encode_batch(records)
                )
                await self._log.Append(request)
                self._record_counts[topic][partition] += record_count
        await admin.upload([topic], delete_local=True)

    def _all_objects(self) -> set[tuple[str, int]]:
        prefix = f"{self._prefix}/shards/0000/data/"
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        return {(one["Key"], one["Size"]) for page in pages for one in page.get("Contents", ())}

    def objects(self, topic: str) -> list[tuple[str, int]]:
        """Keys and sizes of the data objects of a topic."""
        return self._objects[topic]

    def get(self, key: str, start: int, size_bytes: int) -> int:
        answer = self._s3.get_object(
            Bucket=self._bucket, Key=key, Range=f"bytes={start}-{start + size_bytes - 1}"
        )
        return len(answer["Body"].read())

    def ranges(self, topic: str) -> list[ObjectRange]:
        """All bytes of the objects of a topic, in chunks."""
        return [
            ObjectRange(key, start, min(CHUNK_BYTES, size - start))
            for key, size in self.objects(topic)
            for start in range(0, size, CHUNK_BYTES)
        ]

    def _get_range(self, one: ObjectRange) -> int:
        return self.get(*one)

    def get_all(self, ranges: list[ObjectRange]) -> int:
        """The reference of sequential reads."""
        with ThreadPoolExecutor(CONNECTION_COUNT) as pool:
            return sum(pool.map(self._get_range, ranges))

    async def read_all(self, topic: str) -> int:
        """Read every partition of a topic to its end, side by side; returns the bytes."""
        reads = (self._read_partition(topic, partition) for partition in range(PARTITION_COUNT))
        return sum(await asyncio.gather(*reads))

    async def _read_partition(self, topic: str, partition: int) -> int:
        size_bytes = 0
        one = log_pb2.FetchPartition(
            topic=topic, partition=partition, start=log_pb2.Position(offset=0), max_bytes=4 << 20
        )
        call = self._log.FetchStream(log_pb2.FetchRequest(partitions=[one], max_bytes=4 << 20))
        async for answer in call:
            [found] = answer.partitions
            size_bytes += len(found.batches)
            if found.next_fetch_offset >= self._record_counts[topic][partition]:
                break
        # Otherwise the server takes it for one that goes on, with a share of the cache.
        call.cancel()
        return size_bytes

    async def sequential(self, server: ServerProcess, floor: Floor, repeats: int) -> list[Round]:
        """Rounds of sequential reads: bare GETs, the floor and ours in turn."""
        for topic in SEQUENTIAL_TOPICS:
            # The cache is full before the first round, and does not have the first topic.
            await self.read_all(topic)
        rounds: list[Round] = []
        for number in range(repeats):
            topic = SEQUENTIAL_TOPICS[number % len(SEQUENTIAL_TOPICS)]
            ranges = self.ranges(topic)
            stored_bytes = sum(one.size_bytes for one in ranges)
            bare_s = await asyncio.to_thread(seconds, partial(self.get_all, ranges))
            begin_s, before_s = time.monotonic(), floor.process.processor_s()
            assert await floor.read_all(ranges) == stored_bytes
            floor_s, floor_processor_s = time.monotonic() - begin_s, floor.process.processor_s() - before_s
            begin_s, before_s = time.monotonic(), server.processor_s()
            read_bytes = await self.read_all(topic)
            ours_s, ours_processor_s = time.monotonic() - begin_s, server.processor_s() - before_s
            assert 0.98 * stored_bytes <= read_bytes <= stored_bytes, "all but directories and indexes"
            rounds.append(Round(bare_s, floor_s, ours_s, floor_processor_s, ours_processor_s))
        return rounds


def _command(data_dir: str, store_url: str) -> tuple[str, ...]:
    """The arguments of Python that start our server. Nothing is uploaded but on request."""
    arguments = ["server", "start", "--data-dir", data_dir, "--listen", "127.0.0.1:0", "--store", store_url]
    arguments += ["--log-level", "error"]
    program = f"import sys; from stratalog.cli.main import main; sys.argv[1:] = {arguments!r}; main()"
    return ("-c", program)


def _floor_command(store: S3Server) -> tuple[str, ...]:
    """The arguments of Python that start the least server."""
    program = str(Path(__file__).parent / "floors" / "plain_stream_server.py")
    return (program, store.endpoint_url, store.bucket, str(CONNECTION_COUNT), str(PARTITION_COUNT))


def _sequential_rows(rounds: list[Round], size_bytes: int) -> Iterator[Row]:
    """The rows of sequential reads, by the medians of their ratios."""
    work = f"cold read, {PARTITION_COUNT} partitions"
    for name, target, pairs in (
        ("bare GETs", SEQUENTIAL_TARGET, [(one.bare_s, one.ours_s) for one in rounds]),
        ("the least server", FLOOR_TARGET, [(one.floor_s, one.ours_s) for one in rounds]),
    ):
        reference_s, ours_s = pair_of_median_ratio(pairs)
        yield Row(
            work=f"{work}, beside {name}",
            unit="MB/s",
            ours=size_bytes / ours_s / 1e6,
            reference=size_bytes / reference_s / 1e6,
            target=target,
        )
    spent = [(one.floor_processor_s, one.ours_processor_s) for one in rounds]
    floor_s, ours_s = pair_of_median_ratio(spent)
    yield processor_row(work, size_bytes, ours_s, floor_s, PROCESSOR_TARGET)


async def _rows(store: S3Server, topic_bytes: int, repeats: int) -> list[Row]:
    os.environ.update(store.environment(), AWS_DEFAULT_REGION=store.region)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as closing:
        command = _command(directory + "/data", store.store_url("reads"))
        server = closing.enter_context(running(*command))
        floor = Floor(closing.enter_context(running(*_floor_command(store))))
        bench = Bench(server.address, store, "reads")
        try:
            await bench.fill(topic_bytes)
            rounds = await bench.sequential(server, floor, repeats)
            size_bytes = sum(size for _, size in bench.objects(SEQUENTIAL_TOPICS[0]))
        finally:
            await floor.close()
            await bench.close()
    return [*_sequential_rows(rounds, size_bytes)]


class FirstReads(NamedTuple):
    """Reads of one record each, beside two bare GETs."""

    bare_s: float
    """Median."""
    ours_s: float
    """Median."""
    most_gets: int
    mean_gets: float


class CountedServer:
    """A server with a tiered topic. Belongs to the event loop."""

    def __init__(self, server: ServerProcess, metrics_url: str) -> None:
        self._metrics_url = metrics_url
        self.client = Client(server.address)
        self._channel = grpc.aio.insecure_channel(server.address)
        self._log: Any = log_pb2_grpc.LogServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()
        await self.client.close()

    async def read_one(self, partition: int, offset: int) -> bytes:
        """The batch of one record."""
        one = log_pb2.FetchPartition(
            topic=TOPIC, partition=partition, start=log_pb2.Position(offset=offset), max_bytes=1
        )
        answer = await self._log.Fetch(log_pb2.FetchRequest(partitions=[one], max_bytes=1))
        [found] = answer.partitions
        return bytes(found.batches)

    def get_count(self) -> int:
        """The GETs that the server has sent, of data and of metadata."""
        with urllib.request.urlopen(self._metrics_url) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            int(float(line.rpartition(" ")[2]))
            for line in lines
            if line.startswith(_REQUESTS) and 'verb="GET"' in line
        )

    async def until_pages_are_on_disk(self) -> None:
        """Wait until a pass that fetches pages of metadata, a few at a time, has found none to fetch."""
        while True:
            passes = (await self.client.admin.tier_status()).passes
            [pages] = [one for one in passes if one.name == "metadata-pages"]
            if pages.total_done.get("pages") and not pages.last_done.get("pages"):
                return
            await asyncio.sleep(0.2)


def _counted_command(data_dir: str, store_url: str) -> tuple[str, ...]:
    """The arguments of Python that start a server without memory for pages of metadata, whose requests are
    those of its callers: no pass looks at the heads, or compacts, and none begins after half a minute."""
    program = f"""
from stratalog.server.app import serve
from stratalog.server.configuration.settings import ServerSettings

HOUR_MS = 3_600_000
settings = ServerSettings(
    data_dir={data_dir!r}, store_url={store_url!r}, listen="127.0.0.1:0", metrics_listen="127.0.0.1:0",
    metadata_cache_bytes=1, head_refresh_ms=HOUR_MS, max_silence_ms=0, upload_ms=HOUR_MS, fold_ms=HOUR_MS,
    collector_ms=HOUR_MS, compaction_ms=HOUR_MS, remote_retention_ms=HOUR_MS,
    config={{"remote.read.hedge.percent": "0", "log.initial.task.delay.ms": str(HOUR_MS)}},
)

def announce(server):
    print("stratalog serves", f"127.0.0.1:{{server.port}}", server.metrics_port, flush=True)

serve(settings, announce)
"""
    return ("-c", program)


def _fill_many(store: S3Server, object_count: int) -> int:
    """Upload at least so many objects, and fold the shard, so that its slices are in pages. Returns the
    records of each partition."""
    random = Random(1)
    records = [Record(0, 1, None, random.randbytes(1000)) for _ in range(RECORDS_OF_A_BATCH)]
    batch = encode_batch(records)
    config = {"retention.ms": "-1", "file.delete.delay.ms": "0"}
    done_count = rounds = 0
    with ThreadPoolExecutor(CONNECTION_COUNT) as executor:
        logs = TieredLogs(
            MemoryFileSystem(),
            store.open_store(FIRST_READ_PREFIX),
            ManualClock(),
            SequentialIds(1),
            max_object_bytes=BATCHES_OF_AN_OBJECT * len(batch),
            index_interval_bytes=INTERVAL_BYTES,
            sends=Threads(executor),
            uploader_settings={"put_count": CONNECTION_COUNT},
        )
        logs.create_topic(TOPIC, MANY_PARTITION_COUNT, config)
        while done_count < object_count:
            for log in logs.logs.values():
                for _ in range(BATCHES_OF_A_ROUND):
                    log.appender.append_as_leader(batch, logs.claimed.epoch)
            logs.seal()
            report = logs.upload()
            assert not report.failed
            done_count += report.object_count
            rounds += 1
            for log in logs.logs.values():
                log.retention.delete_local_segments(ignore_retention=True)
            logs.scheduler.run_due()
            logs.metadata.fold()
        logs.close()
    return rounds * BATCHES_OF_A_ROUND * RECORDS_OF_A_BATCH


async def _first_reads(bench: CountedServer, store: S3Server, record_count: int) -> tuple[FirstReads, int]:
    """Random first reads, each beside two bare GETs; and the number of objects."""
    random, s3 = Random(2), store.client()
    pages = s3.get_paginator("list_objects_v2").paginate(
        Bucket=store.bucket, Prefix=f"{FIRST_READ_PREFIX}/shards/0000/data/"
    )
    objects = [(one["Key"], one["Size"]) for page in pages for one in page["Contents"]]
    bare: list[float] = []
    ours: list[float] = []
    gets: list[int] = []
    ends: set[tuple[int, int]] = set()

    def get(key: str, start: int, size_bytes: int) -> None:
        s3.get_object(Bucket=store.bucket, Key=key, Range=f"bytes={start}-{start + size_bytes - 1}")[
            "Body"
        ].read()

    def two_gets() -> None:
        key, size = random.choice(objects)
        get(key, size - 1024, 1024)
        get(key, random.randrange(max(1, size - INTERVAL_BYTES)), min(size, INTERVAL_BYTES))

    for _ in range(RANDOM_READS):
        bare.append(await asyncio.to_thread(seconds, two_gets))
        await bench.client.admin.empty_caches()
        before = await asyncio.to_thread(bench.get_count)
        partition, offset = random.randrange(MANY_PARTITION_COUNT), random.randrange(record_count)
        while (partition, offset) in ends:
            offset = random.randrange(record_count)
        ends.add((partition, (offset // RECORDS_OF_A_BATCH + 1) * RECORDS_OF_A_BATCH))
        begin_s = time.monotonic()
        assert await bench.read_one(partition, offset)
        ours.append(time.monotonic() - begin_s)
        gets.append(await asyncio.to_thread(bench.get_count) - before)
    reads = FirstReads(statistics.median(bare), statistics.median(ours), max(gets), statistics.mean(gets))
    return reads, len(objects)


async def _first_read_rows(store: S3Server, object_count: int) -> list[Row]:
    os.environ.update(store.environment(), AWS_DEFAULT_REGION=store.region)
    url = store.store_url(FIRST_READ_PREFIX)
    with tempfile.TemporaryDirectory() as directory:
        record_count = await asyncio.to_thread(_fill_many, store, object_count)
        with running(*_counted_command(f"{directory}/data", url)) as server:
            bench = CountedServer(server, f"http://127.0.0.1:{server.further[0]}/metrics")
            try:
                await bench.until_pages_are_on_disk()
                reads, object_count = await _first_reads(bench, store, record_count)
            finally:
                await bench.close()
    work = f"cold first read, {object_count:,} objects"
    return [
        promised_cost(f"{work}: GETs, at most", "GETs", reads.most_gets, MAX_GETS),
        promised_cost(f"{work}: GETs, mean", "GETs", reads.mean_gets, MAX_GETS),
        Row(
            work=f"{work}, beside two bare GETs",
            unit="reads/s",
            ours=1 / reads.ours_s,
            reference=1 / reads.bare_s,
            target=reads.bare_s / (reads.bare_s + FIRST_READ_ALLOWANCE_S),
        ),
    ]


def measure(quick: bool) -> Iterator[Row]:
    """Cold reads of tiered data, beside bare ranged GETs."""
    keep_freed_memory()
    with ExitStack() as closing:
        try:
            store = closing.enter_context(seaweedfs_server(BENCHMARK_MEMORY_MIB))
        except ServerMissingError:
            return
        yield from asyncio.run(_rows(store, TOPIC_BYTES, 3 if quick else REPEATS))
        yield from asyncio.run(_first_read_rows(store, QUICK_OBJECTS if quick else MANY_OBJECTS))


if __name__ == "__main__":
    sys.exit(run(measure))
