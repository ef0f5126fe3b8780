"""The data plane over gRPC: Append, AppendStream, Fetch, FetchStream, ListOffsets.

Everything here runs on the event loop and only checks, queues and waits; disk and network are touched on the
pools.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc

from stratalog.base.errors import (
    InvalidRequestError,
    LogStoreError,
    OverloadedError,
    RecordTooLargeError,
    forget_frames,
)
from stratalog.base.types import Durability, TopicPartition
from stratalog.log.append_info import AppendInfo
from stratalog.log.isolation import Isolation
from stratalog.server.append.append_decoding import (
    DecodedAppend,
    DecodedStreamAppend,
    decode_append_request,
    decode_stream_request,
)
from stratalog.server.append.append_pipeline import AppendPipeline
from stratalog.server.append.partition_writer import PartitionWriter
from stratalog.server.append.pending_append import AppendSession, PendingAppend
from stratalog.server.append.stream_lane import StreamAnswer
from stratalog.server.call_counts import current_call
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.fetch.closing import Closing
from stratalog.server.fetch.fetch_cursor import FetchCursor
from stratalog.server.fetch.fetch_session import FetchSession, tiered_size_of
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.request_memory import RequestMemories
from stratalog.server.rpc import convert
from stratalog.server.rpc.access.unpacked_charge import charge_unpacked
from stratalog.server.rpc.append_intake import AppendIntake
from stratalog.server.rpc.call_guard import Context, announce, call_at_end, decoded, guarded, send
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.fetch_encoding import FetchEncoder
from stratalog.server.rpc.offset_lookup import OffsetLookup
from stratalog.server.rpc.start_lookup import StartLookup
from stratalog.server.worker_pools import WorkerPools
from stratalog.v1 import log_pb2

MAX_REQUEST_BYTES_METADATA_KEY = "stratalog-max-request-bytes"
"""Initial metadata of an AppendStream: the size of the largest request that the server accepts."""

MAX_FETCH_PARTITION_COUNT = 10_000
MAX_OFFSET_QUERY_COUNT = 4_000


class LogServicer:
    """The handlers of `LogService`; see `method_handlers`. Belongs to the event loop."""

    def __init__(
        self,
        intake: AppendIntake,
        partitions: PartitionRegistry,
        pools: WorkerPools,
        closing: Closing,
        memories: RequestMemories,
        settings: ServerSettings,
        statuses: ErrorStatuses,
    ) -> None:
        self._intake = intake
        self._partitions = partitions
        self._pools = pools
        self._closing = closing
        self._append_memory = memories.appends
        self._fetch_memory = memories.fetches
        self._settings = settings
        self.statuses = statuses
        self._loop = asyncio.get_running_loop()
        self._lookup = OffsetLookup(partitions, pools, statuses)
        self._starts = StartLookup(pools)
        self._encoder = FetchEncoder(statuses, self._loop)

    def method_handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers that generated code would register, with codecs of our own for large messages."""
        append_codec = (decode_append_request, log_pb2.AppendResponse.SerializeToString)
        append_stream_codec = (decode_stream_request, log_pb2.AppendStreamResponse.SerializeToString)
        # Fetch responses are encoded by their handlers.
        fetch_codec = (log_pb2.FetchRequest.FromString, None)
        offsets_codec = (log_pb2.ListOffsetsRequest.FromString, log_pb2.ListOffsetsResponse.SerializeToString)
        return {
            "Append": grpc.unary_unary_rpc_method_handler(self.Append, *append_codec),
            "AppendStream": grpc.stream_stream_rpc_method_handler(self.AppendStream, *append_stream_codec),
            "Fetch": grpc.unary_unary_rpc_method_handler(self.Fetch, *fetch_codec),
            "FetchStream": grpc.unary_stream_rpc_method_handler(self.FetchStream, *fetch_codec),
            "ListOffsets": grpc.unary_unary_rpc_method_handler(self.ListOffsets, *offsets_codec),
        }

    @guarded
    async def Append(self, request: DecodedAppend, context: Context) -> log_pb2.AppendResponse:
        if not self._intake.is_settled(request):
            await self._intake.resolve(request)
        writer, append = self.prepare(request, None)
        if append.durability is Durability.OBJECT:
            _wait_for_commit(append)
        writer.submit(append)
        try:
            info = await append.future
        finally:
            charge_unpacked(append)
        return convert.append_response(append, info)

    @guarded
    async def AppendStream(
        self, request_iterator: AsyncIterator[DecodedStreamAppend], context: Context
    ) -> None:
        # The transport breaks a stream with a larger request, and then some clients lose its status.
        limit = str(self._settings.max_request_bytes)
        await announce(context, ((MAX_REQUEST_BYTES_METADATA_KEY, limit),))
        requests = decoded(request_iterator)
        pipeline = AppendPipeline(
            requests, self._intake.resolve, self.prepare, self._append_memory, self._closing
        )
        async with aclosing(pipeline.answers()) as answers:
            async for answer in answers:
                if answer.append is not None:
                    charge_unpacked(answer.append)
                await send(context, self._stream_response(answer))

    @guarded
    async def Fetch(self, request: log_pb2.FetchRequest, context: Context) -> bytes:
        session = await self._session(request)
        await session.collect(max(request.min_bytes, 1), self._max_wait_s(request))
        await self._pools.turns.take(session.size_bytes, session.tiered_size_bytes)
        return self._encoder.encode(session.cursors)

    @guarded
    async def FetchStream(self, request: log_pb2.FetchRequest, context: Context) -> None:
        session = await self._session(request)
        # A session may have nothing to send for long; the headers show its client that it is open.
        await announce(context)

        def encode(cursors: list[FetchCursor]) -> tuple[int, bytes]:
            # In this order: encoding takes the data.
            return tiered_size_of(cursors), self._encoder.encode(cursors)

        responses = session.stream(max(request.min_bytes, 1), self._max_wait_s(request), encode)
        async with aclosing(responses):
            async for tiered_bytes, response in responses:
                await self._pools.turns.take(len(response), tiered_bytes, session.reader)
                await send(context, response)
        self._closing.check()

    @guarded
    async def ListOffsets(
        self, request: log_pb2.ListOffsetsRequest, context: Context
    ) -> log_pb2.ListOffsetsResponse:
        if len(request.queries) > MAX_OFFSET_QUERY_COUNT:
            raise InvalidRequestError(
                "a request asks for too many offsets, use several requests", allowed=MAX_OFFSET_QUERY_COUNT
            )
        answers = await self._lookup.answer_all(list(request.queries), convert.isolation(request.isolation))
        return log_pb2.ListOffsetsResponse(answers=answers)

    def prepare(
        self, decoded: DecodedAppend | DecodedStreamAppend, session: AppendSession | None
    ) -> tuple[PartitionWriter, PendingAppend]:
        """Check the request without touching the log, then take its memory, which the append gives back.
        Raises LogStoreError and takes no memory then.
        """
        request = decoded.request
        partition = self._partitions.partition(request.topic, request.partition, request.topic_id)
        partition.ensure_meant(request.leader_epoch)
        partition.ensure_room()
        durability = partition.effective_durability(convert.durability(request.durability))
        if decoded.size_bytes > self._settings.max_request_bytes:
            raise RecordTooLargeError(
                "the request is larger than the server accepts; send less at once",
                size_bytes=decoded.size_bytes,
                max_bytes=self._settings.max_request_bytes,
            )
        future: asyncio.Future[AppendInfo] = asyncio.Future(loop=self._loop)
        payload = self._intake.payload(decoded, partition.log.local_log.config.max_message_bytes)
        conditions = convert.append_conditions(request)
        waits_for_commit = durability is Durability.OBJECT
        lease = self._append_memory.lease_for_commit if waits_for_commit else self._append_memory.lease
        memory = lease(decoded.size_bytes)
        self._pools.turns.add_append(decoded.size_bytes, future)
        append = PendingAppend(
            batches=payload,
            durability=durability,
            future=future,
            memory=memory,
            identity=partition.identity,
            session=session,
            conditions=conditions,
        )
        return partition.writer, append

    def _stream_response(self, answer: StreamAnswer) -> log_pb2.AppendStreamResponse:
        if answer.error is None:
            return convert.append_stream_ack(answer)
        status = self.statuses.status(answer.error, "LogServicer.AppendStream", answer.topic_partition)
        return log_pb2.AppendStreamResponse(sequence=answer.sequence, status=status)

    async def _session(self, request: log_pb2.FetchRequest) -> FetchSession:
        if not request.partitions:
            raise InvalidRequestError("a fetch names one partition at least")
        if len(request.partitions) > MAX_FETCH_PARTITION_COUNT:
            raise InvalidRequestError(
                "a fetch names too many partitions, use several fetches", allowed=MAX_FETCH_PARTITION_COUNT
            )
        if min(request.max_bytes, request.max_wait_ms, request.min_bytes) < 0:
            raise InvalidRequestError("max_bytes, min_bytes and max_wait_ms of a fetch are not negative")
        isolation = convert.isolation(request.isolation)
        cursors = [await self._cursor(partition, isolation) for partition in request.partitions]
        max_bytes = min(
            request.max_bytes or self._settings.default_fetch_bytes, self._settings.max_fetch_bytes
        )
        session = FetchSession(cursors, self._pools, self._closing, self._fetch_memory, max_bytes)
        call_at_end(session.close)
        return session

    async def _cursor(self, request: log_pb2.FetchPartition, isolation: Isolation) -> FetchCursor:
        topic_partition = TopicPartition(request.topic, request.partition)
        if request.max_bytes < 0:
            raise InvalidRequestError("max_bytes of a partition is not negative", max_bytes=request.max_bytes)
        max_bytes = request.max_bytes or self._settings.default_fetch_partition_bytes
        is_offset, offset = request.start.HasField("offset"), request.start.offset
        try:
            partition = self._partitions.partition(request.topic, request.partition, request.topic_id)
            partition.ensure_meant(request.leader_epoch)
            if not is_offset:
                start = request.start if request.HasField("start") else None
                offset = await self._starts.offset(partition, start, isolation)
            epoch = request.last_fetched_epoch
            if request.HasField("last_fetched_epoch") and not partition.is_continued_here(offset, epoch):
                await self._pools.cold_read(partial(partition.ensure_continued, offset, epoch))
        except LogStoreError as error:
            # Its frames hold this one, and so the cursor: thousands of them would wait for the collector.
            forget_frames(error)
            return FetchCursor(topic_partition, error, offset, max_bytes)
        cursor = FetchCursor(topic_partition, partition, offset, max_bytes, isolation)
        if request.HasField("last_fetched_epoch"):
            cursor.tiered_epoch = epoch
        if not is_offset:
            cursor.begin(offset)
        return cursor

    def _max_wait_s(self, request: log_pb2.FetchRequest) -> float:
        return min(request.max_wait_ms, self._settings.max_fetch_wait_ms) / 1000


def _wait_for_commit(append: PendingAppend) -> None:
    """Count the current call as one that waits for the store. Raises OverloadedError if too many do; the
    append is given up then."""
    try:
        current_call().wait_for_commit()
    except OverloadedError:
        append.abandon()
        append.give_back_memory()
        raise
