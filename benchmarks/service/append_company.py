"""The slowest in a hundred of small appends beside other work of the server, by the same without it.

One caller appends a record of 100 bytes after the other, at `os`. The companies are 100 readers of tiered
data, none of which is in a cache at first, by streams, by streams within a rate that the configuration gives
all of them, and by single fetches; 100 readers of a local log; a clean of a local log; a compaction of
objects; and an upload of objects of 60 MiB. The caller's appends just before each of them are the reference.
The readers have a process of their own: in the caller's they would measure its event loop.

What grpcio makes possible: a bare server of the same calls, whose 100 streams give the same message again and
again. The rate of the readers is beside that of these streams. And what the machine makes possible: the
same appends while the 100 streams are those of the bare server, so that our server has nothing but the
appends to do, and shares the processors with the readers and their server.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from random import Random
from typing import NamedTuple

import grpc

import append_fetch
from append_fetch import BARE, LOG, SMALL_BYTES, batch_of
from log_cleaner import percentile_s
from report import Row, run
from server_process import ServerProcess, running, stratalog_command
from stratalog.client.client import Client
from stratalog.record.record import Record
from stratalog.v1 import log_pb2

TARGET = 0.5
BARE_TARGET = 1.0
"""Bare grpcio lets its calls wait for its streams."""
RATE_TARGET = 0.3
"""The bare server reads nothing."""
READER_COUNT = 100
CONNECTION_COUNT = 10
"""Connections of the readers."""
ANSWER_BYTES = 1 << 20
LEAD_S = 1.0
"""The readers have been at work for so long when the appends begin."""
COLD_RATE = "remote.log.manager.fetch.max.bytes.per.second"
COLD_RATE_MB = 100
"""The rate of the readers of tiered data in one of the rows."""
VALUE_BYTES = 1000
BATCH_COUNT = 512
"""Records of a call that fills."""
KEPT = {"retention.ms": "-1"}
"""The records have times of 1970: a retention would delete them while they are read."""
CLEANED = {"cleanup.policy": "compact", "remote.storage.enable": "false", "min.cleanable.dirty.ratio": "1.0"}
"""A local topic that is not cleaned before its ratio is lowered."""
# Channels with the same options would share one connection.
OPTIONS = [*append_fetch.OPTIONS, ("grpc.use_local_subchannel_pool", 1)]


# --- the readers, in a process of their own ----------------------------------------------------------------


class Reading(NamedTuple):
    """The work of all readers."""

    address: str
    seconds: float
    topic: str
    """Empty for the streams of the bare server."""
    record_count: int
    """Records of a partition of the topic."""
    is_stream: bool = True


def read_bytes(reading: Reading) -> int:
    """Read, and return the size of all answers."""
    return asyncio.run(_read_all(reading))


async def _read_all(reading: Reading) -> int:
    channels = [grpc.aio.insecure_channel(reading.address, OPTIONS) for _ in range(CONNECTION_COUNT)]
    end_s = time.monotonic() + reading.seconds
    readers = (
        _read(reading, channels[number % CONNECTION_COUNT], number, end_s) for number in range(READER_COUNT)
    )
    sizes_bytes = await asyncio.gather(*readers)
    for channel in channels:
        await channel.close()
    return sum(sizes_bytes)


async def _read(reading: Reading, channel: grpc.aio.Channel, number: int, end_s: float) -> int:
    """Read on from one place after the other, as long as there is time."""
    random = Random(number)
    size_bytes = 0
    while time.monotonic() < end_s:
        async for response in _answers(reading, channel, number % 4, random):
            size_bytes += len(response)
            if time.monotonic() >= end_s:
                break
    return size_bytes


async def _answers(
    reading: Reading, channel: grpc.aio.Channel, partition: int, random: Random
) -> AsyncIterator[bytes]:
    """Four answers, from a place in the first half on."""
    if not reading.topic:
        request, method = b"4", BARE + "Give"
    else:
        fetch = log_pb2.FetchRequest(max_bytes=ANSWER_BYTES)
        start = log_pb2.Position(offset=random.randrange(reading.record_count // 2))
        fetch.partitions.add(topic=reading.topic, partition=partition, start=start, max_bytes=ANSWER_BYTES)
        request, method = fetch.SerializeToString(), LOG + "FetchStream"
        if not reading.is_stream:
            call_for: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(LOG + "Fetch")
            for _ in range(4):
                response = await call_for(fetch.SerializeToString())
                fetched = log_pb2.FetchResponse.FromString(response).partitions[0]
                fetch.partitions[0].start.offset = fetched.next_fetch_offset
                yield response
            return
    stream_for: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(method)
    call = stream_for(request)
    count = itertools.count(1)
    async for response in call:
        yield response
        if next(count) == 4:
            break
    call.cancel()


# --- the caller --------------------------------------------------------------------------------------------


async def call_s(call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes], request: bytes) -> float:
    begin_s = time.perf_counter()
    await call(request)
    return time.perf_counter() - begin_s


class Company:
    """A server with data, and work for it beside appends. Belongs to the event loop."""

    def __init__(
        self, client: Client, channel: grpc.aio.Channel, readers: ProcessPoolExecutor, size_bytes: int
    ) -> None:
        self._client = client
        self._readers = readers
        self._size_bytes = size_bytes
        self._call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(LOG + "Append")
        self._request = log_pb2.AppendRequest(
            topic="small",
            partition=0,
            durability=log_pb2.DURABILITY_OS,
            batches=batch_of(SMALL_BYTES, SMALL_BYTES - 75),
        ).SerializeToString()

    async def prepare(self) -> None:
        """Fill the topics."""
        admin = self._client.admin
        await admin.create_topic("small", 1)
        await admin.create_topic("cold", 4, {**KEPT, "segment.bytes": str(4 << 20)})
        await admin.create_topic("local", 4, {**KEPT, "remote.storage.enable": "false"})
        await admin.create_topic("uploaded", 4, KEPT)
        await admin.create_topic("compacted", 4, {**KEPT, "cleanup.policy": "compact"})
        await admin.create_topic("cleaned", 1, {**CLEANED, "segment.bytes": str(16 << 20)})
        await self._fill("cold", 4)
        await admin.upload(["cold"], delete_local=True)
        for _ in range(4):
            await self._fill("compacted", 4, 4)
            await admin.upload(["compacted"])
        await self._fill("cleaned", 1)
        await admin.roll("cleaned", [0])
        await self._fill("local", 4)
        await self._fill("uploaded", 4)

    async def _fill(self, topic: str, partition_count: int, share: int = 1) -> None:
        random = Random(1)
        key_count = self._size_bytes // VALUE_BYTES // 2
        for call in range(self._size_bytes // share // (BATCH_COUNT * VALUE_BYTES)):
            records = [
                Record(0, 1000, b"%08d" % random.randrange(key_count), random.randbytes(VALUE_BYTES))
                for _ in range(BATCH_COUNT)
            ]
            await self._client.append(topic, call % partition_count, records)

    async def appends_s(self, count: int) -> list[float]:
        """How long each of so many appends takes."""
        return [await self._append() for _ in range(count)]

    async def appends_beside_s(self, work: Callable[[], Awaitable[object]]) -> list[float]:
        """How long each append takes while the work goes on."""
        ended = asyncio.ensure_future(work())
        taken_s: list[float] = []
        while not ended.done():
            taken_s.append(await self._append())
        await ended
        return taken_s

    async def _append(self) -> float:
        return await call_s(self._call, self._request)

    async def beside_readers_s(self, reading: Reading) -> tuple[list[float], int]:
        """How long each append takes beside the readers, and the bytes that they read in all their time."""
        await self._client.admin.empty_caches()
        return await beside_readers_s(self._readers, reading, self._append)

    def reading(self, seconds: float, topic: str, *, is_stream: bool) -> Reading:
        """The work of readers of a topic."""
        record_count = self._size_bytes // (4 * VALUE_BYTES)
        return Reading(self._client.address, seconds, topic, record_count, is_stream)

    async def clean(self) -> None:
        """Let the cleaner clean the local log once."""
        admin = self._client.admin
        before = (await admin.cleaner_status()).clean_count
        await admin.alter_configs({"min.cleanable.dirty.ratio": "0.0"}, topic="cleaned")
        while (await admin.cleaner_status()).clean_count == before:
            await asyncio.sleep(0.05)

    async def compact(self) -> None:
        """Compact the tiered topic."""
        await self._client.admin.run_compaction(["compacted"])

    async def upload(self) -> None:
        """Upload all of a topic, in objects as large as they get."""
        await self._client.admin.upload(["uploaded"])


async def beside_readers_s(
    readers: ProcessPoolExecutor, reading: Reading, call: Callable[[], Awaitable[float]]
) -> tuple[list[float], int]:
    """How long each call takes beside the readers, and the bytes that they read in all their time."""
    ended = asyncio.get_running_loop().run_in_executor(readers, read_bytes, reading)
    await asyncio.sleep(LEAD_S)
    taken_s: list[float] = []
    while not ended.done():
        taken_s.append(await call())
    return taken_s, await ended


def row_of(work: str, ours_s: list[float], reference_s: list[float], target: float = TARGET) -> Row:
    """The slowest in a hundred of both."""
    print(f"{len(ours_s)} calls: {work}", file=sys.stderr)
    ours_ms, reference_ms = (1000 * percentile_s(taken_s, 0.99) for taken_s in (ours_s, reference_s))
    return Row(
        work=f"{work}, 99 %", unit="ms", ours=ours_ms, reference=reference_ms, target=target, is_cost=True
    )


async def measure_bare(
    bare: ServerProcess, readers: ProcessPoolExecutor, seconds: float
) -> tuple[list[float], int]:
    """Calls of the bare server beside its streams, and the bytes of these."""
    async with grpc.aio.insecure_channel(bare.address, OPTIONS) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(BARE + "Unary")
        request = bytes(SMALL_BYTES)
        return await beside_readers_s(
            readers, Reading(bare.address, seconds, "", 0), partial(call_s, call, request)
        )


async def measure_companies(
    ours: ServerProcess, bare: ServerProcess, size_bytes: int, count: int, seconds: float
) -> list[Row]:
    rows: list[Row] = []
    async with Client(ours.address) as client, grpc.aio.insecure_channel(ours.address, OPTIONS) as channel:
        # A fork would take the threads of gRPC along.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as readers:
            company = Company(client, channel, readers, size_bytes)
            await company.prepare()
            await company.appends_s(count)
            bare_s, bare_bytes = await measure_bare(bare, readers, seconds)
            alone_s = await company.appends_s(count)
            apart_s, _ = await company.beside_readers_s(Reading(bare.address, seconds, "", 0))
            rows.append(row_of(f"append beside {READER_COUNT} readers of another server", apart_s, alone_s))
            for name, topic, is_stream, rate in (
                ("cold readers", "cold", True, None),
                (f"cold readers at {COLD_RATE_MB} MB/s", "cold", True, COLD_RATE_MB * 1_000_000),
                ("cold fetches", "cold", False, None),
                ("local readers", "local", True, None),
            ):
                await client.admin.alter_configs({COLD_RATE: rate})
                alone_s = await company.appends_s(count)
                reading = company.reading(seconds, topic, is_stream=is_stream)
                beside_s, read_bytes_count = await company.beside_readers_s(reading)
                work = f"append beside {READER_COUNT} {name}"
                rows.append(row_of(work, beside_s, alone_s))
                rows.append(row_of(f"{work}, by bare grpcio", beside_s, bare_s, BARE_TARGET))
                ours_rate, bare_rate = (size / 1e6 / seconds for size in (read_bytes_count, bare_bytes))
                rows.append(
                    Row(
                        work=f"{READER_COUNT} {name} beside appends",
                        unit="MB/s",
                        ours=ours_rate,
                        reference=bare_rate,
                        target=RATE_TARGET,
                    )
                )
            for name, work_of in (
                ("a clean", company.clean),
                ("a compaction", company.compact),
                ("an upload", company.upload),
            ):
                alone_s = await company.appends_s(count)
                beside_s = await company.appends_beside_s(work_of)
                rows.append(row_of(f"append beside {name}", beside_s, alone_s))
    return rows


def measure(quick: bool) -> Iterator[Row]:
    """The 99 % of appends beside each company."""
    with (
        tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder,
        running(append_fetch.__file__, "serve-bare", folder) as bare,
        running(*stratalog_command(f"{folder}/data", "--config", "log.cleaner.backoff.ms=100")) as ours,
    ):
        size_bytes, count, seconds = (32 << 20, 500, 3.0) if quick else (256 << 20, 3_000, 8.0)
        yield from asyncio.run(measure_companies(ours, bare, size_bytes, count, seconds))


if __name__ == "__main__":
    sys.exit(run(measure))
