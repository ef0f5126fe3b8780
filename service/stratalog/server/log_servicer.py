"""The data plane over gRPC: Append, AppendStream, Fetch, FetchStream, ListOffsets.

Everything here runs on the event loop and only checks, queues and waits; disk and network are touched on the
pools.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial

from stratalog.base.clock import Clock
from stratalog.base.errors import InvalidRequestError, LogStoreError, RecordTooLargeError
from stratalog.base.filesystem import Buffer
from stratalog.base.types import TopicPartition
from stratalog.server import convert
from stratalog.server.append_pipeline import AppendPipeline, Submission
from stratalog.server.call_guard import Context, streaming, unary
from stratalog.server.closing import Closing
from stratalog.server.fetch_cursor import FetchCursor, negative_offset
from stratalog.server.fetch_session import FetchSession
from stratalog.server.offset_lookup import OffsetLookup
from stratalog.server.partition_registry import PartitionRegistry
from stratalog.server.pending_append import AppendSession, PendingAppend
from stratalog.server.settings import ServerSettings
from stratalog.server.status import CLOSING_DETAILS, CLOSING_STATUS
from stratalog.server.worker_pools import WorkerPools
from stratalog.v1 import log_pb2, log_pb2_grpc

MAX_FETCH_PARTITION_COUNT = 10_000


class LogServicer(log_pb2_grpc.LogServiceServicer):
    """Belongs to the event loop."""

    def __init__(
        self,
        clock: Clock,
        partitions: PartitionRegistry,
        pools: WorkerPools,
        closing: Closing,
        settings: ServerSettings,
    ) -> None:
        self._clock = clock
        self._partitions = partitions
        self._pools = pools
        self._closing = closing
        self._settings = settings
        self._lookup = OffsetLookup(partitions)

    @unary
    async def Append(self, request: log_pb2.AppendRequest, context: Context) -> log_pb2.AppendResponse:
        submission = self._prepare(request, None)
        submission.writer.submit(submission.append)
        return convert.append_response(await submission.append.future)

    @streaming
    async def AppendStream(
        self, request_iterator: AsyncIterator[log_pb2.AppendRequest], context: Context
    ) -> AsyncGenerator[log_pb2.AppendResponse, None]:
        async with aclosing(AppendPipeline(request_iterator, self._prepare).results()) as results:
            async for appended in results:
                yield convert.append_response(appended)

    @unary
    async def Fetch(self, request: log_pb2.FetchRequest, context: Context) -> log_pb2.FetchResponse:
        session = self._session(request)
        await session.collect(max(request.min_bytes, 1), self._max_wait_s(request))
        return convert.fetch_response(session.cursors)

    @streaming
    async def FetchStream(
        self, request: log_pb2.FetchRequest, context: Context
    ) -> AsyncGenerator[log_pb2.FetchResponse, None]:
        session = self._session(request)
        responses = session.stream(
            max(request.min_bytes, 1), self._max_wait_s(request), convert.fetch_response
        )
        async with aclosing(responses):
            async for response in responses:
                yield response
        if self._closing.is_set:
            await context.abort(CLOSING_STATUS, CLOSING_DETAILS)

    @unary
    async def ListOffsets(
        self, request: log_pb2.ListOffsetsRequest, context: Context
    ) -> log_pb2.ListOffsetsResponse:
        # A search by time may read an index from the object store, so it belongs to the cold pool.
        answers = await self._pools.cold(partial(self._lookup.answer_all, list(request.queries)))
        return log_pb2.ListOffsetsResponse(answers=answers)

    def _prepare(self, request: log_pb2.AppendRequest, session: AppendSession | None) -> Submission:
        """Check what can be checked without touching the log. Raises LogStoreError."""
        partition = self._partitions.partition(request.topic, request.partition)
        durability = partition.effective_durability(convert.durability(request.acks))
        partition.shard.leader_epoch()
        payload, size_bytes = self._payload(request)
        if size_bytes > self._settings.max_request_bytes:
            raise RecordTooLargeError(
                "the request is larger than the server accepts, send less at once",
                size_bytes=size_bytes,
                max_bytes=self._settings.max_request_bytes,
            )
        future = asyncio.get_running_loop().create_future()
        return Submission(partition.writer, PendingAppend(payload, durability, future, session), size_bytes)

    def _payload(self, request: log_pb2.AppendRequest) -> tuple[Buffer | partial[bytes], int]:
        """What to write, or what encodes it on the writer's thread; and its (estimated) size."""
        which = request.WhichOneof("payload")
        if which == "batches":
            batches = request.batches
            return batches, len(batches)
        if which == "records":
            records = request.records.records
            return partial(convert.plain_records, records, self._clock.now_ms()), request.records.ByteSize()
        raise InvalidRequestError("an append needs batches or records")

    def _session(self, request: log_pb2.FetchRequest) -> FetchSession:
        if not request.partitions:
            raise InvalidRequestError("a fetch names one partition at least")
        if len(request.partitions) > MAX_FETCH_PARTITION_COUNT:
            raise InvalidRequestError(
                "a fetch names too many partitions, use several fetches", allowed=MAX_FETCH_PARTITION_COUNT
            )
        if min(request.max_bytes, request.max_wait_ms, request.min_bytes) < 0:
            raise InvalidRequestError("max_bytes, min_bytes and max_wait_ms of a fetch are not negative")
        cursors = [self._cursor(partition) for partition in request.partitions]
        max_bytes = min(
            request.max_bytes or self._settings.default_fetch_bytes, self._settings.max_fetch_bytes
        )
        return FetchSession(cursors, self._pools, self._closing, max_bytes)

    def _cursor(self, request: log_pb2.FetchPartition) -> FetchCursor:
        topic_partition = TopicPartition(request.topic, request.partition)
        if request.max_bytes < 0:
            raise InvalidRequestError("max_bytes of a partition is not negative", max_bytes=request.max_bytes)
        max_bytes = request.max_bytes or self._settings.default_fetch_partition_bytes
        try:
            if request.fetch_offset < 0:
                raise negative_offset(topic_partition, request.fetch_offset)
            partition = self._partitions.partition(request.topic, request.partition)
        except LogStoreError as error:
            return FetchCursor(topic_partition, error, request.fetch_offset, max_bytes)
        return FetchCursor(topic_partition, partition, request.fetch_offset, max_bytes)

    def _max_wait_s(self, request: log_pb2.FetchRequest) -> float:
        return min(request.max_wait_ms, self._settings.max_fetch_wait_ms) / 1000
