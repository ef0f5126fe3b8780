"""A server under crowds: readers that do not take their answers, idle streams and calls that are cancelled.
Its descriptors, threads and memory stay under limits: small crowds in CI, whole ones by `make torture`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.record.record import Record
from stratalog.v1 import log_pb2, log_pb2_grpc
from tests.support.service.health_check import require_health_over
from tests.support.service.server_process import ServerProcess
from tests.support.torture.process_use import IS_SHOWN, ProcessUse

IS_WHOLE = float(os.environ.get("STRATALOG_TORTURE_S", "8")) > 60
CROWD_COUNT = 1000 if IS_WHOLE else 100
CANCELLED_COUNT = 10_000 if IS_WHOLE else 1000
CONNECTION_COUNT = 20
MEMORY_MIB = 64
"""`--max-request-memory`: half of it may be held by answers."""
VALUE = bytes(100_000)

MAX_DESCRIPTOR_COUNT = 60
"""Beside one for each connection: files of logs, sockets and the loop's own."""
MAX_THREAD_COUNT = 60
CALL_BYTES = 192 << 10
"""Memory of a call with an answer that its client does not take: the least answer, which may be one batch,
and the transport's window of 64 KiB."""
BASE_BYTES = 96 << 20
"""Growth that does not depend on the number of calls: records, twice the memory for answers."""


def require(use: ProcessUse, before: ProcessUse, call_count: int) -> None:
    assert use.descriptor_count <= MAX_DESCRIPTOR_COUNT + CONNECTION_COUNT
    assert use.thread_count <= MAX_THREAD_COUNT
    assert use.resident_bytes - before.resident_bytes <= BASE_BYTES + call_count * CALL_BYTES


@asynccontextmanager
async def channels(address: str) -> AsyncGenerator[Sequence[grpc.aio.Channel]]:
    async with AsyncExitStack() as stack:
        options = (("grpc.use_local_subchannel_pool", 1),)
        yield [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
            for _ in range(CONNECTION_COUNT)
        ]


def fetch(offset: int, max_wait_ms: int = 60_000) -> log_pb2.FetchRequest:
    partition = log_pb2.FetchPartition(topic="t", start=log_pb2.Position(offset=offset))
    return log_pb2.FetchRequest(partitions=[partition], max_wait_ms=max_wait_ms, min_bytes=1)


async def endless() -> AsyncIterator[log_pb2.AppendStreamRequest]:
    await asyncio.Event().wait()
    yield log_pb2.AppendStreamRequest()


@pytest.mark.skipif(not IS_SHOWN, reason="it reads /proc")
async def test_crowds_leave_a_server_within_its_bounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        *("--max-request-memory", str(MEMORY_MIB)),
        *("--max-read-calls", str(2 * CROWD_COUNT)),
        # One append beside the quiet streams.
        *("--max-append-calls", str(CROWD_COUNT + 1)),
    ]
    with ServerProcess(f"{tmp_path}/data", options=options) as server:
        async with Client(server.address) as client, channels(server.address) as found:
            await client.admin.create_topic("t")
            end_offset = 0
            for _ in range(50):
                end_offset = (await client.append("t", 0, [Record(0, 0, None, VALUE)])).base_offset + 1
            await client.fetch({TopicPartition("t", 0): 0})
            stubs: list[Any] = [log_pb2_grpc.LogServiceStub(channel) for channel in found]
            before = ProcessUse.of(server.pid)

            # Readers that take one answer and no more, and readers at the end of the log.
            slow = [stubs[number % CONNECTION_COUNT].FetchStream(fetch(0)) for number in range(CROWD_COUNT)]
            idle = [
                stubs[number % CONNECTION_COUNT].FetchStream(fetch(end_offset))
                for number in range(CROWD_COUNT)
            ]
            # Producers that send nothing.
            quiet = [
                stubs[number % CONNECTION_COUNT].AppendStream(endless()) for number in range(CROWD_COUNT)
            ]
            await asyncio.gather(*(call.initial_metadata() for call in (*slow, *idle, *quiet)))
            await require_health_over(found[0])
            beside = ProcessUse.of(server.pid)
            require(beside, before, 3 * CROWD_COUNT)
            await client.append("t", 0, [Record(0, 0, None, b"x")])
            for call in idle:
                assert (await call.read()).partitions[0].next_fetch_offset == end_offset + 1
            for call in (*slow, *idle, *quiet):
                call.cancel()

            for _ in range(CANCELLED_COUNT // CROWD_COUNT):
                polls = [
                    stubs[number % CONNECTION_COUNT].Fetch(fetch(end_offset + 1))
                    for number in range(CROWD_COUNT)
                ]
                await asyncio.sleep(0.05)
                for call in polls:
                    call.cancel()
            await require_health_over(found[1])
            await client.append("t", 0, [Record(0, 0, None, b"y")])
            require(ProcessUse.of(server.pid), before, CROWD_COUNT)
            # No call is left behind: as many as are allowed may begin again.
            polls = [stubs[number % CONNECTION_COUNT].Fetch(fetch(0, 0)) for number in range(CROWD_COUNT)]
            for answer in await asyncio.gather(*polls):
                assert answer.partitions[0].next_fetch_offset > 0
            with capsys.disabled():
                sys.stdout.write(
                    f"\nbefore the crowds {before}, beside them {beside}, then {ProcessUse.of(server.pid)}\n"
                )
