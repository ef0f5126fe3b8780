"""Partitions: their offsets, segments, slices and producers, for the admin client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from stratalog.base.errors import InvalidRequestError
from stratalog.client import values
from stratalog.client.admin_calls import AdminCalls
from stratalog.client.channel import CALL_TIMEOUT_S
from stratalog.client.errors import refusing_misfits
from stratalog.client.pages import at_page
from stratalog.client.position import OffsetPosition, Place, Position, position_of, wire_position
from stratalog.client.values.conversion import value_of, values_of
from stratalog.v1 import admin_pb2, partition_pb2


class PartitionsAdmin(AdminCalls):
    """Describes, trims, rolls and flushes partitions. Belongs to one event loop."""

    async def describe_log(self, topic: str, partitions: Sequence[int] = ()) -> list[values.PartitionLog]:
        """Offsets and sizes of the named partitions, each once, or of all; sorted by number."""
        with refusing_misfits():
            request = admin_pb2.DescribeLogRequest(topic=topic, partitions=partitions)
        pages = self._pages(
            lambda token: self._stub.DescribeLog(at_page(request, token), timeout=CALL_TIMEOUT_S)
        )
        return [value_of(values.PartitionLog, one) async for page in pages for one in page.partitions]

    async def list_segments(self, topic: str, partition: int) -> list[values.Segment]:
        """The local segments of a partition, sorted by offset. Raises DataDirectoryError."""
        with refusing_misfits():
            request = partition_pb2.ListSegmentsRequest(topic=topic, partition=partition)
        pages = self._pages(
            lambda token: self._stub.ListSegments(at_page(request, token), timeout=CALL_TIMEOUT_S)
        )
        return [value_of(values.Segment, segment) async for page in pages for segment in page.segments]

    async def list_slices(self, topic: str, partition: int) -> list[values.Slice]:
        """The slices of a partition in the object store, sorted by offset."""
        with refusing_misfits():
            request = partition_pb2.ListSlicesRequest(topic=topic, partition=partition)
        pages = self._pages(
            lambda token: self._stub.ListSlices(at_page(request, token), timeout=CALL_TIMEOUT_S)
        )
        return [value_of(values.Slice, one) async for page in pages for one in page.slices]

    async def list_producers(self, topic: str, partition: int) -> list[values.ProducerState]:
        """The producers that a partition knows, sorted by id. Raises DataDirectoryError."""
        with refusing_misfits():
            request = partition_pb2.ListProducersRequest(topic=topic, partition=partition)
        pages = self._pages(
            lambda token: self._stub.ListProducers(at_page(request, token), timeout=CALL_TIMEOUT_S)
        )
        return [value_of(values.ProducerState, one) async for page in pages for one in page.producers]

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
        the high watermark, UnknownTopicOrPartitionError and InconsistentTopicIdError, with nothing deleted.
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
        with refusing_misfits():
            request = partition_pb2.DeleteRecordsRequest(
                topic=topic,
                topic_id=topic_id,
                partitions=[
                    partition_pb2.RecordsToDelete(partition=partition, before=wire_position(position))
                    for partition, position in positions.items()
                ],
            )

        call = self._stub.DeleteRecords(request, timeout=CALL_TIMEOUT_S)
        if all(isinstance(position, OffsetPosition) for position in positions.values()):
            response = await self._channel.call(
                call, is_repeatable=True, parts=lambda answer: answer.partitions
            )
        else:
            response = await self._channel.call(call)
        return values_of(values.DeletedRecords, response.partitions)

    async def roll(
        self, topic: str, partitions: Sequence[int] = (), *, topic_id: str = ""
    ) -> list[values.RolledPartition]:
        """Close the active segments of the named partitions, or all. A partition that fails has an error in
        its result. Raises UnknownTopicOrPartitionError, InconsistentTopicIdError. Safe to repeat: an empty
        active segment stays."""
        with refusing_misfits():
            request = partition_pb2.RollRequest(topic=topic, partitions=partitions, topic_id=topic_id)
        response = await self._channel.call(
            self._stub.Roll(request, timeout=CALL_TIMEOUT_S),
            is_repeatable=True,
            parts=lambda answer: answer.partitions,
        )
        return values_of(values.RolledPartition, response.partitions)

    async def flush(
        self, topic: str, partitions: Sequence[int] = (), *, topic_id: str = ""
    ) -> list[values.FlushedPartition]:
        """Make the records of the named partitions, or of all, durable on the server's disk. A partition that
        fails has an error in its result. Raises UnknownTopicOrPartitionError, InconsistentTopicIdError."""
        with refusing_misfits():
            request = partition_pb2.FlushRequest(topic=topic, partitions=partitions, topic_id=topic_id)
        response = await self._channel.call(
            self._stub.Flush(request, timeout=CALL_TIMEOUT_S),
            is_repeatable=True,
            parts=lambda answer: answer.partitions,
        )
        return values_of(values.FlushedPartition, response.partitions)
