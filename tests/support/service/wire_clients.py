"""Two clients with one face, for tests that each client of the contract passes: ours, and one that knows the
generated stubs and gRPC alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar, cast

import grpc
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from stratalog.base.errors import LogStoreError
from stratalog.client import Client
from stratalog.v1 import admin_pb2, admin_pb2_grpc, log_pb2, log_pb2_grpc
from tests.support.service.error_details import error_info

_T = TypeVar("_T")


class Stored(NamedTuple):
    """A record that was read."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Sent(NamedTuple):
    """A record to send."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Place(NamedTuple):
    """The place of a record that was stored."""

    partition: int
    offset: int


class RefusedError(Exception):
    """The server refused."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WireClient(Protocol):
    """A client of the data plane. Every method raises RefusedError. Belongs to one event loop."""

    async def create(self, topic: str, partition_count: int) -> str:
        """Create a topic, and return its id."""
        ...

    async def delete(self, topic: str) -> None: ...

    async def send(self, topic: str, records: Sequence[Sent]) -> list[Place]:
        """Append by key, each record once, and return the places in order."""
        ...

    async def read(
        self, topic: str, *, start: Mapping[int, int] | None = None, topic_id: str = ""
    ) -> dict[int, list[Stored]]:
        """The records of each partition up to its end."""
        ...

    async def follow(self, topic: str, count: int) -> list[Stored]:
        """The first `count` records of partition 0, of which some may come later."""
        ...

    async def end_offsets(self, topic: str) -> dict[int, int]: ...


class OurClient:
    """The Python client."""

    def __init__(self, address: str) -> None:
        self._client = Client(address)

    async def close(self) -> None:
        await self._client.close()

    async def create(self, topic: str, partition_count: int) -> str:
        return (await _of_client(self._client.topics.create(topic, partitions=partition_count))).topic_id

    async def delete(self, topic: str) -> None:
        await _of_client(self._client.topics.delete(topic))

    async def send(self, topic: str, records: Sequence[Sent]) -> list[Place]:
        return await _of_client(self._send(topic, records))

    async def _send(self, topic: str, records: Sequence[Sent]) -> list[Place]:
        async with self._client.producer() as producer:
            await producer.ready()
            handles = [producer.send(topic, one.key, one.value, headers=one.headers) for one in records]
            acks = [await handle for handle in handles]
        return [Place(ack.partition, ack.offset) for ack in acks]

    async def read(
        self, topic: str, *, start: Mapping[int, int] | None = None, topic_id: str = ""
    ) -> dict[int, list[Stored]]:
        return await _of_client(self._read(topic, start, topic_id))

    async def _read(
        self, topic: str, start: Mapping[int, int] | None, topic_id: str
    ) -> dict[int, list[Stored]]:
        found: dict[int, list[Stored]] = defaultdict(list)
        consumer = self._client.consume(topic, start=start or "earliest", until="latest", topic_id=topic_id)
        async for one in consumer:
            found[one.partition].append(Stored(one.offset, one.key, one.value, tuple(one.headers)))
        return found

    async def follow(self, topic: str, count: int) -> list[Stored]:
        consumer = self._client.consume(topic, partitions=[0], max_records=count)
        return [Stored(one.offset, one.key, one.value, tuple(one.headers)) async for one in consumer]

    async def end_offsets(self, topic: str) -> dict[int, int]:
        ends = await _of_client(self._client.latest(topic))
        return {partition.partition: offset for partition, offset in ends.items()}


class PlainClient:
    """Generated stubs and gRPC, as any language has them."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._log = log_pb2_grpc.LogServiceStub(self._channel)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def create(self, topic: str, partition_count: int) -> str:
        request = admin_pb2.CreateTopicRequest(name=topic, partition_count=partition_count)
        return (await _of_call(self._admin.CreateTopic(request))).topic.topic_id

    async def delete(self, topic: str) -> None:
        await _of_call(self._admin.DeleteTopic(admin_pb2.DeleteTopicRequest(name=topic)))

    async def send(self, topic: str, records: Sequence[Sent]) -> list[Place]:
        places: list[Place] = []
        for one in records:
            record = log_pb2.Record(
                key=one.key,
                value=one.value,
                headers=[log_pb2.Header(key=key, value=value) for key, value in one.headers],
            )
            request = log_pb2.AppendRequest(topic=topic, records=log_pb2.Records(records=[record]))
            answer = await _of_call(self._log.Append(request))
            places.append(Place(answer.partition, answer.base_offset))
        return places

    async def read(
        self, topic: str, *, start: Mapping[int, int] | None = None, topic_id: str = ""
    ) -> dict[int, list[Stored]]:
        partitions = [
            log_pb2.ReadPartition(partition=number, start=log_pb2.Position(offset=offset))
            for number, offset in (start or {}).items()
        ]
        request = log_pb2.ReadRequest(topic=topic, topic_id=topic_id, partitions=partitions)
        return await _of_call(self._collect(request, None))

    async def follow(self, topic: str, count: int) -> list[Stored]:
        request = log_pb2.ReadRequest(
            topic=topic,
            partitions=[log_pb2.ReadPartition(partition=0)],
            follow=True,
            max_record_count=count,
        )
        return (await _of_call(self._collect(request, count)))[0]

    async def _collect(self, request: log_pb2.ReadRequest, count: int | None) -> dict[int, list[Stored]]:
        found: dict[int, list[Stored]] = defaultdict(list)
        async for response in self._log.Read(request):
            for part in response.partitions:
                if part.HasField("error"):
                    raise RefusedError(error_info(part.error).reason)
                found[part.partition] += [
                    Stored(
                        one.offset,
                        one.key if one.HasField("key") else None,
                        one.value if one.HasField("value") else None,
                        tuple((at.key, at.value if at.HasField("value") else None) for at in one.headers),
                    )
                    for one in part.records
                ]
        assert count is None or sum(map(len, found.values())) == count
        return found

    async def end_offsets(self, topic: str) -> dict[int, int]:
        metadata = await _of_call(self._log.Metadata(log_pb2.MetadataRequest(topics=[topic])))
        latest = log_pb2.Position(spec=log_pb2.OFFSET_SPEC_LATEST)
        request = log_pb2.ListOffsetsRequest(
            queries=[
                log_pb2.OffsetQuery(topic=topic, partition=one.partition, at=latest)
                for one in metadata.topics[0].partitions
            ]
        )
        answers = (await _of_call(self._log.ListOffsets(request))).answers
        return {answer.partition: answer.offset for answer in answers}


async def _of_client(work: Awaitable[_T]) -> _T:
    try:
        return await work
    except LogStoreError as error:
        raise RefusedError(error.code) from None


async def _of_call(work: Awaitable[_T]) -> _T:
    try:
        return await work
    except grpc.aio.AioRpcError as error:
        # It needs three methods, which this error has.
        status = cast(object, rpc_status.from_call(cast(grpc.Call, error)))  # pyright: ignore[reportUnknownMemberType]  # without types
        if not isinstance(status, Status):
            raise
        raise RefusedError(error_info(status).reason) from None
