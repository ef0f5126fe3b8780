"""A server of one topic whose answers a test writes, for what a real server does not do by itself: other
topic ids and epochs, new partitions, sessions that break in the middle, appends without an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_status import rpc_status

from stratalog.base.errors import LogStoreError
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.rpc.status import status_of_error
from stratalog.v1 import admin_pb2, log_pb2

Session = Sequence[log_pb2.FetchedPartition | LogStoreError]
"""The answers of one FetchStream; an error breaks it. At its end it stays silent."""


class ScriptedService:
    """Plays a session for each FetchStream, and describes the topic. Belongs to the event loop."""

    def __init__(
        self, sessions: Sequence[Session], *, topic_id: str = "id-1", partition_count: int = 1
    ) -> None:
        self.topic_id = topic_id
        self.partition_count = partition_count
        self.log_start_offset = 0
        self.log_end_offset = 0
        """The answer for the latest offset, where it is larger than the log start offset."""
        self.leader_epoch = 0
        """The epoch in answers for offsets."""
        self.may_play = asyncio.Event()
        """Sessions wait for it."""
        self.may_play.set()
        self.offsets_topic_id = ""
        """The topic id in answers for offsets."""
        self.requests: list[log_pb2.FetchRequest] = []
        self.refusal: LogStoreError | None = None
        """The failure of all calls."""
        self.refused_count = 0
        self.append_refusal: LogStoreError | None = None
        """The answer to each append of a stream; None: there is none."""
        self.ends_append_streams = False
        """A stream of appends ends at its first request."""
        self.append_failure: LogStoreError | None = None
        """The failure of the next stream of appends, at its first request."""
        self.append_stream_count = 0
        self.appends: list[log_pb2.AppendStreamRequest] = []
        self.is_appended = asyncio.Event()
        """An append has come."""
        self.endpoints: Sequence[str] = ()
        """The owners of the partitions, by number."""
        self.producer_id = 7
        self.id_refusal: LogStoreError | None = None
        """The failure of requests for a producer id."""
        self.id_request_count = 0
        self.on_id_request: Callable[[], None] = lambda: None
        self._sessions = list(sessions)
        self._closing = asyncio.Event()

    async def fetch_stream(
        self, request: log_pb2.FetchRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> AsyncIterator[log_pb2.FetchResponse]:
        self.requests.append(request)
        await self._refuse(context)
        await self.may_play.wait()
        for answer in self._sessions.pop(0) if self._sessions else ():
            if isinstance(answer, LogStoreError):
                await _abort(context, answer)
            else:
                yield log_pb2.FetchResponse(partitions=[answer])
        await self._closing.wait()

    async def append_stream(
        self,
        requests: AsyncIterator[log_pb2.AppendStreamRequest],
        context: grpc.aio.ServicerContext[object, object],
    ) -> AsyncIterator[log_pb2.AppendStreamResponse]:
        self.append_stream_count += 1
        await context.send_initial_metadata(())
        async for request in requests:
            self.appends.append(request)
            self.is_appended.set()
            if self.ends_append_streams:
                return
            if self.append_failure is not None:
                failure, self.append_failure = self.append_failure, None
                await _abort(context, failure)
            if self.append_refusal is not None:
                status = status_of_error(self.append_refusal)
                yield log_pb2.AppendStreamResponse(sequence=request.sequence, status=status)
        await self._closing.wait()

    async def init_producer(
        self, request: log_pb2.InitProducerRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> log_pb2.InitProducerResponse:
        self.id_request_count += 1
        self.on_id_request()
        if self.id_refusal is not None:
            await _abort(context, self.id_refusal)
        return log_pb2.InitProducerResponse(producer_id=self.producer_id)

    async def list_offsets(
        self, request: log_pb2.ListOffsetsRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> log_pb2.ListOffsetsResponse:
        await self._refuse(context)
        return log_pb2.ListOffsetsResponse(
            answers=[
                log_pb2.OffsetAnswer(
                    topic=query.topic,
                    partition=query.partition,
                    topic_id=self.offsets_topic_id,
                    leader_epoch=self.leader_epoch,
                    offset=self.log_start_offset
                    if query.at.spec == log_pb2.OFFSET_SPEC_EARLIEST
                    else max(self.log_start_offset, self.log_end_offset),
                )
                for query in request.queries
            ]
        )

    async def describe_topics(
        self, request: admin_pb2.DescribeTopicsRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> admin_pb2.DescribeTopicsResponse:
        await self._refuse(context)
        topic = admin_pb2.Topic(
            name=request.names[0], topic_id=self.topic_id, partition_count=self.partition_count
        )
        return admin_pb2.DescribeTopicsResponse(topics=[topic])

    async def metadata(
        self, request: log_pb2.MetadataRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> log_pb2.MetadataResponse:
        await self._refuse(context)
        parts = [
            log_pb2.PartitionMetadata(partition=number, endpoint=endpoint)
            for number, endpoint in enumerate(self.endpoints)
        ]
        topics = [
            log_pb2.TopicMetadata(topic=name, topic_id=self.topic_id, partitions=parts)
            for name in request.topics
        ]
        return log_pb2.MetadataResponse(topics=topics)

    async def _refuse(self, context: grpc.aio.ServicerContext[object, object]) -> None:
        if self.refusal is not None:
            self.refused_count += 1
            await _abort(context, self.refusal)

    def close(self) -> None:
        """End the silent sessions."""
        self._closing.set()


async def _abort(context: grpc.aio.ServicerContext[object, object], error: LogStoreError) -> None:
    rich = rpc_status.to_status(status_of_error(error))  # pyright: ignore[reportUnknownMemberType]  # its parameter has no type
    await context.abort_with_status(rich)


@asynccontextmanager
async def scripted(service: ScriptedService) -> AsyncGenerator[str]:
    """Serve inside of the block, at this address."""
    server = grpc.aio.server()
    log: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "FetchStream": grpc.unary_stream_rpc_method_handler(
            service.fetch_stream,
            log_pb2.FetchRequest.FromString,
            log_pb2.FetchResponse.SerializeToString,
        ),
        "AppendStream": grpc.stream_stream_rpc_method_handler(
            service.append_stream,
            log_pb2.AppendStreamRequest.FromString,
            log_pb2.AppendStreamResponse.SerializeToString,
        ),
        "InitProducer": grpc.unary_unary_rpc_method_handler(
            service.init_producer,
            log_pb2.InitProducerRequest.FromString,
            log_pb2.InitProducerResponse.SerializeToString,
        ),
        "Metadata": grpc.unary_unary_rpc_method_handler(
            service.metadata,
            log_pb2.MetadataRequest.FromString,
            log_pb2.MetadataResponse.SerializeToString,
        ),
        "ListOffsets": grpc.unary_unary_rpc_method_handler(
            service.list_offsets,
            log_pb2.ListOffsetsRequest.FromString,
            log_pb2.ListOffsetsResponse.SerializeToString,
        ),
    }
    admin: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "DescribeTopics": grpc.unary_unary_rpc_method_handler(
            service.describe_topics,
            admin_pb2.DescribeTopicsRequest.FromString,
            admin_pb2.DescribeTopicsResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("stratalog.v1.LogService", log),
            grpc.method_handlers_generic_handler("stratalog.v1.AdminService", admin),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        service.close()
        await server.stop(0)


def answer(
    offset: int,
    count: int,
    *,
    partition: int = 0,
    epoch: int = 1,
    topic_id: str = "",
    last_epoch: int = -1,
) -> log_pb2.FetchedPartition:
    """A batch of records from an offset on; the value of a record is its offset."""
    records = [Record(0, 5, b"k", b"%d" % at) for at in range(offset, offset + count)]
    return log_pb2.FetchedPartition(
        topic="t",
        partition=partition,
        batches=encode_batch(records, base_offset=offset, leader_epoch=epoch),
        next_fetch_offset=offset + count,
        topic_id=topic_id,
        last_epoch=last_epoch,
    )
