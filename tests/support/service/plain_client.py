"""A client of generated stubs, gRPC and google.rpc alone, as any language has them. It imports nothing else.

Python's own library for statuses in metadata is not used, either: other languages may have none.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import TypeVar

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from stratalog.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    log_pb2,
    log_pb2_grpc,
    operation_pb2,
    operation_pb2_grpc,
    partition_pb2,
    tier_pb2,
    tier_pb2_grpc,
)
from tests.support.service.wire_client import (
    EARLIEST,
    Appended,
    At,
    AtTail,
    AtTime,
    Explained,
    Numbered,
    Place,
    RefusedError,
    Sent,
    Stored,
    Work,
)

_T = TypeVar("_T")

PRECEDING_APPEND_FAILED = "PRECEDING_APPEND_FAILED"


class PlainClient:
    """A client that was written from the contract. Belongs to one event loop."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._log = log_pb2_grpc.LogServiceStub(self._channel)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)
        self._tiers = tier_pb2_grpc.TierServiceStub(self._channel)
        self._operations = operation_pb2_grpc.OperationServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def create(self, topic: str, partition_count: int, config: Mapping[str, str] | None = None) -> str:
        request = admin_pb2.CreateTopicRequest(name=topic, partition_count=partition_count, config=config)
        return (await _of_call(self._admin.CreateTopic(request))).topic.topic_id

    async def delete(self, topic: str, topic_id: str = "") -> None:
        request = admin_pb2.DeleteTopicRequest(name=topic, topic_id=topic_id)
        await _of_call(self._admin.DeleteTopic(request))

    async def topics(self) -> list[str]:
        names: list[str] = []
        request = admin_pb2.ListTopicsRequest()
        while True:
            page = await _of_call(self._admin.ListTopics(request))
            names += [topic.name for topic in page.topics]
            request.page_token = page.next_page_token
            if not request.page_token:
                return names

    async def send(self, topic: str, records: Sequence[Sent]) -> list[Place]:
        places: list[Place] = []
        for one in records:
            request = log_pb2.AppendRequest(topic=topic, records=_records([one]))
            answer = await _of_call(self._log.Append(request))
            places.append(Place(answer.partition, answer.base_offset))
        return places

    async def stream(self, topic: str, records: Sequence[tuple[int, Sent]]) -> list[int | str]:
        return await _of_call(self._stream(_Stream(topic, records)))

    async def _stream(self, stream: _Stream) -> list[int | str]:
        async for answer in self._log.AppendStream(stream.requests()):
            stream.take(answer)
        return [outcome for _, outcome in sorted(stream.outcomes.items())]

    async def append(
        self,
        topic: str,
        partition: int,
        records: Sequence[Sent],
        *,
        topic_id: str = "",
        expected_offset: int | None = None,
        fencing_token: str | None = None,
        numbered: Numbered | None = None,
    ) -> Appended:
        producer = None
        if numbered is not None:
            producer = log_pb2.ProducerSequence(
                producer_id=numbered.producer_id, base_sequence=numbered.base_sequence
            )
        request = log_pb2.AppendRequest(
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            records=_records(records),
            expected_offset=expected_offset,
            fencing_token=fencing_token,
            producer=producer,
        )
        answer = await _of_call(self._log.Append(request))
        return Appended(answer.base_offset, answer.duplicate)

    async def producer_id(self) -> int:
        return (await _of_call(self._log.InitProducer(log_pb2.InitProducerRequest()))).producer_id

    async def fence(self, topic: str, partition: int, token: str, current_token: str | None = None) -> int:
        request = log_pb2.FenceRequest(
            topic=topic, partition=partition, token=token, current_token=current_token
        )
        return (await _of_call(self._log.Fence(request))).log_end_offset

    async def read(self, topic: str, *, start: At = EARLIEST, topic_id: str = "") -> dict[int, list[Stored]]:
        request = log_pb2.ReadRequest(topic=topic, topic_id=topic_id, start=_position(start))
        return await _of_call(self._collect(request))

    async def follow(self, topic: str, count: int) -> list[Stored]:
        request = log_pb2.ReadRequest(
            topic=topic,
            partitions=[log_pb2.ReadPartition(partition=0)],
            follow=True,
            max_record_count=count,
        )
        return (await _of_call(self._collect(request)))[0]

    async def _collect(self, request: log_pb2.ReadRequest) -> dict[int, list[Stored]]:
        found: dict[int, list[Stored]] = defaultdict(list)
        async for response in self._log.Read(request):
            for part in response.partitions:
                if part.HasField("error"):
                    raise RefusedError(_reason(part.error))
                found[part.partition] += [
                    Stored(
                        one.offset,
                        one.key if one.HasField("key") else None,
                        one.value if one.HasField("value") else None,
                        tuple((at.key, at.value if at.HasField("value") else None) for at in one.headers),
                    )
                    for one in part.records
                ]
        return found

    async def offsets(self, topic: str, at: At) -> dict[int, int]:
        metadata = await _of_call(self._log.Metadata(log_pb2.MetadataRequest(topics=[topic])))
        request = log_pb2.ListOffsetsRequest(
            queries=[
                log_pb2.OffsetQuery(topic=topic, partition=one.partition, at=_position(at))
                for one in metadata.topics[0].partitions
            ]
        )
        answers = (await _of_call(self._log.ListOffsets(request))).answers
        for answer in answers:
            if answer.HasField("error"):
                raise RefusedError(_reason(answer.error))
        return {answer.partition: answer.offset for answer in answers}

    async def delete_records(
        self, topic: str, before: Mapping[int, At], topic_id: str = ""
    ) -> dict[int, int]:
        request = partition_pb2.DeleteRecordsRequest(
            topic=topic,
            topic_id=topic_id,
            partitions=[
                partition_pb2.RecordsToDelete(partition=partition, before=_position(at))
                for partition, at in before.items()
            ],
        )
        deleted = (await _of_call(self._admin.DeleteRecords(request))).partitions
        for one in deleted:
            if one.HasField("error"):
                raise RefusedError(_reason(one.error))
        return {one.partition: one.log_start_offset for one in deleted}

    async def explain_retention(self, topic: str) -> dict[int, Explained]:
        request = tier_pb2.ExplainRetentionRequest(topics=[topic])
        found: dict[int, Explained] = {}
        while True:
            page = await _of_call(self._tiers.ExplainRetention(request))
            for one in page.partitions:
                expired = tuple(
                    (
                        tier_pb2.RetentionRule.Name(part.rule).removeprefix("RETENTION_RULE_"),
                        part.base_offset,
                        part.end_offset,
                    )
                    for part in one.expired
                )
                found[one.partition] = Explained(one.log_start_offset, one.new_log_start_offset, expired)
            request.page_token = page.next_page_token
            if not request.page_token:
                return found

    async def run_retention(self, topic: str) -> Work:
        return await _of_call(self._run_retention(topic))

    async def _run_retention(self, topic: str) -> Work:
        start = tier_pb2.StartRetentionRequest(topics=[topic])
        seen = [(await self._tiers.StartRetention(start)).operation]
        watch = operation_pb2.WatchOperationRequest(operation_id=seen[0].operation_id)
        seen += [response.operation async for response in self._operations.WatchOperation(watch)]
        if seen[-1].HasField("error"):
            raise RefusedError(_reason(seen[-1].error))
        return Work(
            tuple(
                operation_pb2.OperationState.Name(one.state).removeprefix("OPERATION_STATE_") for one in seen
            ),
            {
                one.partition: (one.old_log_start_offset, one.new_log_start_offset)
                for one in seen[-1].retention.partitions
            },
        )

    async def cancel(self, operation_id: str) -> None:
        request = operation_pb2.CancelOperationRequest(operation_id=operation_id)
        await _of_call(self._operations.CancelOperation(request))


class _Stream:
    """Records on their way over one AppendStream: those that are refused because of one before them are sent
    again. Belongs to one event loop.
    """

    def __init__(self, topic: str, records: Sequence[tuple[int, Sent]]) -> None:
        self._topic = topic
        self._records = records
        self.outcomes: dict[int, int | str] = {}
        """The offsets of the records, or reasons."""
        self._numbers: dict[int, int] = {}
        """Which record a request has, by its sequence."""
        self._failed: set[int] = set()
        """Partitions whose next request resumes."""
        self._held: set[int] = set()
        """Records that wait until all requests of a failed partition are answered, to keep their order."""
        self._queued: asyncio.PriorityQueue[int] = asyncio.PriorityQueue()
        """Numbers of records, the first one first. The count of records is the end."""
        for number in range(len(records)):
            self._queued.put_nowait(number)

    async def requests(self) -> AsyncIterator[log_pb2.AppendStreamRequest]:
        sequence = 0
        while (number := await self._queued.get()) < len(self._records):
            partition, record = self._records[number]
            if partition in self._failed and self._is_waiting(partition):
                self._held.add(number)
                continue
            sequence += 1
            self._numbers[sequence] = number
            resume = partition in self._failed
            self._failed.discard(partition)
            yield log_pb2.AppendStreamRequest(
                topic=self._topic,
                partition=partition,
                records=_records([record]),
                sequence=sequence,
                resume=resume,
            )

    def take(self, answer: log_pb2.AppendStreamResponse) -> None:
        number = self._numbers.pop(answer.sequence)
        partition = self._records[number][0]
        reason = _reason(answer.status) if answer.HasField("status") else ""
        if reason == PRECEDING_APPEND_FAILED:
            self._held.add(number)
        elif reason:
            self._failed.add(partition)
            self.outcomes[number] = reason
        else:
            self.outcomes[number] = answer.ack.base_offset
        if not self._is_waiting(partition):
            freed = {held for held in self._held if self._records[held][0] == partition}
            self._held -= freed
            for held in freed:
                self._queued.put_nowait(held)
        if len(self.outcomes) == len(self._records):
            self._queued.put_nowait(len(self._records))

    def _is_waiting(self, partition: int) -> bool:
        """Whether a request of the partition has no answer yet."""
        return any(self._records[number][0] == partition for number in self._numbers.values())


def _records(records: Sequence[Sent]) -> log_pb2.Records:
    return log_pb2.Records(
        records=[
            log_pb2.Record(
                key=one.key,
                value=one.value,
                timestamp_ms=one.timestamp_ms,
                headers=[log_pb2.Header(key=key, value=value) for key, value in one.headers],
            )
            for one in records
        ]
    )


def _position(at: At) -> log_pb2.Position:
    if isinstance(at, AtTime):
        return log_pb2.Position(timestamp_ms=at.timestamp_ms)
    if isinstance(at, AtTail):
        return log_pb2.Position(tail_count=at.offset_count)
    if isinstance(at, int):
        return log_pb2.Position(offset=at)
    spec = log_pb2.OFFSET_SPEC_EARLIEST if at == EARLIEST else log_pb2.OFFSET_SPEC_LATEST
    return log_pb2.Position(spec=spec)


async def _of_call(work: Awaitable[_T]) -> _T:
    try:
        return await work
    except grpc.aio.AioRpcError as error:
        for name, value in error.trailing_metadata() or ():
            if name == "grpc-status-details-bin" and isinstance(value, bytes):
                raise RefusedError(_reason(Status.FromString(value))) from None
        raise


def _reason(status: Status) -> str:
    info = ErrorInfo()
    assert any(detail.Unpack(info) for detail in status.details)
    assert info.domain == "stratalog"
    return info.reason
