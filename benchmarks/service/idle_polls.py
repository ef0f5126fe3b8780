"""Measures what a thousand long polls and streams that wait for records cost a server: processor time and
memory. No record comes. A poll that ends begins again; a stream is opened once.

Promised are at most 1 % of a processor and 32 KiB for each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from typing import Any

import grpc

from report import Row, promised_cost, run
from server_process import ServerProcess, running, stratalog_command
from stratalog.client.client import Client
from stratalog.v1 import log_pb2, log_pb2_grpc

CALL_COUNT, CHANNEL_COUNT = 1000, 10
PARTITION_COUNT = 10
MAX_PROCESSOR_PERCENT, MAX_CALL_KIB = 1.0, 32.0
IDLE_S, QUICK_IDLE_S = 60.0, 5.0


Waiting = Callable[[Any, int], Coroutine[Any, Any, None]]
"""A call of this number that waits; it gets a stub."""


def request(number: int) -> log_pb2.FetchRequest:
    start = log_pb2.Position(offset=0)
    partition = log_pb2.FetchPartition(topic="t", partition=number % PARTITION_COUNT, start=start)
    return log_pb2.FetchRequest(partitions=[partition], max_wait_ms=60_000, min_bytes=1)


async def poll(stub: Any, number: int) -> None:
    while True:
        await stub.Fetch(request(number))


async def follow(stub: Any, number: int) -> None:
    await stub.FetchStream(request(number)).read()


@contextlib.asynccontextmanager
async def stubs(address: str) -> AsyncGenerator[Sequence[Any]]:
    async with contextlib.AsyncExitStack() as stack:
        options = (("grpc.use_local_subchannel_pool", 1),)
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
            for _ in range(CHANNEL_COUNT)
        ]
        yield [log_pb2_grpc.LogServiceStub(channel) for channel in channels]


async def measured(server: ServerProcess, work: Waiting, idle_s: float) -> tuple[float, float]:
    """The percentage of a processor while the calls wait, and the KiB that each of them takes."""
    async with stubs(server.address) as found:
        before_bytes = server.resident_bytes()
        calls = [
            asyncio.create_task(work(found[number % CHANNEL_COUNT], number)) for number in range(CALL_COUNT)
        ]
        await asyncio.sleep(3)
        begin_s, used_s = time.monotonic(), server.processor_s()
        await asyncio.sleep(idle_s)
        percent = 100 * (server.processor_s() - used_s) / (time.monotonic() - begin_s)
        assert not any(call.done() for call in calls), "all calls wait"
        call_kib = (server.resident_bytes() - before_bytes) / 1024 / CALL_COUNT
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
    return percent, call_kib


async def warm(server: ServerProcess) -> None:
    """Let the server make what it makes once."""
    async with Client(server.address) as client:
        await client.admin.create_topic("t", PARTITION_COUNT)
    async with stubs(server.address) as found:
        for work in (poll, follow):
            calls = [asyncio.create_task(work(found[number], number)) for number in range(CHANNEL_COUNT)]
            await asyncio.sleep(0.5)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)


async def idle(work: Waiting, idle_s: float) -> tuple[float, float]:
    """`measured`, of a new server."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        running(*stratalog_command(f"{folder}/data")) as server,
    ):
        await warm(server)
        return await measured(server, work, idle_s)


def measure(quick: bool) -> Iterator[Row]:
    """Idle calls beside what is promised of them."""
    for name, work in (("long polls", poll), ("streams", follow)):
        percent, call_kib = asyncio.run(idle(work, QUICK_IDLE_S if quick else IDLE_S))
        what = f"{CALL_COUNT} idle {name}"
        yield promised_cost(f"{what}: processor", "%", percent, MAX_PROCESSOR_PERCENT)
        yield promised_cost(f"{what}: memory of each", "KiB", call_kib, MAX_CALL_KIB)


if __name__ == "__main__":
    sys.exit(run(measure))
