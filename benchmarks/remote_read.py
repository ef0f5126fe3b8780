"""Cold reads of tiered data through gRPC, beside bare ranged GETs of the same objects.

The sequential reference fetches the objects' bytes in ranges of 4 MiB with as many connections as the server
has threads for reads of tiered data, by boto3 alone. Ours are streams of all partitions side by side, whose
batches are counted and not decoded; the server proves each checksum. A second reference is the floor: the
least that a gRPC server in Python can do to stream the same ranges (`floors/plain_stream_server.py`), read by
as many streams. The reference of a first read of a record is two bare GETs of the sizes that such a read
needs, one after the other. All talk to one S3 server (SeaweedFS) on the same machine, which takes its share
of the processors. The client keeps freed memory, as both servers do: how the kernel clears pages is not
measured. Without the S3 server there is nothing to measure.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import grpc

from floors.plain_stream_server import METHOD, ObjectRange
from report import Row, pair_of_median_ratio, run, seconds
from server_process import ServerProcess, processor_row, running
from stratalog.client.client import Client
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.process_tuning import keep_freed_memory
from stratalog.v1 import log_pb2, log_pb2_grpc
from tests.support.tiered.s3_servers import S3Server, ServerMissingError, seaweedfs_server

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
RANDOM_READS: Final = 60


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
    """A server with a tiered topic. Belongs to the event loop."""

    def __init__(self, address: str, store: S3Server, prefix: str) -> None:
        self._client = Client(address)
        self._s3 = store.client()
        self._bucket = store.bucket
        self._prefix = prefix
        self._channel = grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self._log: Any = log_pb2_grpc.LogServiceStub(self._channel)
        self._random = Random(1)
        self.record_counts = [0] * PARTITION_COUNT

    async def close(self) -> None:
        await self._channel.close()
        await self._client.close()

    async def fill(self, total_bytes: int) -> None:
        """Append, upload, and delete the local copies."""
        admin = self._client.admin
        await admin.create_topic(TOPIC, PARTITION_COUNT, {"segment.bytes": str(8 << 20)})
        record_count = BATCH_BYTES // 1024
        for partition in range(PARTITION_COUNT):
            for _ in range(total_bytes // PARTITION_COUNT // BATCH_BYTES):
                records = [
                    Record(0, 1, b"k%07d" % number, self._random.randbytes(1000))
                    for number in range(record_count)
                ]
                request = log_pb2.AppendRequest(
                    topic=TOPIC, partition=partition, batches=encode_batch(records)
                )
                await self._log.Append(request)
                self.record_counts[partition] += record_count
        await admin.upload([TOPIC], delete_local=True)

    def objects(self) -> list[tuple[str, int]]:
        """Keys and sizes of the data objects."""
        found = self._s3.list_objects_v2(Bucket=self._bucket, Prefix=f"{self._prefix}/shards/0000/data/")
        return [(one["Key"], one["Size"]) for one in found["Contents"]]

    def get(self, key: str, start: int, size_bytes: int) -> int:
        answer = self._s3.get_object(
            Bucket=self._bucket, Key=key, Range=f"bytes={start}-{start + size_bytes - 1}"
        )
        return len(answer["Body"].read())

    def ranges(self) -> list[ObjectRange]:
        """All bytes of the objects, in chunks."""
        return [
            ObjectRange(key, start, min(CHUNK_BYTES, size - start))
            for key, size in self.objects()
            for start in range(0, size, CHUNK_BYTES)
        ]

    def _get_range(self, one: ObjectRange) -> int:
        return self.get(*one)

    def get_all(self, ranges: list[ObjectRange]) -> int:
        """The reference of sequential reads."""
        with ThreadPoolExecutor(CONNECTION_COUNT) as pool:
            return sum(pool.map(self._get_range, ranges))

    async def forget(self) -> None:
        await self._client.admin.empty_caches()

    async def read_all(self) -> int:
        """Read every partition to its end, side by side; returns the bytes."""
        return sum(await asyncio.gather(*map(self._read_partition, range(PARTITION_COUNT))))

    async def _read_partition(self, partition: int) -> int:
        size_bytes = 0
        request = self._request(partition, 0, 4 << 20)
        async for answer in self._log.FetchStream(request):
            [found] = answer.partitions
            size_bytes += len(found.batches)
            if found.next_fetch_offset >= self.record_counts[partition]:
                break
        return size_bytes

    async def read_one(self, partition: int, offset: int) -> None:
        await self._log.Fetch(self._request(partition, offset, 1))

    def _request(self, partition: int, offset: int, max_bytes: int) -> log_pb2.FetchRequest:
        one = log_pb2.FetchPartition(
            topic=TOPIC, partition=partition, start=log_pb2.Position(offset=offset), max_bytes=max_bytes
        )
        return log_pb2.FetchRequest(partitions=[one], max_bytes=max_bytes)

    async def sequential(self, server: ServerProcess, floor: Floor, repeats: int) -> list[Round]:
        """Rounds of sequential reads: bare GETs, the floor and ours in turn."""
        ranges = self.ranges()
        stored_bytes = sum(one.size_bytes for one in ranges)
        rounds: list[Round] = []
        for _ in range(repeats):
            bare_s = await asyncio.to_thread(seconds, lambda: self.get_all(ranges))
            begin_s, before_s = time.monotonic(), floor.process.processor_s()
            assert await floor.read_all(ranges) == stored_bytes
            floor_s, floor_processor_s = time.monotonic() - begin_s, floor.process.processor_s() - before_s
            await self.forget()
            begin_s, before_s = time.monotonic(), server.processor_s()
            read_bytes = await self.read_all()
            ours_s, ours_processor_s = time.monotonic() - begin_s, server.processor_s() - before_s
            assert 0.98 * stored_bytes <= read_bytes <= stored_bytes, "all but directories and indexes"
            rounds.append(Round(bare_s, floor_s, ours_s, floor_processor_s, ours_processor_s))
        return rounds

    async def first_reads(self) -> tuple[float, float]:
        """Median latencies of two bare GETs, and of a first read of one record."""
        objects = self.objects()
        bare: list[float] = []
        ours: list[float] = []

        def two_gets() -> None:
            key, size = self._random.choice(objects)
            self.get(key, size - 1024, 1024)
            self.get(key, self._random.randrange(size - INTERVAL_BYTES), INTERVAL_BYTES)

        for _ in range(RANDOM_READS):
            bare.append(await asyncio.to_thread(seconds, two_gets))
            await self.forget()
            partition = self._random.randrange(PARTITION_COUNT)
            offset = self._random.randrange(self.record_counts[partition])
            begin_s = time.monotonic()
            await self.read_one(partition, offset)
            ours.append(time.monotonic() - begin_s)
        return statistics.median(bare), statistics.median(ours)


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


async def _rows(store: S3Server, total_bytes: int, repeats: int) -> list[Row]:
    os.environ.update(store.environment(), AWS_DEFAULT_REGION=store.region)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as closing:
        command = _command(directory + "/data", store.store_url("reads"))
        server = closing.enter_context(running(*command))
        floor = Floor(closing.enter_context(running(*_floor_command(store))))
        bench = Bench(server.address, store, "reads")
        try:
            await bench.fill(total_bytes)
            rounds = await bench.sequential(server, floor, repeats)
            size_bytes = sum(size for _, size in bench.objects())
            bare_s, first_s = await bench.first_reads()
        finally:
            await floor.close()
            await bench.close()
    return [
        *_sequential_rows(rounds, size_bytes),
        Row(
            work="cold first read of one record, beside two bare GETs",
            unit="reads/s",
            ours=1 / first_s,
            reference=1 / bare_s,
            target=bare_s / (bare_s + FIRST_READ_ALLOWANCE_S),
        ),
    ]


def measure(quick: bool) -> Iterator[Row]:
    """Cold reads of tiered data, beside bare ranged GETs."""
    keep_freed_memory()
    with ExitStack() as closing:
        try:
            store = closing.enter_context(seaweedfs_server())
        except ServerMissingError:
            return
        yield from asyncio.run(_rows(store, (64 if quick else 256) << 20, 3 if quick else REPEATS))


if __name__ == "__main__":
    sys.exit(run(measure))
