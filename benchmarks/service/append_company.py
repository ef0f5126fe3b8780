"""The slowest in a hundred of small appends beside other work of the server, by the same without it.

One caller appends a record of 100 bytes after the other, at `os`. The companies are 100 readers of tiered
data, none of which is in a cache; a clean of a local log; and a compaction of objects. The caller's appends
just before each of them are the reference.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from random import Random

import grpc

from append_fetch import LOG, OPTIONS, SMALL_BYTES, batch_of
from log_cleaner import percentile_s
from report import Row, run
from server_process import running, stratalog_command
from stratalog.client.client import Client
from stratalog.record.record import Record
from stratalog.v1 import log_pb2

TARGET = 0.5
READER_COUNT = 100
VALUE_BYTES = 1000
BATCH_COUNT = 512
"""Records of a call that fills."""
CLEANED = {"cleanup.policy": "compact", "remote.storage.enable": "false", "min.cleanable.dirty.ratio": "1.0"}
"""A local topic that is not cleaned before its ratio is lowered."""


class Company:
    """A server with data, and work for it beside appends. Belongs to the event loop."""

    def __init__(self, client: Client, channel: grpc.aio.Channel, size_bytes: int) -> None:
        self._client = client
        self._channel = channel
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
        await admin.create_topic("cold", 4, {"segment.bytes": str(4 << 20)})
        await admin.create_topic("compacted", 4, {"cleanup.policy": "compact", "retention.ms": "-1"})
        await admin.create_topic("cleaned", 1, {**CLEANED, "segment.bytes": str(16 << 20)})
        await self._fill("cold", 4)
        await admin.upload(["cold"], delete_local=True)
        for _ in range(4):
            await self._fill("compacted", 4, 4)
            await admin.upload(["compacted"])
        await self._fill("cleaned", 1)
        await admin.roll("cleaned", [0])

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
        begin = time.perf_counter()
        await self._call(self._request)
        return time.perf_counter() - begin

    async def read_cold(self) -> None:
        """Let many readers read all tiered data, from their own places on."""
        await self._client.admin.empty_caches()
        await asyncio.gather(*map(self._read, range(READER_COUNT)))

    async def _read(self, number: int) -> None:
        per_partition = self._size_bytes // (4 * VALUE_BYTES)
        request = log_pb2.FetchRequest(max_bytes=1 << 20)
        start = per_partition * (number // 4) // (READER_COUNT // 4) // 2
        request.partitions.add(
            topic="cold", partition=number % 4, start=log_pb2.Position(offset=start), max_bytes=1 << 20
        )
        call: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(
            LOG + "FetchStream"
        )
        stream = call(request.SerializeToString())
        left_bytes = self._size_bytes // 64
        async for response in stream:
            left_bytes -= len(response)
            if left_bytes <= 0:
                break
        stream.cancel()

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


async def measure_companies(address: str, size_bytes: int, count: int) -> list[Row]:
    rows: list[Row] = []
    async with Client(address) as client, grpc.aio.insecure_channel(address, OPTIONS) as channel:
        company = Company(client, channel, size_bytes)
        await company.prepare()
        await company.appends_s(count)
        for name, work in (
            (f"{READER_COUNT} cold readers", company.read_cold),
            ("a clean", company.clean),
            ("a compaction", company.compact),
        ):
            alone_s = await company.appends_s(count)
            beside_s = await company.appends_beside_s(work)
            print(f"{len(beside_s)} appends beside {name}", file=sys.stderr)
            ours_ms, reference_ms = (1000 * percentile_s(taken, 0.99) for taken in (beside_s, alone_s))
            rows.append(
                Row(
                    work=f"append beside {name}, 99 %",
                    unit="ms",
                    ours=ours_ms,
                    reference=reference_ms,
                    target=TARGET,
                    is_cost=True,
                )
            )
    return rows


def measure(quick: bool) -> Iterator[Row]:
    """The 99 % of appends beside each company."""
    with (
        tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder,
        running(*stratalog_command(f"{folder}/data", "--config", "log.cleaner.backoff.ms=100")) as server,
    ):
        size_bytes, count = (32 << 20, 500) if quick else (256 << 20, 3_000)
        yield from asyncio.run(measure_companies(server.address, size_bytes, count))


if __name__ == "__main__":
    sys.exit(run(measure))
