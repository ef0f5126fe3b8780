"""Measures health checks of a server with a bound that is full, while clients ask for more.

99 of 100 checks are promised within 100 ms, or within the time that they take at a bare server, where that is
longer: on a busy machine both wait for a processor. The bare server answers checks, and the appends of the
same size, in a turn right behind ours. The checks come from a process of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple, cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from append_fetch import LOG
from report import Row, promised_cost, run
from server_process import running, stratalog_command
from stratalog.base.errors import LogStoreError
from stratalog.client.client import Client
from stratalog.client.retry import RetryPolicy
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.v1 import log_pb2, log_pb2_grpc

BARE_SERVER = str(Path(__file__).with_name("append_rush.py"))
MAX_HEALTH_MS = 100.0
CHANNEL_COUNT = 10
ASKING_COUNT = 4
"""Clients that ask for one more, again and again."""
CHECK_COUNT, QUICK_CHECK_COUNT = 1000, 100
PERIOD_S = 0.005
CALL_COUNT, ADMIN_COUNT, WATCH_COUNT = 1000, 200, 100
"""The bounds that a server has by default."""
CONNECTION_COUNT = 500
FETCH = log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="t")], max_wait_ms=60_000, min_bytes=1)
LARGE_BYTES = 900_000
LARGE = [Record(0, 0, None, bytes(LARGE_BYTES)) for _ in range(20)]


class Site:
    """Connections to a server whose bound is filled."""

    def __init__(self, client: Client, channels: Sequence[grpc.aio.Channel]) -> None:
        self.client = client
        self.channels = channels
        self.stubs: Sequence[Any] = [log_pb2_grpc.LogServiceStub(channel) for channel in channels]
        self.number = 0

    def stub(self) -> Any:
        """The next connection's."""
        self.number += 1
        return self.stubs[self.number % CHANNEL_COUNT]


class Bound(NamedTuple):
    """A bound: how a server gets it, what fills it, and what asks for more."""

    name: str
    settings: Mapping[str, int]
    fill: Callable[[Site], Awaitable[object]]
    """Returns once it is full; what it returns is kept."""
    ask: Callable[[Site], Awaitable[object]]
    """Asks for one more. May raise the refusal."""


async def endless() -> AsyncIterator[log_pb2.AppendStreamRequest]:
    await asyncio.Event().wait()
    yield log_pb2.AppendStreamRequest()


async def fill_appends(site: Site) -> object:
    calls = [site.stub().AppendStream(endless()) for _ in range(CALL_COUNT)]
    await asyncio.gather(*(call.initial_metadata() for call in calls))
    return calls


async def fill_reads(site: Site) -> object:
    calls = [site.stub().FetchStream(FETCH) for _ in range(CALL_COUNT)]
    await asyncio.gather(*(call.initial_metadata() for call in calls))
    return calls


async def fill_admin(site: Site) -> object:
    stubs: list[Any] = [
        reflection_pb2_grpc.ServerReflectionStub(cast(Any, channel)) for channel in site.channels
    ]
    calls = [stubs[number % CHANNEL_COUNT].ServerReflectionInfo() for number in range(ADMIN_COUNT)]
    for call in calls:
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        await call.read()
    return calls


async def fill_watches(site: Site) -> object:
    stubs: list[Any] = [health_pb2_grpc.HealthStub(cast(Any, channel)) for channel in site.channels]
    calls = [
        stubs[number % CHANNEL_COUNT].Watch(health_pb2.HealthCheckRequest()) for number in range(WATCH_COUNT)
    ]
    await asyncio.gather(*(call.read() for call in calls))
    return calls


def connect(site: Site) -> socket.socket:
    host, _, port = site.client.address.rpartition(":")
    return socket.create_connection((host, int(port)))


async def fill_connections(site: Site) -> object:
    return [connect(site) for _ in range(CONNECTION_COUNT)]


async def one_connection(site: Site) -> None:
    connect(site).close()


async def watch_once(site: Site) -> None:
    stub: Any = health_pb2_grpc.HealthStub(cast(Any, site.channels[0]))
    await stub.Watch(health_pb2.HealthCheckRequest()).read()


async def fill_topics(site: Site) -> object:
    return await asyncio.gather(*(site.client.admin.create_topic(f"t{number}") for number in range(99)))


async def append_as(site: Site, producer_id: int) -> None:
    records = [Record(0, int(time.time() * 1000), None, b"x")]
    batch = encode_batch(records, producer=BatchProducer(producer_id, 0, 0))
    await site.client.append_batches("t", 0, batch)


async def fill_producers(site: Site) -> object:
    init = log_pb2.InitProducerRequest()
    for _ in range(1001):
        site.number = (await site.client.log.InitProducer(init)).producer_id
    await asyncio.gather(*(append_as(site, site.number - 1 - place) for place in range(1000)))
    return None


async def nothing(_site: Site) -> None:
    pass


async def rest(_site: Site) -> None:
    await asyncio.sleep(1)


async def append_once(site: Site) -> None:
    await site.client.append("t", 0, LARGE[:1])


async def append_much(site: Site) -> None:
    await asyncio.gather(*(site.client.append("t", 0, [one]) for one in LARGE))


async def poll_once(site: Site) -> None:
    await site.stub().Fetch(FETCH)


async def list_topics(site: Site) -> None:
    await site.client.admin.list_topics()


async def create_topic(site: Site) -> None:
    await site.client.admin.create_topic("u")


async def append_as_another(site: Site) -> None:
    await append_as(site, site.number)


BOUNDS = (
    Bound("none", {}, nothing, rest),
    Bound("streams of appends", {}, fill_appends, append_once),
    Bound("streams of fetches", {}, fill_reads, poll_once),
    Bound("other calls", {}, fill_admin, list_topics),
    Bound("watches of the health", {}, fill_watches, watch_once),
    Bound(
        "connections",
        # The sockets that fill it, the channels, the client, and the checks.
        {"max-connections": CONNECTION_COUNT + CHANNEL_COUNT + 2},
        fill_connections,
        one_connection,
    ),
    Bound("memory of appends", {"max-request-memory": 64}, nothing, append_much),
    Bound("topics", {"max-topic-count": 100}, fill_topics, create_topic),
    Bound("producers", {"max-partition-producer-count": 1000}, fill_producers, append_as_another),
)


async def asking(site: Site, bound: Bound) -> None:
    """Ask for one more without end."""
    while True:
        with contextlib.suppress(LogStoreError, grpc.aio.AioRpcError, OSError):
            await bound.ask(site)
        await asyncio.sleep(PERIOD_S)


@contextlib.asynccontextmanager
async def site_of(address: str) -> AsyncGenerator[Site]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(address, retry=RetryPolicy(deadline_s=0)))
        await client.admin.create_topic("t")
        options = (("grpc.use_local_subchannel_pool", 1),)
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
            for _ in range(CHANNEL_COUNT)
        ]
        for channel in channels:
            await channel.channel_ready()
        yield Site(client, channels)


def checks_ms(address: str, check_count: int) -> list[float]:
    """How long each health check took, in milliseconds. Runs in a process of its own."""
    taken_ms: list[float] = []
    with grpc.insecure_channel(address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        # Where connections are scarce, another client may have the last one for a moment.
        health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        for _ in range(check_count):
            begin_s = time.perf_counter()
            health.Check(health_pb2.HealthCheckRequest())
            taken_ms.append((time.perf_counter() - begin_s) * 1000)
            time.sleep(PERIOD_S)
    return taken_ms


async def slowest_ms(checker: ProcessPoolExecutor, address: str, bound: Bound, check_count: int) -> float:
    """The time within which 99 of 100 health checks are answered, in milliseconds."""
    async with site_of(address) as site:
        kept = await bound.fill(site)
        tasks = [asyncio.create_task(asking(site, bound)) for _ in range(ASKING_COUNT)]
        loop = asyncio.get_running_loop()
        taken_ms = await loop.run_in_executor(checker, checks_ms, address, check_count)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        del kept
    return sorted(taken_ms)[len(taken_ms) * 99 // 100]


async def bare_ms(checker: ProcessPoolExecutor, bound: Bound, check_count: int) -> float:
    """The same at a bare server, beside as many bytes of appends as the bound has, if it has any."""

    async def append(call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]) -> None:
        while True:
            await asyncio.gather(*(call(bytes(LARGE_BYTES)) for _ in LARGE))
            await asyncio.sleep(PERIOD_S)

    with running(BARE_SERVER, "serve-bare") as server:
        async with grpc.aio.insecure_channel(server.address) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(LOG + "Append")
            is_large = bound.ask is append_much
            tasks = [asyncio.create_task(append(call)) for _ in range(ASKING_COUNT if is_large else 0)]
            loop = asyncio.get_running_loop()
            taken_ms = await loop.run_in_executor(checker, checks_ms, server.address, check_count)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return sorted(taken_ms)[len(taken_ms) * 99 // 100]


async def in_each(check_count: int) -> list[Row]:
    """A row for each bound."""
    rows: list[Row] = []
    # A fork would take the threads of gRPC along.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as checker:
        for bound in BOUNDS:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                settings = Path(folder) / "settings.toml"
                settings.write_text("".join(f"{name} = {value}\n" for name, value in bound.settings.items()))
                options = ("--config-file", str(settings))
                with running(*stratalog_command(f"{folder}/data", *options)) as server:
                    taken_ms = await slowest_ms(checker, server.address, bound, check_count)
            most_ms = max(MAX_HEALTH_MS, await bare_ms(checker, bound, check_count))
            rows.append(promised_cost(f"health, full: {bound.name}", "ms", taken_ms, most_ms))
    return rows


def measure(quick: bool) -> Iterator[Row]:
    """Health checks in each bound beside what is promised of them."""
    yield from asyncio.run(in_each(QUICK_CHECK_COUNT if quick else CHECK_COUNT))


if __name__ == "__main__":
    sys.exit(run(measure))
