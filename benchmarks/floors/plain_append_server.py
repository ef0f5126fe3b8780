"""The floor of `object_durability.py`: the least that a gRPC server in Python can do for appends at `object`.

It answers the calls that our producer and our consumer make, so that the same clients run against it. Batches
that arrive within the commit interval, or are as large together as a turn of ours, are written with one call
for each partition's file and fsynced. The same bytes go into a second file, past the page cache as in a store
in a directory, and are fsynced at the same time. Then the appends are acknowledged, and readers get the
batches out of the first files. Nothing is checked, indexed, committed or recovered; there is one topic.

    plain_append_server.py DIRECTORY
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import grpc

from stratalog.base.filesystem import Buffer
from stratalog.base.message_fields import sized_field_head
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.process_tuning import keep_freed_memory, share_interpreter_lock
from stratalog.record.header import parse_header
from stratalog.server.append.append_decoding import decode_stream_request
from stratalog.v1 import admin_pb2, log_pb2

INTERVAL_S = 0.25
BUFFER_BYTES = 8 << 20
THREAD_COUNT = 8
ANSWER_BYTES = 1 << 20
TOPIC_ID = "00000000-0000-0000-0000-000000000001"
_BASE_OFFSET = struct.Struct(">q")
_PARTITIONS_NUMBER, _BATCHES_NUMBER = 1, 3


class StoredBatch(NamedTuple):
    """A batch in a partition's file."""

    position: int
    size_bytes: int
    end_offset: int


class PlainLog:
    """The file of one partition. Belongs to the event loop; threads read and write the file."""

    def __init__(self, path: str) -> None:
        self.file = PosixFileSystem().open_append(path)
        self.end_offset = self.size_bytes = 0
        self.visible: list[StoredBatch] = []
        """Those that are acknowledged."""


class Waiting(NamedTuple):
    """A batch that waits for its turn."""

    log: PlainLog
    stored: StoredBatch
    parts: tuple[Buffer, Buffer]
    answer: Callable[[], None]


class PlainLogs:
    """All partitions, and the turns. Belongs to the event loop."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._pool = ThreadPoolExecutor(THREAD_COUNT)
        self._logs: dict[int, PlainLog] = {}
        self._waiting: list[Waiting] = []
        self._waiting_bytes = 0
        self._is_full = asyncio.Event()
        self.has_news = asyncio.Condition()
        """Notified after each turn."""

    def log(self, partition: int) -> PlainLog:
        if partition not in self._logs:
            self._logs[partition] = PlainLog(f"{self._directory}/{partition}.log")
        return self._logs[partition]

    def add(self, log: PlainLog, batch: memoryview, answer: Callable[[int, int], None]) -> None:
        """Let a batch wait; `answer` gets its first and its last offset."""
        base_offset, size_bytes = log.end_offset, len(batch)
        log.end_offset += parse_header(batch).records_count
        stored = StoredBatch(log.size_bytes, size_bytes, log.end_offset)
        log.size_bytes += size_bytes
        parts = (_BASE_OFFSET.pack(base_offset), batch[_BASE_OFFSET.size :])
        self._waiting.append(Waiting(log, stored, parts, lambda: answer(base_offset, stored.end_offset - 1)))
        self._waiting_bytes += size_bytes
        if self._waiting_bytes >= BUFFER_BYTES:
            self._is_full.set()

    async def take_turns(self) -> None:
        """Write, fsync and acknowledge what waits, again and again."""
        number = 0
        while True:
            try:
                await asyncio.wait_for(self._is_full.wait(), INTERVAL_S)
            except TimeoutError:
                pass
            taken, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self._is_full.clear()
            if not taken:
                continue
            number += 1
            by_log: dict[PlainLog, list[Buffer]] = {}
            for one in taken:
                by_log.setdefault(one.log, []).extend(one.parts)
            work = [self.run(_write, log, parts) for log, parts in by_log.items()]
            everything = [part for one in taken for part in one.parts]
            work.append(self.run(_write_object, f"{self._directory}/{number}.object", everything))
            await asyncio.gather(*work)
            for one in taken:
                one.log.visible.append(one.stored)
                one.answer()
            async with self.has_news:
                self.has_news.notify_all()

    def run(self, function: Callable[..., Any], *arguments: object) -> asyncio.Future[Any]:
        """Run a function on a thread."""
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)


def _write(log: PlainLog, parts: list[Buffer]) -> None:
    log.file.append(parts)
    log.file.sync()


def _write_object(path: str, parts: list[Buffer]) -> None:
    file = PosixFileSystem().open_append(path)
    file.bypass_cache()
    file.append(parts)
    file.sync()
    file.close()


class PlainService(grpc.GenericRpcHandler):
    """Answers the calls of our clients. Belongs to the event loop."""

    def __init__(self, logs: PlainLogs) -> None:
        self._logs = logs
        self._topic = admin_pb2.Topic(topic_id=TOPIC_ID)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        name = handler_call_details.method.rpartition("/")[2]
        streams: dict[str, Any] = {
            "AppendStream": grpc.stream_stream_rpc_method_handler(cast("Any", self._append)),
            "FetchStream": grpc.unary_stream_rpc_method_handler(
                cast("Any", self._fetch), log_pb2.FetchRequest.FromString
            ),
        }
        calls: dict[str, tuple[Any, Any]] = {
            "CreateTopic": (self._create, admin_pb2.CreateTopicRequest),
            "DescribeTopics": (self._describe, admin_pb2.DescribeTopicsRequest),
            "InitProducer": (self._init_producer, log_pb2.InitProducerRequest),
            "ListOffsets": (self._list_offsets, log_pb2.ListOffsetsRequest),
            "Metadata": (self._metadata, log_pb2.MetadataRequest),
        }
        if name in calls:
            function, request = calls[name]
            return grpc.unary_unary_rpc_method_handler(
                function, request.FromString, lambda answer: answer.SerializeToString()
            )
        return streams.get(name)

    async def _create(self, request: Any, _: object) -> admin_pb2.CreateTopicResponse:
        self._topic.name, self._topic.partition_count = request.name, request.partition_count
        return admin_pb2.CreateTopicResponse(topic=self._topic)

    async def _describe(self, _request: Any, _: object) -> admin_pb2.DescribeTopicsResponse:
        return admin_pb2.DescribeTopicsResponse(topics=[self._topic])

    async def _init_producer(self, _request: Any, _: object) -> log_pb2.InitProducerResponse:
        return log_pb2.InitProducerResponse(producer_id=1)

    async def _list_offsets(self, request: Any, _: object) -> log_pb2.ListOffsetsResponse:
        """Every position is the beginning."""
        return log_pb2.ListOffsetsResponse(
            answers=[
                log_pb2.OffsetAnswer(topic=one.topic, partition=one.partition, topic_id=TOPIC_ID)
                for one in request.queries
            ]
        )

    async def _metadata(self, _request: Any, _: object) -> log_pb2.MetadataResponse:
        numbers = range(self._topic.partition_count)
        topic = log_pb2.TopicMetadata(
            topic=self._topic.name,
            topic_id=TOPIC_ID,
            partitions=[log_pb2.PartitionMetadata(partition=number) for number in numbers],
            max_message_bytes=BUFFER_BYTES,
        )
        return log_pb2.MetadataResponse(topics=[topic], max_request_bytes=BUFFER_BYTES)

    async def _append(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        # The client sends large batches once it has the headers.
        await context.send_initial_metadata(())
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        taking = asyncio.create_task(self._take(requests, answers))
        try:
            while True:
                yield await answers.get()
        finally:
            taking.cancel()

    async def _take(self, requests: AsyncIterator[bytes], answers: asyncio.Queue[bytes]) -> None:
        async for data in requests:
            request, batches, _, _ = decode_stream_request(data)
            assert batches is not None, "the producer sends batches"

            def answer(base_offset: int, last_offset: int, request: Any = request) -> None:
                ack = log_pb2.AppendResponse(
                    base_offset=base_offset,
                    last_offset=last_offset,
                    durability=log_pb2.DURABILITY_OBJECT,
                    topic_id=TOPIC_ID,
                    partition=request.partition,
                )
                response = log_pb2.AppendStreamResponse(sequence=request.sequence, ack=ack)
                answers.put_nowait(response.SerializeToString())

            self._logs.add(self._logs.log(request.partition), batches, answer)

    async def _fetch(self, request: Any, _: object) -> AsyncIterator[bytes]:
        """The batches of each partition from the first one on."""
        places = dict.fromkeys((one.partition for one in request.partitions), 0)
        while True:
            has_found = False
            for partition, place in places.items():
                log = self._logs.log(partition)
                found = _some(log.visible, place)
                if found:
                    has_found = True
                    places[partition] = place + len(found)
                    size_bytes = sum(one.size_bytes for one in found)
                    data = await self._logs.run(log.file.read_at, found[0].position, size_bytes)
                    yield self._response(partition, found[-1].end_offset, data)
            if not has_found:
                async with self._logs.has_news:
                    if all(place >= len(self._logs.log(number).visible) for number, place in places.items()):
                        await self._logs.has_news.wait()

    def _response(self, partition: int, end_offset: int, data: bytes) -> bytes:
        fields = log_pb2.FetchedPartition(
            topic=self._topic.name,
            partition=partition,
            next_fetch_offset=end_offset,
            high_watermark=end_offset,
            topic_id=TOPIC_ID,
            last_epoch=-1,
        )
        head = fields.SerializeToString() + sized_field_head(_BATCHES_NUMBER, len(data))
        return b"".join((sized_field_head(_PARTITIONS_NUMBER, len(head) + len(data)), head, data))


def _some(visible: list[StoredBatch], place: int) -> list[StoredBatch]:
    """At least one batch from that place on, if there is one, and then as many as fit into an answer."""
    found: list[StoredBatch] = []
    size_bytes = 0
    for one in visible[place : place + 64]:
        size_bytes += one.size_bytes
        if found and size_bytes > ANSWER_BYTES:
            break
        found.append(one)
    return found


async def _serve(directory: str) -> None:
    # As for our server: its processes are tuned alike.
    keep_freed_memory()
    share_interpreter_lock()
    logs = PlainLogs(directory)
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers([PlainService(logs)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    turns = asyncio.create_task(logs.take_turns())
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await turns


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
