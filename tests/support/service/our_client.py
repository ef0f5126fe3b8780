"""The Python client behind the face of `wire_client`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import aclosing
from typing import TypeVar

from stratalog.base.errors import LogStoreError
from stratalog.client import Client, values
from stratalog.client.append_record import AppendRecord
from stratalog.client.operations import result_of
from stratalog.client.position import DistancePosition, TimePosition
from stratalog.client.position import Place as ClientPlace
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.v1 import log_pb2
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

RECORD_BYTES = 100
"""Batches of this size hold one record of `stream`."""


class OurClient:
    """The Python client. Belongs to one event loop."""

    def __init__(self, address: str) -> None:
        self._client = Client(address)

    async def close(self) -> None:
        await self._client.close()

    async def create(self, topic: str, partition_count: int, config: Mapping[str, str] | None = None) -> str:
        made = await _of_client(self._client.topics.create(topic, partitions=partition_count, config=config))
        return made.topic_id

    async def delete(self, topic: str, topic_id: str = "") -> None:
        await _of_client(self._client.topics.delete(topic, topic_id=topic_id))

    async def topics(self) -> list[str]:
        return await _of_client(self._client.topics.list())

    async def send(self, topic: str, records: Sequence[Sent]) -> list[Place]:
        return await _of_client(self._send(topic, records))

    async def _send(self, topic: str, records: Sequence[Sent]) -> list[Place]:
        async with self._client.producer() as producer:
            await producer.ready()
            handles = [producer.send(topic, one.key, one.value, headers=one.headers) for one in records]
            acks = [await handle for handle in handles]
        return [Place(ack.partition, ack.offset) for ack in acks]

    async def stream(self, topic: str, records: Sequence[tuple[int, Sent]]) -> list[int | str]:
        outcomes: list[int | str] = []
        producer = self._client.producer(batch_bytes=RECORD_BYTES)
        await producer.ready()
        handles = [
            producer.send(topic, one.key, one.value, partition=partition) for partition, one in records
        ]
        for handle in handles:
            try:
                outcomes.append((await handle).offset)
            except LogStoreError as error:
                outcomes.append(error.code)
        producer.abandon()
        return outcomes

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
        if numbered is None:
            plain = [AppendRecord(one.key, one.value, one.headers, one.timestamp_ms) for one in records]
            call = self._client.append(
                topic,
                partition,
                plain,
                topic_id=topic_id,
                expected_offset=expected_offset,
                fencing_token=fencing_token,
            )
        else:
            batch = encode_batch(
                [Record(0, one.timestamp_ms or 0, one.key, one.value, one.headers) for one in records],
                producer=BatchProducer(numbered.producer_id, 0, numbered.base_sequence),
            )
            call = self._client.append_batches(
                topic,
                partition,
                batch,
                topic_id=topic_id,
                expected_offset=expected_offset,
                fencing_token=fencing_token,
            )
        ack = await _of_client(call)
        return Appended(ack.base_offset, ack.duplicate)

    async def producer_id(self) -> int:
        call = self._client.log.InitProducer(log_pb2.InitProducerRequest())
        return (await _of_client(self._client.channel.call(call))).producer_id

    async def fence(self, topic: str, partition: int, token: str, current_token: str | None = None) -> int:
        return await _of_client(self._client.fence(topic, partition, token, current_token=current_token))

    async def read(self, topic: str, *, start: At = EARLIEST, topic_id: str = "") -> dict[int, list[Stored]]:
        return await _of_client(self._read(topic, start, topic_id))

    async def _read(self, topic: str, start: At, topic_id: str) -> dict[int, list[Stored]]:
        found: dict[int, list[Stored]] = defaultdict(list)
        consumer = self._client.consume(topic, start=_place(start), until="latest", topic_id=topic_id)
        async for one in consumer:
            found[one.partition].append(Stored(one.offset, one.key, one.value, tuple(one.headers)))
        return found

    async def follow(self, topic: str, count: int) -> list[Stored]:
        return await _of_client(self._follow(topic, count))

    async def _follow(self, topic: str, count: int) -> list[Stored]:
        consumer = self._client.consume(topic, partitions=[0], max_records=count)
        return [Stored(one.offset, one.key, one.value, tuple(one.headers)) async for one in consumer]

    async def offsets(self, topic: str, at: At) -> dict[int, int]:
        return await _of_client(self._offsets(topic, _place(at)))

    async def _offsets(self, topic: str, place: ClientPlace) -> dict[int, int]:
        found = await self._client.offsets(await self._client.partitions(topic), place)
        return {partition.partition: offset for partition, offset in found.items()}

    async def delete_records(
        self, topic: str, before: Mapping[int, At], topic_id: str = ""
    ) -> dict[int, int]:
        places = {partition: _place(at) for partition, at in before.items()}
        deleted = await _of_client(self._client.admin.delete_records_of(topic, places, topic_id=topic_id))
        for one in deleted:
            if one.error is not None:
                raise RefusedError(one.error.code)
        return {one.partition: one.log_start_offset for one in deleted}

    async def explain_retention(self, topic: str) -> dict[int, Explained]:
        found = await _of_client(self._client.admin.explain_retention([topic]))
        return {
            one.partition: Explained(
                one.log_start_offset,
                one.new_log_start_offset,
                tuple((part.rule.name, part.base_offset, part.end_offset) for part in one.expired),
            )
            for one in found
        }

    async def run_retention(self, topic: str) -> Work:
        return await _of_client(self._run_retention(topic))

    async def _run_retention(self, topic: str) -> Work:
        started = await self._client.admin.start_retention([topic])
        seen = [started]
        async with aclosing(self._client.operations.watch(started.operation_id)) as watched:
            seen += [operation async for operation in watched]
        result = result_of(seen[-1], values.RetentionResult)
        return Work(
            tuple(one.state.name for one in seen),
            {
                one.partition: (one.old_log_start_offset, one.new_log_start_offset)
                for one in result.partitions
            },
        )

    async def cancel(self, operation_id: str) -> None:
        await _of_client(self._client.operations.cancel(operation_id))


def _place(at: At) -> ClientPlace:
    if isinstance(at, AtTime):
        return TimePosition(at.timestamp_ms)
    return DistancePosition(at.offset_count) if isinstance(at, AtTail) else at


async def _of_client(work: Awaitable[_T]) -> _T:
    try:
        return await work
    except LogStoreError as error:
        raise RefusedError(error.code) from None
