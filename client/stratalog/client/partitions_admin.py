"""Partitions: their offsets, segments, slices and producers, for the admin client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from stratalog.client import values
from stratalog.client.admin_calls import AdminCalls
from stratalog.client.channel import CALL_TIMEOUT_S
from stratalog.client.errors import refusing_misfits
from stratalog.client.retry import retrying
from stratalog.client.values.conversion import value_of, values_of
from stratalog.v1 import admin_pb2, log_pb2, partition_pb2


class PartitionsAdmin(AdminCalls):
    """Describes, trims, rolls and flushes partitions. Belongs to one event loop."""

    async def describe_log(self, topic: str, partitions: Sequence[int] = ()) -> list[values.PartitionLog]:
        """Offsets and sizes of the named partitions, or all."""
        with refusing_misfits():
            request = admin_pb2.DescribeLogRequest(topic=topic, partitions=partitions)
        response = await retrying(
            self._retry, lambda: self._channel.call(self._stub.DescribeLog(request, timeout=CALL_TIMEOUT_S))
        )
        return values_of(values.PartitionLog, response.partitions)

    async def list_segments(self, topic: str, partition: int) -> list[values.Segment]:
        """The local segments of a partition, sorted by offset. Raises DataDirectoryError."""
        with refusing_misfits():
            request = partition_pb2.ListSegmentsRequest(topic=topic, partition=partition)
        pages = self._pages(
            lambda token: self._stub.ListSegments(_at(request, token), timeout=CALL_TIMEOUT_S)
        )
        return [value_of(values.Segment, segment) async for page in pages for segment in page.segments]

    async def list_slices(self, topic: str, partition: int) -> list[values.Slice]:
        """The slices of a partition in the object store, sorted by offset."""
        with refusing_misfits():
            request = partition_pb2.ListSlicesRequest(topic=topic, partition=partition)
        pages = self._pages(lambda token: self._stub.ListSlices(_at(request, token), timeout=CALL_TIMEOUT_S))
        return [value_of(values.Slice, one) async for page in pages for one in page.slices]

    async def list_producers(self, topic: str, partition: int) -> list[values.ProducerState]:
        """The producers that a partition knows, sorted by id. Raises DataDirectoryError."""
        with refusing_misfits():
            request = partition_pb2.ListProducersRequest(topic=topic, partition=partition)
        pages = self._pages(
            lambda token: self._stub.ListProducers(_at(request, token), timeout=CALL_TIMEOUT_S)
        )
        return [value_of(values.ProducerState, one) async for page in pages for one in page.producers]

    async def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Move the log start of one partition to `before_offset` (-1: the high watermark); returns the log
        start. Raises OffsetOutOfRangeError beyond the high watermark. Safe to repeat: the log start moves
        forward only."""
        [deleted] = await self.delete_records_of(topic, {partition: before_offset})
        if deleted.error is not None:
            raise deleted.error
        return deleted.log_start_offset

    async def delete_records_of(
        self, topic: str, before_offsets: Mapping[int, int], *, topic_id: str = ""
    ) -> list[values.DeletedRecords]:
        """Move the log starts of partitions to the given offsets (-1: the high watermark). A partition that
        fails has an error in its result. Raises OffsetOutOfRangeError, UnknownTopicOrPartitionError and
        InconsistentTopicIdError with nothing deleted. Safe to repeat: log starts move forward only."""
        with refusing_misfits():
            request = partition_pb2.DeleteRecordsRequest(
                topic=topic,
                topic_id=topic_id,
                partitions=[
                    partition_pb2.RecordsToDelete(
                        partition=partition,
                        before=log_pb2.Position(offset=offset)
                        if offset != -1
                        else log_pb2.Position(spec=log_pb2.OFFSET_SPEC_LATEST),
                    )
                    for partition, offset in before_offsets.items()
                ],
            )
        response = await retrying(
            self._retry, lambda: self._channel.call(self._stub.DeleteRecords(request, timeout=CALL_TIMEOUT_S))
        )
        return values_of(values.DeletedRecords, response.partitions)

    async def roll(self, topic: str, partitions: Sequence[int] = ()) -> list[values.RolledPartition]:
        """Close the active segments of the named partitions, or all. A partition that fails has an error in
        its result. Safe to repeat: an empty active segment stays."""
        with refusing_misfits():
            request = partition_pb2.RollRequest(topic=topic, partitions=partitions)
        response = await retrying(
            self._retry, lambda: self._channel.call(self._stub.Roll(request, timeout=CALL_TIMEOUT_S))
        )
        return values_of(values.RolledPartition, response.partitions)

    async def flush(self, topic: str, partitions: Sequence[int] = ()) -> list[values.FlushedPartition]:
        """Make the records of the named partitions, or of all, durable on the server's disk. A partition that
        fails has an error in its result."""
        with refusing_misfits():
            request = partition_pb2.FlushRequest(topic=topic, partitions=partitions)
        response = await retrying(
            self._retry, lambda: self._channel.call(self._stub.Flush(request, timeout=CALL_TIMEOUT_S))
        )
        return values_of(values.FlushedPartition, response.partitions)


_ListRequest = TypeVar(
    "_ListRequest",
    partition_pb2.ListSegmentsRequest,
    partition_pb2.ListSlicesRequest,
    partition_pb2.ListProducersRequest,
)


def _at(request: _ListRequest, page_token: str) -> _ListRequest:
    """The request for the page of that token."""
    request.page_token = page_token
    return request
