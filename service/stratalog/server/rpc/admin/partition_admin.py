"""Answers the calls about single partitions: their offsets, segments, slices and producers, and deletion of
records, rolls and flushes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from google.rpc.status_pb2 import Status

from stratalog.base.disk_calls import DiskCalls
from stratalog.base.errors import InvalidRequestError, LogStoreError, OffsetOutOfRangeError
from stratalog.base.types import TopicPartition
from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.log.isolation import Isolation
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.server.partitions.partition_registry import HostedTopic, PartitionRegistry
from stratalog.server.partitions.record_deletion import RecordDeletion, delete_records
from stratalog.server.partitions.unknown_topic import require_partition_number
from stratalog.server.rpc.admin.admin_convert import UNKNOWN
from stratalog.server.rpc.admin.partition_convert import (
    partition_log_message,
    producer_message,
    segment_message,
    slice_message,
)
from stratalog.server.rpc.answer_errors import AnswerErrors
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.paging import PageCursor
from stratalog.server.rpc.position import at_once, start_of
from stratalog.v1 import admin_pb2, log_pb2, partition_pb2

Found = HostedPartition | OfflinePartition


class PartitionAdmin:
    """Describes and changes partitions. Thread-safe: it has no state. Touches disk and object store, so call
    it on a pool. Every method raises UnknownTopicOrPartitionError and InvalidRequestError, and those that
    change partitions InconsistentTopicIdError, with nothing changed."""

    def __init__(
        self,
        registry: PartitionRegistry,
        cleaner: CleanerManager,
        statuses: ErrorStatuses,
        max_partition_count: int,
        disk_calls: DiskCalls,
    ) -> None:
        """`max_partition_count` bounds the partitions of one request. `disk_calls` wait for the disks of
        deletions, which share threads with changes of topics."""
        self._registry = registry
        self._cleaner = cleaner
        self._statuses = statuses
        self._max_partition_count = max_partition_count
        self._disk_calls = disk_calls

    def describe(self, request: admin_pb2.DescribeLogRequest) -> admin_pb2.DescribeLogResponse:
        """A page of partitions; only these are looked at."""
        numbers = sorted(request.partitions)
        topic = self._topic(request.topic, "", numbers)
        cursor = PageCursor(request, f"partitions of {topic.topic_id} {numbers}", int)
        page = cursor.page(_each_once(topic, numbers), lambda one: one.topic_partition.partition)
        return admin_pb2.DescribeLogResponse(
            partitions=[partition_log_message(one, self._cleaner) for one in page.items],
            next_page_token=page.next_page_token,
        )

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
        """Move log starts. Also raises OffsetOutOfRangeError."""
        numbers = [wanted.partition for wanted in request.partitions]
        topic = self._topic(request.topic, request.topic_id, numbers)
        if not 1 <= len(numbers) <= self._max_partition_count:
            raise InvalidRequestError(
                "a deletion of records names partitions; name from one to the largest number",
                partition_count=len(numbers),
                max_partition_count=self._max_partition_count,
            )
        failures: dict[int, LogStoreError] = {}
        deletions: dict[int, RecordDeletion] = {}
        for wanted, partition in zip(request.partitions, _each_once(topic, numbers), strict=True):
            try:
                deletions[wanted.partition] = _deletion(partition, wanted.before)
            except (InvalidRequestError, OffsetOutOfRangeError) as refusal:
                refusal.fields = partition.topic_partition.error_fields | refusal.fields
                raise
            except LogStoreError as failure:
                failures[wanted.partition] = failure
        errors = AnswerErrors(self._statuses)
        results = failures | dict(
            zip(deletions, delete_records(list(deletions.values()), self._disk_calls), strict=True)
        )
        return partition_pb2.DeleteRecordsResponse(
            partitions=[
                partition_pb2.DeletedRecords(partition=number, log_start_offset=offset, error=error)
                for number in numbers
                for named in (TopicPartition(topic.name, number),)
                for offset, error in (_answer(errors, results[number], "DeleteRecords", named),)
            ]
        )

    def roll(self, request: partition_pb2.RollRequest) -> partition_pb2.RollResponse:
        """Close active segments."""
        return partition_pb2.RollResponse(
            partitions=[
                partition_pb2.RolledPartition(partition=number, active_base_offset=offset, error=error)
                for number, offset, error in self._changed(request, _roll, "Roll")
            ]
        )

    def flush(self, request: partition_pb2.FlushRequest) -> partition_pb2.FlushResponse:
        """Make records durable."""
        return partition_pb2.FlushResponse(
            partitions=[
                partition_pb2.FlushedPartition(partition=number, recovery_point=offset, error=error)
                for number, offset, error in self._changed(request, _flush, "Flush")
            ]
        )

    def _changed(
        self,
        request: partition_pb2.RollRequest | partition_pb2.FlushRequest,
        change: Callable[[HostedPartition], int],
        call: str,
    ) -> Iterator[tuple[int, int, Status | None]]:
        """The number of each partition, and the result of the change there or its error."""
        topic = self._topic(request.topic, request.topic_id, request.partitions)
        errors = AnswerErrors(self._statuses)
        for partition in _each_once(topic, request.partitions):
            number = partition.topic_partition.partition
            yield number, *_answer(errors, _result(partition, change), call, partition.topic_partition)

    def _topic(self, name: str, topic_id: str, numbers: Iterable[int]) -> HostedTopic:
        """The topic of a request with these partitions. Raises as the registry's look-ups of a partition."""
        for number in numbers:
            require_partition_number(name, number)
        return self._registry.topic(name, topic_id)


def _answer(
    errors: AnswerErrors, result: int | LogStoreError, call: str, partition: TopicPartition
) -> tuple[int, Status | None]:
    """The offset and the error of an answer that has one of the two."""
    if isinstance(result, LogStoreError):
        return UNKNOWN, errors.status(result, call, partition)
    return result, None


def _each_once(topic: HostedTopic, numbers: Sequence[int]) -> Sequence[Found]:
    """The partitions of the topic with these numbers, in this order, or all. Raises InvalidRequestError if a
    number comes twice, UnknownTopicOrPartitionError."""
    if len(set(numbers)) < len(numbers):
        twice = next(number for number, count in Counter(numbers).items() if count > 1)
        raise InvalidRequestError(
            "a partition comes twice in the request; name it once", topic=topic.name, partition=twice
        )
    return [topic.find_partition(number) for number in numbers] or topic.all_partitions


def _deletion(partition: Found, before: log_pb2.Position) -> RecordDeletion:
    """The deletion of the records before that place. Raises LogStoreError: InvalidRequestError and
    OffsetOutOfRangeError if the place is wrong, other errors if it cannot be found now."""
    if isinstance(partition, OfflinePartition):
        raise partition.error()
    return RecordDeletion.of(partition, at_once(start_of(partition, before, Isolation.HIGH_WATERMARK)))


def _result(partition: Found, change: Callable[[HostedPartition], int]) -> int | LogStoreError:
    """The result of the change, or its failure."""
    if isinstance(partition, OfflinePartition):
        return partition.error()
    try:
        partition.ensure_served()
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
