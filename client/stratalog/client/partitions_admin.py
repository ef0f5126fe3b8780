"""Partitions: their offsets, segments, slices and producers, for the admin client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar, cast

from stratalog.base.errors import InvalidRequestError, LogStoreError
from stratalog.base.types import TopicPartition
from stratalog.client import values
from stratalog.client.admin_calls import AdminCalls
from stratalog.client.channel import CALL_TIMEOUT_S, AnswerPart, ServerChannel
from stratalog.client.errors import refusing_misfits
from stratalog.client.owner_channels import is_refusal
from stratalog.client.pages import at_page, pages
from stratalog.client.position import OffsetPosition, Place, Position, position_of, wire_position
from stratalog.client.values.conversion import value_of, values_of
from stratalog.v1 import admin_pb2, admin_pb2_grpc, partition_pb2


class ChangedPartition(AnswerPart, Protocol):
    """The answer about a partition that was to be changed."""

    @property
    def partition(self) -> int: ...


ChangedT = TypeVar("ChangedT", bound=ChangedPartition)

AskNumbers = Callable[[ServerChannel, Sequence[int]], Awaitable[Sequence[ChangedT]]]
"""Asks a server about the partitions with these numbers, or all; returns the answers in the same order."""


class PartitionsAdmin(AdminCalls):
    """Describes, trims, rolls and flushes partitions. Belongs to one event loop."""

    async def describe_log(self, topic: str, partitions: Sequence[int] = ()) -> list[values.PartitionLog]:
        """Offsets and sizes of the named partitions, each once, or of all; sorted by number. Their owners
        describe them. A partition whose owner does not answer is offline: another server describes what it
        has in the object store."""
        with refusing_misfits():
            request = admin_pb2.DescribeLogRequest(topic=topic, partitions=partitions)
        found = {one.partition: one for one in await _described(self._channel, request)}
        offline = [number for number, one in found.items() if one.offline is not None]
        if offline:
            owners = await self._owners.elsewhere([TopicPartition(topic, number) for number in offline])
            asked = [
                _described(
                    channel,
                    admin_pb2.DescribeLogRequest(topic=topic, partitions=[one.partition for one in places]),
                )
                for channel, places in owners.items()
            ]
            for answer in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(answer, list):
                    found |= {one.partition: one for one in answer}
                elif not isinstance(answer, LogStoreError):
                    raise answer
        return [found[number] for number in sorted(found)]

    async def list_segments(self, topic: str, partition: int) -> list[values.Segment]:
        """The local segments of a partition, sorted by offset. Raises DataDirectoryError."""
        with refusing_misfits():
            request = partition_pb2.ListSegmentsRequest(topic=topic, partition=partition)
        found = self._pages(
            lambda token: self._stub.ListSegments(at_page(request, token), timeout=CALL_TIMEOUT_S)
        )
        return [value_of(values.Segment, segment) async for page in found for segment in page.segments]

    async def list_slices(self, topic: str, partition: int) -> list[values.Slice]:
        """The slices of a partition in the object store, sorted by offset."""
        with refusing_misfits():
            request = partition_pb2.ListSlicesRequest(topic=topic, partition=partition)
        found = self._pages(
            lambda token: self._stub.ListSlices(at_page(request, token), timeout=CALL_TIMEOUT_S)
        )
        return [value_of(values.Slice, one) async for page in found for one in page.slices]

    async def list_producers(self, topic: str, partition: int) -> list[values.ProducerState]:
        """The producers that a partition knows, sorted by id. Raises DataDirectoryError."""
        with refusing_misfits():
            request = partition_pb2.ListProducersRequest(topic=topic, partition=partition)
        found = self._pages(
            lambda token: self._stub.ListProducers(at_page(request, token), timeout=CALL_TIMEOUT_S)
        )
        return [value_of(values.ProducerState, one) async for page in found for one in page.producers]

    async def delete_records(
        self, topic: str, partition: int, before: Place | Position, *, topic_id: str = ""
    ) -> int:
        """Delete the records of one partition before a place; returns the log start. Places and errors are
        those of `delete_records_of`."""
        [deleted] = await self.delete_records_of(topic, {partition: before}, topic_id=topic_id)
        if deleted.error is not None:
            raise deleted.error
        return deleted.log_start_offset

    async def delete_records_of(
        self, topic: str, before: Mapping[int, Place | Position], *, topic_id: str = ""
    ) -> list[values.DeletedRecords]:
        """Delete the records of partitions before these places, as `consume` takes them: `"latest"` deletes
        all records, -10 all but ten offsets, a `datetime` those before the first record of that time or
        later, and all if there is none.

        A partition that fails has an error in its result. Raises OffsetOutOfRangeError for a place behind
        the high watermark, UnknownTopicOrPartitionError and InconsistentTopicIdError, with nothing deleted
        from the partitions of the server that refuses it.
        Offsets are safe to repeat: log starts move forward only. The other places move on with the log, so a
        request with one is sent again only if it was refused: after ServerUnavailableError look at the log
        starts before you repeat it.
        """
        if not isinstance(cast(object, before), Mapping):
            raise InvalidRequestError(
                "name the partitions: a mapping of partitions to places, such as {0: 'latest'}",
                topic=topic,
                before=before,
            )
        positions = {partition: position_of(place) for partition, place in before.items()}
        places = [TopicPartition(topic, partition) for partition in positions]
        may_repeat = all(isinstance(position, OffsetPosition) for position in positions.values())

        async def ask(
            channel: ServerChannel, indexes: Sequence[int]
        ) -> Sequence[partition_pb2.DeletedRecords]:
            numbers = [places[index].partition for index in indexes]
            with refusing_misfits():
                request = partition_pb2.DeleteRecordsRequest(
                    topic=topic,
                    topic_id=topic_id,
                    partitions=[
                        partition_pb2.RecordsToDelete(
                            partition=number, before=wire_position(positions[number])
                        )
                        for number in numbers
                    ],
                )
            call = _stub_of(channel).DeleteRecords(request, timeout=CALL_TIMEOUT_S)
            return (await channel.call(call, is_repeatable=may_repeat)).partitions

        answers = await self._owners.answers(places, ask, is_repeatable=may_repeat)
        return values_of(values.DeletedRecords, answers)

    async def roll(
        self, topic: str, partitions: Sequence[int] = (), *, topic_id: str = ""
    ) -> list[values.RolledPartition]:
        """Close the active segments of the named partitions, or all. A partition that fails has an error in
        its result. Raises UnknownTopicOrPartitionError, InconsistentTopicIdError. Safe to repeat: an empty
        active segment stays."""

        async def ask(
            channel: ServerChannel, numbers: Sequence[int]
        ) -> Sequence[partition_pb2.RolledPartition]:
            with refusing_misfits():
                request = partition_pb2.RollRequest(topic=topic, partitions=numbers, topic_id=topic_id)
            call = _stub_of(channel).Roll(request, timeout=CALL_TIMEOUT_S)
            return (await channel.call(call, is_repeatable=True)).partitions

        return values_of(values.RolledPartition, await self._changed(topic, partitions, ask))

    async def flush(
        self, topic: str, partitions: Sequence[int] = (), *, topic_id: str = ""
    ) -> list[values.FlushedPartition]:
        """Make the records of the named partitions, or of all, durable on their servers' disks. A partition
        that fails has an error in its result. Raises UnknownTopicOrPartitionError and
        InconsistentTopicIdError."""

        async def ask(
            channel: ServerChannel, numbers: Sequence[int]
        ) -> Sequence[partition_pb2.FlushedPartition]:
            with refusing_misfits():
                request = partition_pb2.FlushRequest(topic=topic, partitions=numbers, topic_id=topic_id)
            call = _stub_of(channel).Flush(request, timeout=CALL_TIMEOUT_S)
            return (await channel.call(call, is_repeatable=True)).partitions

        return values_of(values.FlushedPartition, await self._changed(topic, partitions, ask))

    async def _changed(
        self, topic: str, partitions: Sequence[int], ask: AskNumbers[ChangedT]
    ) -> list[ChangedT]:
        """The answers about the named partitions of a topic, or all. Raises LogStoreError."""
        found: dict[int, ChangedT] = {}
        numbers = list(partitions)
        if not numbers:
            # One server knows all numbers, and changes the partitions that it owns.
            found = {part.partition: part for part in await ask(self._channel, ())}
            numbers = [number for number, part in found.items() if is_refusal(part)]
        if not numbers:
            return list(found.values())

        async def ask_owner(channel: ServerChannel, indexes: Sequence[int]) -> Sequence[ChangedT]:
            return await ask(channel, [numbers[index] for index in indexes])

        places = [TopicPartition(topic, number) for number in numbers]
        answers = await self._owners.answers(places, ask_owner)
        found |= {part.partition: part for part in answers}
        return list(found.values())


async def _described(
    channel: ServerChannel, request: admin_pb2.DescribeLogRequest
) -> list[values.PartitionLog]:
    """The partitions of a request as a server describes them. Raises LogStoreError."""
    stub = _stub_of(channel)
    found = pages(channel, lambda token: stub.DescribeLog(at_page(request, token), timeout=CALL_TIMEOUT_S))
    return [value_of(values.PartitionLog, one) async for page in found for one in page.partitions]


def _stub_of(channel: ServerChannel) -> admin_pb2_grpc.AdminServiceAsyncStub:
    return admin_pb2_grpc.AdminServiceStub(channel.grpc)
