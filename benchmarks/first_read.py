"""Cold first reads of one record at a random offset of many objects, through gRPC.

The server is a new process that has memory for no page of metadata, as if the pages were many times as large
as its cache for them; it has fetched them to its disk by itself. Its requests are counted for each read, and
it sends no second one for a slow one, which is up to 5 in 100 more by default. The reference is two bare GETs
of the sizes that such a read needs, one after the other, by boto3 alone. There are as many objects as can be
uploaded in half a minute, each with a slice of every partition. All talk to one S3 server (SeaweedFS) on the
same machine, which takes its share of the processors. Without that server there is nothing to measure.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

import grpc

from report import Row, promised_cost, run, seconds
from server_process import ServerProcess, running
from stratalog.base.clock import SystemClock
from stratalog.base.randomness import SystemIdGenerator
from stratalog.client.client import Client
from stratalog.objectstore.open_store import open_store
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.objects.object_directory import read_directory
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout
from stratalog.v1 import log_pb2, log_pb2_grpc
from tests.support.tiered.s3_servers import S3Server, ServerMissingError, seaweedfs_server

ALLOWANCE_S: Final = 0.005
MAX_GETS: Final = 2
INTERVAL_BYTES: Final = 64 << 10
PARTITION_COUNT: Final = 8
BATCHES_OF_A_SLICE: Final = 4
RECORDS_OF_A_BATCH: Final = 24
TOPIC: Final = "t"
PREFIX: Final = "first"
READS: Final = 200
_REQUESTS: Final = "stratalog_object_store_requests_total"


class FirstReads(NamedTuple):
    """Reads of one record each, beside two bare GETs."""

    bare_s: float
    """Median."""
    ours_s: float
    """Median."""
    most_gets: int
    mean_gets: float


class Bench:
    """A server with a tiered topic. Belongs to the event loop."""

    def __init__(self, server: ServerProcess, metrics_url: str) -> None:
        self._metrics_url = metrics_url
        self.client = Client(server.address)
        self._channel = grpc.aio.insecure_channel(server.address)
        self._log: Any = log_pb2_grpc.LogServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()
        await self.client.close()

    async def append(self, partition: int, batch: bytes) -> None:
        await self._log.Append(log_pb2.AppendRequest(topic=TOPIC, partition=partition, batches=batch))

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
        """Wait for the pass that fetches the pages of metadata."""
        while True:
            passes = (await self.client.admin.tier_status()).passes
            if any(one.name == "metadata-pages" and one.total_done.get("pages") for one in passes):
                return
            await asyncio.sleep(0.2)


def _command(data_dir: str, store_url: str) -> tuple[str, ...]:
    """The arguments of Python that start a server without memory for pages of metadata, whose requests are
    those of its callers: no pass looks at the heads."""
    program = f"""
from stratalog.server.app import serve
from stratalog.server.configuration.settings import ServerSettings

HOUR_MS = 3_600_000
settings = ServerSettings(
    data_dir={data_dir!r}, store_url={store_url!r}, listen="127.0.0.1:0", metrics_listen="127.0.0.1:0",
    metadata_cache_bytes=1, head_refresh_ms=HOUR_MS, max_silence_ms=0, upload_ms=HOUR_MS, fold_ms=HOUR_MS,
    collector_ms=HOUR_MS, config={{"remote.read.hedge.percent": "0"}},
)

def announce(server):
    print("stratalog serves", f"127.0.0.1:{{server.port}}", server.metrics_port, flush=True)

serve(settings, announce)
"""
    return ("-c", program)


async def _fill(bench: Bench, budget_s: float) -> int:
    """Append and upload for a while, one object after the other; returns the records of each partition."""
    random = Random(1)
    await bench.client.admin.create_topic(TOPIC, PARTITION_COUNT)
    count = 0
    end_s = time.monotonic() + budget_s
    while time.monotonic() < end_s:
        for _ in range(BATCHES_OF_A_SLICE):
            records = [Record(0, 1, None, random.randbytes(1000)) for _ in range(RECORDS_OF_A_BATCH)]
            batch = encode_batch(records)
            await asyncio.gather(*(bench.append(partition, batch) for partition in range(PARTITION_COUNT)))
        await bench.client.admin.upload([TOPIC], delete_local=True)
        count += BATCHES_OF_A_SLICE * RECORDS_OF_A_BATCH
    return count


def _fold(store_url: str) -> None:
    """Fold the shard, while no server runs, so that its slices are in pages."""
    ids, clock = SystemIdGenerator(), SystemClock()
    store = open_store(store_url, clock=clock, ids=ids)
    identity = StoreIdentity.open(store)
    actor = StoreActor(store, clock, Random(1), ids, identity, Writer("bench", "bench"))
    assert MetadataLog.open(actor, 0, partial(read_directory, store, StoreLayout(0))).fold() is not None


async def _first_reads(bench: Bench, store: S3Server, record_count: int) -> tuple[FirstReads, int]:
    """Random first reads, each beside two bare GETs; and the number of objects."""
    random, s3 = Random(2), store.client()
    pages = s3.get_paginator("list_objects_v2").paginate(
        Bucket=store.bucket, Prefix=f"{PREFIX}/shards/0000/data/"
    )
    objects = [(one["Key"], one["Size"]) for page in pages for one in page["Contents"]]
    bare: list[float] = []
    ours: list[float] = []
    gets: list[int] = []

    def get(key: str, start: int, size_bytes: int) -> None:
        s3.get_object(Bucket=store.bucket, Key=key, Range=f"bytes={start}-{start + size_bytes - 1}")[
            "Body"
        ].read()

    def two_gets() -> None:
        key, size = random.choice(objects)
        get(key, size - 1024, 1024)
        get(key, random.randrange(size - INTERVAL_BYTES), INTERVAL_BYTES)

    for _ in range(READS):
        bare.append(await asyncio.to_thread(seconds, two_gets))
        await bench.client.admin.empty_caches()
        before = await asyncio.to_thread(bench.get_count)
        partition, offset = random.randrange(PARTITION_COUNT), random.randrange(record_count)
        begin_s = time.monotonic()
        assert await bench.read_one(partition, offset)
        ours.append(time.monotonic() - begin_s)
        gets.append(await asyncio.to_thread(bench.get_count) - before)
    reads = FirstReads(statistics.median(bare), statistics.median(ours), max(gets), statistics.mean(gets))
    return reads, len(objects)


async def _rows(store: S3Server, budget_s: float) -> list[Row]:
    os.environ.update(store.environment(), AWS_DEFAULT_REGION=store.region)
    url = store.store_url(PREFIX)
    with tempfile.TemporaryDirectory() as directory:
        command = _command(f"{directory}/data", url)
        with running(*command) as server:
            bench = Bench(server, "")
            try:
                record_count = await _fill(bench, budget_s)
            finally:
                await bench.close()
        _fold(url)
        with running(*command) as server:
            bench = Bench(server, f"http://127.0.0.1:{server.further[0]}/metrics")
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
            target=reads.bare_s / (reads.bare_s + ALLOWANCE_S),
        ),
    ]


def measure(quick: bool) -> Iterator[Row]:
    """Cold first reads of one record, beside two bare GETs."""
    with ExitStack() as closing:
        try:
            store = closing.enter_context(seaweedfs_server())
        except ServerMissingError:
            return
        yield from asyncio.run(_rows(store, 8 if quick else 30))


if __name__ == "__main__":
    sys.exit(run(measure))
