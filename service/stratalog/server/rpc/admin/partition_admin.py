"""Answers the calls about single partitions: their offsets, segments, slices and producers, and deletion of
records, rolls and flushes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeVar

from stratalog.base.errors import InvalidRequestError, LogStoreError
from stratalog.server.log_identity import ANY_LEADER_EPOCH
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.partitions.record_deletion import RecordDeletion, delete_records
from stratalog.server.rpc.admin.admin_convert import UNKNOWN
from stratalog.server.rpc.admin.paging import PageCursor
from stratalog.server.rpc.admin.partition_convert import (
    partition_log_message,
    producer_message,
    segment_message,
    slice_message,
)
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.v1 import admin_pb2, partition_pb2

R = TypeVar("R")
Found = HostedPartition | OfflinePartition


class PartitionAdmin:
    """Describes and changes partitions. Thread-safe: it has no state. Touches disk and object store, so call
    it on a pool. Every method raises UnknownTopicOrPartitionError and InvalidRequestError, with nothing
    changed."""

    def __init__(
        self, registry: PartitionRegistry, statuses: ErrorStatuses, max_partition_count: int
    ) -> None:
        """`max_partition_count` bounds the partitions of one request."""
        self._registry = registry
        self._statuses = statuses
        self._max_partition_count = max_partition_count

    def describe(self, request: admin_pb2.DescribeLogRequest) -> admin_pb2.DescribeLogResponse:
        partitions = self._registry.find_partitions(request.topic, request.partitions)
        return admin_pb2.DescribeLogResponse(partitions=map(partition_log_message, partitions))

    def list_segments(self, request: partition_pb2.ListSegmentsRequest) -> partition_pb2.ListSegmentsResponse:
        """A page of local segments. Raises DataDirectoryError."""
        partition = self._registry.partition(request.topic, request.partition)
        cursor = PageCursor(request, _list_of("segments", partition), int)
        begin_offset = 0 if cursor.after is None else cursor.after + 1
        # One more than the page has, so that it knows of the next page.
        segments = partition.log.reader.segments(begin_offset=begin_offset, max_count=cursor.size + 1)
        page = cursor.page(segments, attrgetter("base_offset"))
        return partition_pb2.ListSegmentsResponse(
            segments=map(segment_message, page.items), next_page_token=page.next_page_token
        )

    def list_slices(self, request: partition_pb2.ListSlicesRequest) -> partition_pb2.ListSlicesResponse:
        partition = self._registry.find_partition(request.topic, request.partition)
        state = partition.tier_state()
        cursor = PageCursor(request, _list_of("slices", partition), int)
        page = cursor.page(() if state is None else state.slices, attrgetter("base_offset"))
        return partition_pb2.ListSlicesResponse(
            slices=map(slice_message, page.items), next_page_token=page.next_page_token
        )

    def list_producers(
        self, request: partition_pb2.ListProducersRequest
    ) -> partition_pb2.ListProducersResponse:
        """A page of producers. Raises DataDirectoryError."""
        partition = self._registry.partition(request.topic, request.partition)
        partition.log.availability.require_disk()
        cursor = PageCursor(request, _list_of("producers", partition), int)
        page = cursor.page(partition.log.producers(), attrgetter("producer_id"))
        return partition_pb2.ListProducersResponse(
            producers=map(producer_message, page.items), next_page_token=page.next_page_token
        )

    def delete_records(
        self, request: partition_pb2.DeleteRecordsRequest
    ) -> partition_pb2.DeleteRecordsResponse:
        """Move log starts. Raises OffsetOutOfRangeError, InconsistentTopicIdError."""
        self._registry.topic(request.topic, request.topic_id)
        numbers = [wanted.partition for wanted in request.partitions]
        if not 1 <= len(numbers) <= self._max_partition_count:
            raise InvalidRequestError(
                "a deletion of records names partitions; name from one to the largest number",
                partition_count=len(numbers),
                max_partition_count=self._max_partition_count,
            )
        partitions = self._each_once(request.topic, numbers)
        for partition in partitions:
            # Another topic may have taken the name since the check.
            if isinstance(partition, HostedPartition):
                partition.identity.require(request.topic_id, ANY_LEADER_EPOCH)
        deletions = {
            wanted.partition: RecordDeletion.of(
                partition, wanted.before.offset if wanted.before.HasField("offset") else -1
            )
            for wanted, partition in zip(request.partitions, partitions, strict=True)
            if isinstance(partition, HostedPartition)
        }
        results = dict(zip(deletions, delete_records(list(deletions.values())), strict=True))
        response = partition_pb2.DeleteRecordsResponse()
        for number, partition in zip(numbers, partitions, strict=True):
            result = partition.error() if isinstance(partition, OfflinePartition) else results[number]
            answer = response.partitions.add(partition=number, log_start_offset=UNKNOWN)
            if isinstance(result, LogStoreError):
                answer.error.CopyFrom(self._statuses.status(result, "DeleteRecords"))
            else:
                answer.log_start_offset = result
        return response

    def roll(self, request: partition_pb2.RollRequest) -> partition_pb2.RollResponse:
        response = partition_pb2.RollResponse()
        for partition in self._each_once(request.topic, request.partitions):
            answer = response.partitions.add(
                partition=partition.topic_partition.partition, active_base_offset=UNKNOWN
            )
            result = _result(partition, _roll)
            if isinstance(result, LogStoreError):
                answer.error.CopyFrom(self._statuses.status(result, "Roll"))
            else:
                answer.active_base_offset = result
        return response

    def flush(self, request: partition_pb2.FlushRequest) -> partition_pb2.FlushResponse:
        response = partition_pb2.FlushResponse()
        for partition in self._each_once(request.topic, request.partitions):
            answer = response.partitions.add(
                partition=partition.topic_partition.partition, recovery_point=UNKNOWN
            )
            result = _result(partition, _flush)
            if isinstance(result, LogStoreError):
                answer.error.CopyFrom(self._statuses.status(result, "Flush"))
            else:
                answer.recovery_point = result
        return response

    def _each_once(self, topic: str, numbers: Sequence[int]) -> list[Found]:
        """The partitions with these numbers, or all. Raises InvalidRequestError if a number comes twice."""
        if len(set(numbers)) < len(numbers):
            twice = next(number for number, count in Counter(numbers).items() if count > 1)
            raise InvalidRequestError(
                "a partition comes twice in the request; name it once", topic=topic, partition=twice
            )
        return self._registry.find_partitions(topic, numbers)


def _result(partition: Found, change: Callable[[HostedPartition], R]) -> R | LogStoreError:
    """The result of the change, or its failure."""
    if isinstance(partition, OfflinePartition):
        return partition.error()
    try:
        partition.shard.leader_epoch()
        return change(partition)
    except LogStoreError as failure:
        return failure


def _roll(partition: HostedPartition) -> int:
    """Close the active segment; returns the base offset of the new one."""
    partition.log.roll()
    return partition.log.local_log.segments.active.base_offset


def _flush(partition: HostedPartition) -> int:
    """Flush the log, and wake the readers who wait for that; returns the recovery point."""
    recovery_point = partition.log.flusher.flush()
    partition.signal.notify()
    return recovery_point


def _list_of(noun: str, partition: Found) -> str:
    """The name of a list that belongs to one partition of one topic."""
    return f"{noun} of {partition.topic_id_partition.topic_id}-{partition.topic_id_partition.partition}"
