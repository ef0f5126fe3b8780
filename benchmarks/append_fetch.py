"""Append, fetch and read over a loopback connection, beside bare grpcio that stores nothing.

Reference and server each run in a process of their own, both on grpc.aio with the same options, and the same
client code sends both the same messages: a generic handler that takes bytes and returns bytes is the ceiling
of the transport.
Four shapes:

* a bidirectional stream of batches of about 1 MiB, 8 in flight, each answered by a few bytes (AppendStream);
* the same over 12 partitions in turns, of batches of about 64 KiB, 96 in flight;
* a server stream of the same batches (FetchStream), also beside one that reads each message from a file;
* unary calls of 100 bytes, one at a time (Append).

The first and the last one also have a floor, which stands beside bare grpcio like our server: a bare server
that sums the CRC-32C of each message, and writes it to a file, both on a thread while it receives the next
one. It looks at no record, and has no log. Where the floor does not reach the target, no server in Python
does.

Two have no bare reference: a stream of batches of about 64 KiB at `disk` beside the same at `os`, 64 in
flight; and plain records (Read) beside FetchStream and the decoder of our client, which gives the same
records. The streams of batches also show the processor time of both servers, and the last row the memory that
both hold after all of it.

The server does all that it does in earnest: it checks every checksum and every record, stamps offsets, writes
to the local log, and reads back with checksums compared. Appends ask for `os`, so a run ends in the page
cache; what the disk makes of it afterwards is waited for outside of the time that counts. So is the upload of
what was appended, before the fetches: it takes more of a server's processor time than they do.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import BinaryIO, NamedTuple

import grpc

import report
from server_process import ServerProcess, memory_row, processor_row, running, stratalog_command
from stratalog.base.filesystem import AppendFile
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.process_tuning import keep_freed_memory, share_interpreter_lock
from stratalog.client.client import Client
from stratalog.client.messages import fetched_parts
from stratalog.record.builder import encode_batch
from stratalog.record.native.kernels import crc32c
from stratalog.record.record import Record
from stratalog.v1 import log_pb2, log_pb2_grpc

TARGET = 0.4
STREAM_TARGET = 0.7
FETCH_TARGET = 0.75
CALL_TARGET = 0.7
STORED_FETCH_TARGET = 0.8
READ_TARGET = 0.2
"""The server decodes for its readers, and every record is a message of its own on the wire."""
COST_TARGET = 0.3
MEMORY_TARGET = 0.3
"""The bare server holds no more than messages in flight; ours also the engine and its libraries."""
DISK_TARGET = 0.7
IN_FLIGHT_COUNT = 8
DISK_IN_FLIGHT_COUNT = 64
BATCH_BYTES = 1 << 20
RECORD_BYTES = 1024
RECORD_COUNT = BATCH_BYTES // (RECORD_BYTES + 30)
"""The records of a large batch."""
SMALL_BYTES = 100
STORED_COUNT = 64
"""The messages in the file of the bare server."""
PARTITION_COUNT = 12
PART_BYTES = 64 << 10
MB = 1_000_000

OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
]
BARE = "/bare.Bench/"
LOG = "/stratalog.v1.LogService/"
TOPIC = "bench"
SMALL_TOPIC = "small"
WIDE_TOPIC = "wide"


class Work:
    """How much of everything."""

    def __init__(self, quick: bool) -> None:
        self.batch_count = 128 if quick else 256
        self.part_count = 1_200 if quick else 3_600
        self.call_count = 1_500 if quick else 5_000
        self.repeats = 3 if quick else 5


def batch_of(size_bytes: int, record_bytes: int) -> bytes:
    """A batch of records with values of about `record_bytes`, as large as fits `size_bytes`."""
    count = max(1, size_bytes // (record_bytes + 30))
    return encode_batch(
        [Record(0, 1_357_034_400_000, b"%012d" % n, bytes(record_bytes - 12)) for n in range(count)]
    )


# --- the two servers, each in a process of its own ---------------------------------------------------------


class Keeping:
    """The floor of appends: sums and writes each message, then answers it. Belongs to the event loop."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._pool = ThreadPoolExecutor(1)
        self._stream_count = 0
        self._file = PosixFileSystem().open_append(f"{directory}/calls")

    async def call(self, request: bytes, _context: object) -> bytes:
        """Keep the message of a call."""
        await asyncio.get_running_loop().run_in_executor(self._pool, keep, self._file, request)
        return b"acknowledged 20 byte"

    async def stream(self, requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        """Answer in the order of the messages."""
        self._stream_count += 1
        file = PosixFileSystem().open_append(f"{self._directory}/{self._stream_count}")
        writes: asyncio.Queue[asyncio.Future[None] | None] = asyncio.Queue()
        taking = asyncio.create_task(self._take(requests, file, writes))
        while (written := await writes.get()) is not None:
            await written
            yield b"acknowledged 20 byte"
        await taking
        file.close()

    async def _take(
        self,
        requests: AsyncIterator[bytes],
        file: AppendFile,
        writes: asyncio.Queue[asyncio.Future[None] | None],
    ) -> None:
        loop = asyncio.get_running_loop()
        async for message in requests:
            writes.put_nowait(loop.run_in_executor(self._pool, keep, file, message))
        writes.put_nowait(None)


def keep(file: AppendFile, message: bytes) -> None:
    """Sum the message, and append it to the file."""
    crc32c(message)
    file.append([message])


async def serve_bare(message: bytes, stored: BinaryIO, directory: str) -> None:
    """Serve this message, from memory and from an empty file, which gets it. Messages are kept in the
    directory."""
    # As for our server: its processes are tuned alike.
    keep_freed_memory()
    share_interpreter_lock()
    stored.writelines([message] * STORED_COUNT)
    stored.flush()

    async def unary(_request: bytes, _context: object) -> bytes:
        return b"acknowledged 20 byte"

    async def take_stream(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield b"acknowledged 20 byte"

    async def give_stream(request: bytes, _context: object) -> AsyncIterator[bytes]:
        for _ in range(int(request)):
            yield message

    async def give_stored(request: bytes, _context: object) -> AsyncIterator[bytes]:
        # The least that a server of files does: it checks nothing, and puts no head before what it has read.
        for number in range(int(request)):
            yield os.pread(stored.fileno(), len(message), number % STORED_COUNT * len(message))

    keeping = Keeping(directory)
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "KeepOne": grpc.unary_unary_rpc_method_handler(keeping.call),
        "Take": grpc.stream_stream_rpc_method_handler(take_stream),
        "Keep": grpc.stream_stream_rpc_method_handler(keeping.stream),
        "Give": grpc.unary_stream_rpc_method_handler(give_stream),
        "GiveStored": grpc.unary_stream_rpc_method_handler(give_stored),
    }
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Bench", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"bare serves 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


# --- the client, the same for both -------------------------------------------------------------------------


async def push_stream(
    channel: grpc.aio.Channel,
    method: str,
    make_message: Callable[[int], bytes],
    count: int,
    in_flight_count: int = IN_FLIGHT_COUNT,
) -> None:
    """Send messages with numbers from 0, a bounded number ahead of the answers."""
    call_for: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(method)
    call = call_for()
    room = asyncio.Semaphore(in_flight_count)

    async def send() -> None:
        for number in range(count):
            await room.acquire()
            await call.write(make_message(number))
        await call.done_writing()

    sender = asyncio.create_task(send())
    answers = 0
    async for _ in call:
        answers += 1
        room.release()
    await sender
    assert answers == count


async def pull_stream(
    channel: grpc.aio.Channel,
    method: str,
    request: bytes,
    size_bytes: int,
    deserialize: Callable[[bytes], bytes],
) -> None:
    """Receive until `size_bytes` are there."""
    call_for: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(method)
    call = call_for(request)
    received_bytes = 0
    async for response in call:
        received_bytes += len(deserialize(response))
        if received_bytes >= size_bytes:
            break
    call.cancel()
    assert received_bytes >= size_bytes


async def read_records(channel: grpc.aio.Channel, count: int) -> None:
    """Receive plain records."""
    call = log_pb2_grpc.LogServiceStub(channel).Read(log_pb2.ReadRequest(topic=TOPIC, max_record_count=count))
    received_count = 0
    async for response in call:
        received_count += sum(len(part.records) for part in response.partitions)
    assert received_count == count


async def fetch_records(channel: grpc.aio.Channel, request: log_pb2.FetchRequest, count: int) -> None:
    """Receive batches, and decode as many records."""
    call = log_pb2_grpc.LogServiceStub(channel).FetchStream(request)
    received_count = 0
    async for response in call:
        for answer in response.partitions:
            received_count += sum(len(part.records) for part in fetched_parts(answer, answer.fetch_offset))
        if received_count >= count:
            break
    call.cancel()
    assert received_count >= count


async def call_one_by_one(channel: grpc.aio.Channel, method: str, request: bytes, count: int) -> None:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
    for _ in range(count):
        await call(request)


class Servers(NamedTuple):
    """Both servers."""

    ours: ServerProcess
    bare: ServerProcess

    def processor_row(
        self, work: str, size_bytes: int, before_s: tuple[float, float], target: float
    ) -> report.Row:
        """The processor time of both since `before_s`, in which each did the same work on `size_bytes`."""
        ours_s, bare_s = (now_s - then_s for now_s, then_s in zip(self.processor_s(), before_s, strict=True))
        return processor_row(work, size_bytes, ours_s, bare_s, target)

    def processor_s(self) -> tuple[float, float]:
        return self.ours.processor_s(), self.bare.processor_s()


async def fastest(
    ours: Callable[[], Awaitable[None]], reference: Callable[[], Awaitable[None]], repeats: int
) -> tuple[float, float]:
    """Seconds of the fastest run of each, in turns, after one run of each that does not count."""
    best_ours = best_reference = float("inf")
    for turn in range(repeats + 1):
        for is_ours, run in ((False, reference), (True, ours)):
            # What earlier runs left in the page cache is not to be written while this one is timed.
            os.sync()
            begin = time.perf_counter()
            await run()
            took_s = time.perf_counter() - begin
            if turn and is_ours:
                best_ours = min(best_ours, took_s)
            elif turn:
                best_reference = min(best_reference, took_s)
    return best_ours, best_reference


def fetched_batches(response: bytes) -> bytes:
    [partition] = log_pb2.FetchResponse.FromString(response).partitions
    return partition.batches


def appends_of(
    topic: str,
    partition_count: int,
    batch: bytes,
    durability: log_pb2.Durability.ValueType = log_pb2.DURABILITY_OS,
) -> Callable[[int], bytes]:
    """Makes the requests of a stream, which take turns over the partitions."""
    request = log_pb2.AppendStreamRequest(topic=topic, durability=durability, batches=batch)

    def make(number: int) -> bytes:
        request.sequence = number
        request.partition = number % partition_count
        return request.SerializeToString()

    return make


async def measure_all(quick: bool, servers: Servers) -> list[report.Row]:
    work = Work(quick)
    batch = batch_of(BATCH_BYTES, RECORD_BYTES)
    fetch = log_pb2.FetchRequest(max_bytes=BATCH_BYTES)
    fetch.partitions.add(topic=TOPIC, max_bytes=BATCH_BYTES, start=log_pb2.Position(offset=0))
    size_bytes = work.batch_count * len(batch)
    sent_bytes = size_bytes * (work.repeats + 1)
    costs: list[report.Row] = []
    async with (
        grpc.aio.insecure_channel(servers.bare.address, OPTIONS) as bare,
        grpc.aio.insecure_channel(servers.ours.address, OPTIONS) as ours,
    ):
        await create_topics(ours)
        before_s = servers.processor_s()
        appends = await fastest(
            lambda: push_stream(ours, LOG + "AppendStream", appends_of(TOPIC, 1, batch), work.batch_count),
            lambda: push_stream(bare, BARE + "Take", appends_of(TOPIC, 1, batch), work.batch_count),
            work.repeats,
        )
        costs.append(servers.processor_row("append stream", sent_bytes, before_s, COST_TARGET))
        floor = await measure_floor(servers, bare, work)
        wide_appends = await measure_wide_appends(ours, bare, work)
        disk_appends = await measure_disk_appends(ours, work)
        await upload_all(servers.ours)
        before_s = servers.processor_s()
        fetches = await fastest(
            lambda: pull_stream(
                ours, LOG + "FetchStream", fetch.SerializeToString(), size_bytes, fetched_batches
            ),
            lambda: pull_stream(bare, BARE + "Give", b"%d" % work.batch_count, size_bytes, fetched_batches),
            work.repeats,
        )
        costs.append(servers.processor_row("fetch stream", sent_bytes, before_s, COST_TARGET))
        stored_fetches = await measure_stored_fetches(ours, bare, fetch.SerializeToString(), work, size_bytes)
        reads = await measure_reads(ours, fetch, work)
        calls = await measure_calls(ours, bare, work)
    return [
        row("append stream, 1 MiB batches, 8 in flight", "MB/s", size_bytes / MB, appends, STREAM_TARGET),
        *floor,
        wide_appends,
        disk_appends,
        row("fetch stream, 1 MiB batches", "MB/s", size_bytes / MB, fetches, FETCH_TARGET),
        stored_fetches,
        reads,
        *calls,
        *costs,
        memory_row("after all of it", servers.ours, servers.bare, MEMORY_TARGET),
    ]


async def upload_all(ours: ServerProcess) -> None:
    """Let our server upload what was appended. Its uploads of full segments would otherwise fall into the
    fetches of a whole run, which has appended more than one segment by then, and of no quick one."""
    async with Client(ours.address) as client:
        await client.admin.upload([TOPIC, WIDE_TOPIC])


async def measure_stored_fetches(
    ours: grpc.aio.Channel, bare: grpc.aio.Channel, request: bytes, work: Work, size_bytes: int
) -> report.Row:
    """Fetch beside a bare server that reads each message from a file."""
    seconds = await fastest(
        lambda: pull_stream(ours, LOG + "FetchStream", request, size_bytes, fetched_batches),
        lambda: pull_stream(bare, BARE + "GiveStored", b"%d" % work.batch_count, size_bytes, fetched_batches),
        work.repeats,
    )
    return row(
        "fetch stream, 1 MiB batches, beside bare that reads a file",
        "MB/s",
        size_bytes / MB,
        seconds,
        STORED_FETCH_TARGET,
    )


async def measure_floor(servers: Servers, bare: grpc.aio.Channel, work: Work) -> list[report.Row]:
    """The floor of a stream of appends, beside bare grpcio, and its processor time."""
    batch = batch_of(BATCH_BYTES, RECORD_BYTES)
    size_bytes, make_request = work.batch_count * len(batch), appends_of(TOPIC, 1, batch)
    spent_s = {"Keep": 0.0, "Take": 0.0}

    async def push(method: str) -> None:
        before_s = servers.bare.processor_s()
        await push_stream(bare, BARE + method, make_request, work.batch_count)
        spent_s[method] += servers.bare.processor_s() - before_s

    seconds = await fastest(lambda: push("Keep"), lambda: push("Take"), work.repeats)
    name = "append stream, the floor"
    return [
        row(name, "MB/s", size_bytes / MB, seconds, STREAM_TARGET),
        processor_row(name, size_bytes * (work.repeats + 1), spent_s["Keep"], spent_s["Take"], COST_TARGET),
    ]


async def measure_wide_appends(ours: grpc.aio.Channel, bare: grpc.aio.Channel, work: Work) -> report.Row:
    """Append to many partitions in turns."""
    part = batch_of(PART_BYTES, RECORD_BYTES)
    count, in_flight_count = work.part_count, PARTITION_COUNT * IN_FLIGHT_COUNT
    make_request = appends_of(WIDE_TOPIC, PARTITION_COUNT, part)
    seconds = await fastest(
        lambda: push_stream(ours, LOG + "AppendStream", make_request, count, in_flight_count),
        lambda: push_stream(bare, BARE + "Take", make_request, count, in_flight_count),
        work.repeats,
    )
    return row(
        f"append stream, {PARTITION_COUNT} partitions, 64 KiB batches, {in_flight_count} in flight",
        "MB/s",
        count * len(part) / MB,
        seconds,
    )


async def measure_disk_appends(ours: grpc.aio.Channel, work: Work) -> report.Row:
    """Append to one partition at `disk`, beside the same at `os`."""
    part = batch_of(PART_BYTES, RECORD_BYTES)
    count = work.part_count // 2

    def push(durability: log_pb2.Durability.ValueType) -> Awaitable[None]:
        make_request = appends_of(TOPIC, 1, part, durability)
        return push_stream(ours, LOG + "AppendStream", make_request, count, DISK_IN_FLIGHT_COUNT)

    seconds = await fastest(
        lambda: push(log_pb2.DURABILITY_DISK), lambda: push(log_pb2.DURABILITY_OS), work.repeats
    )
    return row(
        f"append stream at disk, 64 KiB batches, {DISK_IN_FLIGHT_COUNT} in flight, beside os",
        "MB/s",
        count * len(part) / MB,
        seconds,
        DISK_TARGET,
    )


async def measure_calls(ours: grpc.aio.Channel, bare: grpc.aio.Channel, work: Work) -> list[report.Row]:
    """Append small batches by calls, one at a time, and the floor of it."""
    small = batch_of(SMALL_BYTES, SMALL_BYTES - 75)
    request = log_pb2.AppendRequest(
        topic=SMALL_TOPIC, partition=0, durability=log_pb2.DURABILITY_OS, batches=small
    ).SerializeToString()
    name = f"append, {len(small)} B, one at a time"
    rows: list[report.Row] = []
    for work_name, channel, method in (
        (name, ours, LOG + "Append"),
        (f"{name}, the floor", bare, BARE + "KeepOne"),
    ):
        seconds = await fastest(
            partial(call_one_by_one, channel, method, request, work.call_count),
            partial(call_one_by_one, bare, BARE + "Unary", request, work.call_count),
            work.repeats,
        )
        rows.append(row(work_name, "calls/s", work.call_count, seconds, CALL_TARGET))
    return rows


async def measure_reads(ours: grpc.aio.Channel, fetch: log_pb2.FetchRequest, work: Work) -> report.Row:
    """Read the records that stand, beside fetching and decoding the same."""
    read_count = work.batch_count * RECORD_COUNT // 4
    seconds = await fastest(
        lambda: read_records(ours, read_count), lambda: fetch_records(ours, fetch, read_count), work.repeats
    )
    return row(
        "read, plain records of 1 KiB, beside fetch and decoding",
        "records/s",
        read_count,
        seconds,
        READ_TARGET,
    )


async def create_topics(channel: grpc.aio.Channel) -> None:
    from stratalog.v1 import admin_pb2, admin_pb2_grpc

    admin = admin_pb2_grpc.AdminServiceStub(channel)
    for name in (TOPIC, SMALL_TOPIC):
        await admin.CreateTopic(admin_pb2.CreateTopicRequest(name=name))
    await admin.CreateTopic(admin_pb2.CreateTopicRequest(name=WIDE_TOPIC, partition_count=PARTITION_COUNT))


def row(
    work: str, unit: str, amount: float, seconds: tuple[float, float], target: float = TARGET
) -> report.Row:
    ours_s, reference_s = seconds
    return report.Row(
        work=work, unit=unit, ours=amount / ours_s, reference=amount / reference_s, target=target
    )


def measure(quick: bool) -> list[report.Row]:
    """Append and fetch, beside bare grpcio."""
    keep_freed_memory()
    with (
        tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder,
        running(__file__, "serve-bare", folder) as bare,
        running(*stratalog_command(f"{folder}/data")) as ours,
    ):
        return asyncio.run(measure_all(quick, Servers(ours, bare)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve-bare"]:
        fetched = log_pb2.FetchedPartition(batches=batch_of(BATCH_BYTES, RECORD_BYTES))
        answer = log_pb2.FetchResponse(partitions=[fetched]).SerializeToString()
        with tempfile.TemporaryFile() as stored:
            asyncio.run(serve_bare(answer, stored, sys.argv[2]))
    else:
        sys.exit(report.run(measure))
