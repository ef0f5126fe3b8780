"""How long a record of 100 bytes takes from its append to a reader that tails the log.

A caller appends a record by a unary call at `os`, and waits until the open stream of a reader has it; then
the next one. The reference is bare grpcio with the same requests: a server that hands each one to the open
stream, and stores nothing. The second row has the promised time itself as its reference. The third is the
floor: the bare server, when it also sums each request and writes it to a file, on a thread, before it hands
it on. Where the floor takes longer than promised, no server in Python keeps the promise. All are driven in
turns.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import grpc

from append_fetch import LOG, OPTIONS, SMALL_BYTES, batch_of, keep
from report import Row, run
from server_process import running, stratalog_command
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.process_tuning import keep_freed_memory
from stratalog.v1 import admin_pb2, admin_pb2_grpc, log_pb2

PROMISED_MS = 0.8
TARGET = 0.5
"""The bare server wakes the reader without a thread, a log or a checksum."""
BARE = "/bare.Tail/"
TOPIC = "tail"


class Side(NamedTuple):
    """The calls of one of the two servers, and its messages."""

    channel: grpc.aio.Channel
    append: str
    follow: str
    request: bytes
    following: bytes

    async def latencies_s(self, count: int) -> list[float]:
        """The time of each record, from the begin of its call to the reader's response."""
        follow: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self.channel.unary_stream(self.follow)
        append: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(self.append)
        reader = follow(self.following)
        await reader.initial_metadata()
        taken_s: list[float] = []
        for _ in range(count):
            begin = time.perf_counter()
            call = append(self.request)
            await reader.read()
            taken_s.append(time.perf_counter() - begin)
            await call
        reader.cancel()
        return taken_s


async def serve_bare(directory: str) -> None:
    """Hand each request to the open stream. Those that are kept are in the directory."""
    keep_freed_memory()
    passed: asyncio.Queue[bytes] = asyncio.Queue()
    pool, file = ThreadPoolExecutor(1), PosixFileSystem().open_append(f"{directory}/calls")

    async def append(request: bytes, _context: object) -> bytes:
        passed.put_nowait(request)
        return b"acknowledged 20 byte"

    async def keep_append(request: bytes, context: object) -> bytes:
        await asyncio.get_running_loop().run_in_executor(pool, keep, file, request)
        return await append(request, context)

    async def follow(
        _request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        await context.send_initial_metadata(())
        while True:
            yield await passed.get()

    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Append": grpc.unary_unary_rpc_method_handler(append),
        "KeepAppend": grpc.unary_unary_rpc_method_handler(keep_append),
        "Follow": grpc.unary_stream_rpc_method_handler(follow),
    }
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Tail", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"bare serves 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


async def measure_all(ours: str, bare: str, count: int, round_count: int) -> list[list[float]]:
    """Latencies of ours, of bare grpcio and of the floor, after a round of each that does not count."""
    request = log_pb2.AppendRequest(
        topic=TOPIC,
        partition=0,
        durability=log_pb2.DURABILITY_OS,
        batches=batch_of(SMALL_BYTES, SMALL_BYTES - 75),
    ).SerializeToString()
    following = log_pb2.FetchRequest(max_bytes=1 << 20, max_wait_ms=60_000)
    following.partitions.add(topic=TOPIC, start=log_pb2.Position(spec=log_pb2.OFFSET_SPEC_LATEST))
    taken_s: list[list[float]] = [[], [], []]
    async with (
        grpc.aio.insecure_channel(ours, OPTIONS) as our_channel,
        grpc.aio.insecure_channel(bare, OPTIONS) as bare_channel,
    ):
        await admin_pb2_grpc.AdminServiceStub(our_channel).CreateTopic(
            admin_pb2.CreateTopicRequest(name=TOPIC)
        )
        sides = (
            Side(our_channel, LOG + "Append", LOG + "FetchStream", request, following.SerializeToString()),
            Side(bare_channel, BARE + "Append", BARE + "Follow", request, b""),
            Side(bare_channel, BARE + "KeepAppend", BARE + "Follow", request, b""),
        )
        for turn in range(round_count + 1):
            for side, taken in zip(sides, taken_s, strict=True):
                found = await side.latencies_s(count)
                if turn:
                    taken.extend(found)
    return taken_s


def measure(quick: bool) -> list[Row]:
    """The median of the end to end latency."""
    with (
        tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder,
        running(__file__, "serve-bare", folder) as bare,
        running(*stratalog_command(f"{folder}/data")) as ours,
    ):
        count, round_count = (500, 3) if quick else (2_000, 5)
        all_s = asyncio.run(measure_all(ours.address, bare.address, count, round_count))
    ours_ms, bare_ms, floor_ms = (1000 * statistics.median(taken_s) for taken_s in all_s)
    work = f"append to tailing reader, {SMALL_BYTES} B, median"
    return [
        Row(
            work=f"{work}, beside bare",
            unit="ms",
            ours=ours_ms,
            reference=bare_ms,
            target=TARGET,
            is_cost=True,
        ),
        Row(work=work, unit="ms", ours=ours_ms, reference=PROMISED_MS, target=1.0, is_cost=True),
        Row(
            work=f"{work}, the floor",
            unit="ms",
            ours=floor_ms,
            reference=PROMISED_MS,
            target=1.0,
            is_cost=True,
        ),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve-bare"]:
        asyncio.run(serve_bare(sys.argv[2]))
    else:
        sys.exit(run(measure))
