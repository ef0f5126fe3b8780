"""How long a health check takes while thousands of appends come at once, beside bare grpcio.

A client process with 64 connections sends 5,000 unary appends of one small record without a pause, and waits
for all answers. Beside it this process asks for the health of the server, one check after the other. The
slowest check that began in the rush counts, of the middle one of several rushes: one check that the machine
holds up says nothing. The reference is a bare server that answers the same calls at once. A second row has
the promised 100 ms as its reference, and a third the time until all appends have their answers; those that
the server refuses because its cap is reached count as answered.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import grpc
from grpc_health.v1 import health_pb2

from append_fetch import LOG, OPTIONS, SMALL_BYTES, batch_of
from report import Row, promised_cost, run
from server_process import ServerProcess, running, stratalog_command
from stratalog.base.process_tuning import keep_freed_memory
from stratalog.v1 import admin_pb2, admin_pb2_grpc, log_pb2

PROMISED_MS = 100.0
TARGET = 0.5
"""The bare server only answers."""
CALL_COUNT = 5_000
CONNECTION_COUNT = 64
PARTITION_COUNT = 16
TOPIC = "rush"
CHECK = "/grpc.health.v1.Health/Check"
PAUSE_S = 0.005
"""Between two health checks."""


class Rush(NamedTuple):
    """One rush."""

    slowest_check_s: float
    answered_s: float
    """Until the last append had its answer."""


# --- the bare server, and the client that rushes, each in a process of its own ------------------------------


async def serve_bare() -> None:
    """Answer appends and health checks at once."""
    keep_freed_memory()
    healthy = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    async def append(_request: bytes, _context: object) -> bytes:
        return b"acknowledged 20 byte"

    async def check(_request: bytes, _context: object) -> bytes:
        return healthy.SerializeToString()

    server = grpc.aio.server(options=[*OPTIONS, ("grpc.server.max_pending_requests", 100_000)])
    for service, method, answer in (
        (LOG.strip("/"), "Append", append),
        (CHECK.split("/")[1], "Check", check),
    ):
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            method: grpc.unary_unary_rpc_method_handler(answer)
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"bare serves 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


async def send_appends(address: str) -> None:
    """Connect, then send all appends at once for each line of the input."""
    own_connection = ("grpc.use_local_subchannel_pool", 1)
    channels = [
        grpc.aio.insecure_channel(address, [*OPTIONS, own_connection]) for _ in range(CONNECTION_COUNT)
    ]
    calls: list[grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = [
        channel.unary_unary(LOG + "Append") for channel in channels
    ]
    batch = batch_of(SMALL_BYTES, SMALL_BYTES - 75)
    requests = [
        log_pb2.AppendRequest(
            topic=TOPIC, partition=number, durability=log_pb2.DURABILITY_OS, batches=batch
        ).SerializeToString()
        for number in range(PARTITION_COUNT)
    ]
    ends: Counter[str] = Counter()

    async def append(number: int) -> None:
        try:
            await calls[number % CONNECTION_COUNT](requests[number % PARTITION_COUNT])
        except grpc.aio.AioRpcError as error:
            ends[error.code().name] += 1
        else:
            ends["OK"] += 1

    await asyncio.gather(*(channel.channel_ready() for channel in channels))
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        ends.clear()
        begin = time.perf_counter()
        await asyncio.gather(*map(append, range(CALL_COUNT)))
        assert set(ends) <= {"OK", "RESOURCE_EXHAUSTED"}, f"the appends failed: {ends}"
        print(time.perf_counter() - begin, flush=True)


# --- the measure -------------------------------------------------------------------------------------------


def check_until(channel: grpc.Channel, ended: threading.Event) -> list[float]:
    """How long each of the checks until then took, in seconds."""
    check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CHECK)
    taken_s: list[float] = []
    while not ended.is_set():
        begin = time.perf_counter()
        check(b"", timeout=60)
        taken_s.append(time.perf_counter() - begin)
        time.sleep(PAUSE_S)
    return taken_s


def rushes(server: ServerProcess, round_count: int) -> Iterator[Rush]:
    """So many rushes of one client, after one that does not count."""
    command = [sys.executable, __file__, "send-appends", server.address]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client,
        grpc.insecure_channel(server.address) as channel,
    ):
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdout.readline()
        for turn in range(round_count + 1):
            ended = threading.Event()
            lines: list[str] = []

            def wait(lines: list[str] = lines, ended: threading.Event = ended) -> None:
                assert client.stdout is not None
                lines.append(client.stdout.readline())
                ended.set()

            waiting = threading.Thread(target=wait)
            waiting.start()
            client.stdin.write("go\n")
            client.stdin.flush()
            checks_s = check_until(channel, ended)
            waiting.join()
            if turn:
                yield Rush(max(checks_s), float(lines[0]))
        client.stdin.close()


def create_topic(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        admin_pb2_grpc.AdminServiceStub(channel).CreateTopic(
            admin_pb2.CreateTopicRequest(name=TOPIC, partition_count=PARTITION_COUNT)
        )


def measure(quick: bool) -> Iterator[Row]:
    """Health checks in a rush of appends, beside bare grpcio and the promise."""
    round_count = 3 if quick else 7
    with (
        tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder,
        running(__file__, "serve-bare") as bare,
        running(*stratalog_command(f"{folder}/data")) as ours,
    ):
        create_topic(ours.address)
        pairs = list(zip(rushes(bare, round_count), rushes(ours, round_count), strict=True))
    work = f"health check in {CALL_COUNT} appends, slowest"
    ours_ms = 1000 * statistics.median(rush.slowest_check_s for _, rush in pairs)
    bare_ms = 1000 * statistics.median(rush.slowest_check_s for rush, _ in pairs)
    yield Row(work=work, unit="ms", ours=ours_ms, reference=bare_ms, target=TARGET, is_cost=True)
    yield promised_cost(f"{work}, promised", "ms", ours_ms, PROMISED_MS)
    ours_s = statistics.median(rush.answered_s for _, rush in pairs)
    bare_s = statistics.median(rush.answered_s for rush, _ in pairs)
    yield Row(
        work=f"{CALL_COUNT} appends at once, until answered",
        unit="s",
        ours=ours_s,
        reference=bare_s,
        target=0.3,
        is_cost=True,
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["serve-bare"]:
        asyncio.run(serve_bare())
    elif sys.argv[1:2] == ["send-appends"]:
        asyncio.run(send_appends(sys.argv[2]))
    else:
        sys.exit(run(measure))
