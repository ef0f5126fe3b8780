"""The largest pages stay below the 4 MiB that a gRPC client takes by default: names, paths and reasons are as
long as they come in practice, and numbers as large as they can be."""

from __future__ import annotations

from typing import cast
from uuid import UUID

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from stratalog.base.errors import DataDirectoryError, StoreUnavailableError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.tier_verification import VerificationReport
from stratalog.log.log_config import LogConfig
from stratalog.remote.restore.metadata_scrub import VerificationFinding
from stratalog.server.operations.operation import OperationKind, OperationView
from stratalog.server.operations.operation_results import (
    CompactionResult,
    FailedPartition,
    OperationResult,
    RetainedPartition,
    RetentionResult,
    UploadResult,
    VerificationResult,
)
from stratalog.server.rpc.admin.admin_convert import MAX_OFFLINE_COUNT, MAX_SET_ASIDE_COUNT
from stratalog.server.rpc.admin.operation_convert import MAX_LISTED_COUNT, view_message
from stratalog.server.rpc.paging import MAX_PAGE_SIZE, MAX_PAGE_WEIGHT
from stratalog.server.rpc.status import status_of_error
from stratalog.v1 import admin_pb2, log_pb2, operation_pb2, partition_pb2, tier_pb2

CLIENT_LIMIT_BYTES = 4 << 20
NAME = "a-topic-with-a-rather-long-name-of-this-kind"
PARTITION_COUNT = 10_000
TEXT = "the log cannot be opened; look at the directory, restore its files, and start the server again " * 2
_NUMBERS = {
    FieldDescriptor.TYPE_INT32: (1 << 31) - 1,
    FieldDescriptor.TYPE_INT64: (1 << 63) - 1,
    FieldDescriptor.TYPE_BOOL: True,
    FieldDescriptor.TYPE_ENUM: 1,
}


def filled(message: Message) -> Message:
    """The message with the largest numbers, and a text in each field for one."""
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated or field.message_type is not None:
            continue
        if field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, TEXT if field.name == "reason" else NAME)
        elif field.type in _NUMBERS:
            setattr(message, field.name, _NUMBERS[field.type])
    return message


def explained() -> tier_pb2.ExplainedPartition:
    one = tier_pb2.ExplainedPartition()
    for tier in range(2):
        for _ in range(4):
            filled(one.expired.add())
        filled(one.next.add(tier=tier_pb2.RetentionTier.ValueType(tier)))
    filled(one)
    return one


def offline_log() -> admin_pb2.PartitionLog:
    one = admin_pb2.PartitionLog()
    filled(one)
    filled(one.offline)
    return one


def log_dir() -> admin_pb2.LogDir:
    one = admin_pb2.LogDir(set_aside_paths=[f"/disks/one/{NAME}-9999-{NAME}-stray"] * MAX_SET_ASIDE_COUNT)
    filled(one)
    return one


def job() -> tier_pb2.PlannedJob:
    """Ten inputs and as many runs."""
    one = tier_pb2.PlannedJob(input_names=[f"data/{NAME}/{number:020}" for number in range(10)])
    filled(one)
    for _ in range(10):
        filled(one.runs.add())
    return one


def operation() -> operation_pb2.Operation:
    one = operation_pb2.Operation(topics=[NAME] * 10, error=ERROR)
    filled(one)
    filled(one.progress)
    return one


def topic(offline_count: int) -> admin_pb2.Topic:
    """A topic with every key set, and some partitions offline."""
    config = LogConfig().as_mapping()
    offline = [filled(admin_pb2.OfflinePartition())] * offline_count
    one = admin_pb2.Topic(config=config, config_overrides=config)
    filled(one)
    one.offline_partitions.extend(cast(list[admin_pb2.OfflinePartition], offline))
    return one


ERROR = status_of_error(DataDirectoryError(TEXT, topic=NAME, partition=9_999, path=NAME, reason=TEXT))
SHORT_ERROR = status_of_error(StoreUnavailableError("the store does not answer; try again later"))
LISTS: dict[str, tuple[Message, list[Message]]] = {
    "DescribeLogDirs": (
        admin_pb2.DescribeLogDirsResponse(log_dirs=[log_dir()] * 100),
        [filled(admin_pb2.PartitionMove())] * MAX_PAGE_SIZE,
    ),
    "CleanerStatus": (
        admin_pb2.CleanerStatusResponse(),
        [filled(admin_pb2.UncleanablePartition())] * MAX_PAGE_SIZE,
    ),
    "PlanCompaction, idle topics": (
        tier_pb2.PlanCompactionResponse(),
        [tier_pb2.IdleTopic(topic=NAME, reasons=[TEXT] * 9)] * MAX_PAGE_SIZE,
    ),
    "DescribeLog": (admin_pb2.DescribeLogResponse(), [offline_log()] * MAX_PAGE_SIZE),
    "ListExcludedPartitions": (
        tier_pb2.ListExcludedPartitionsResponse(),
        [filled(tier_pb2.ExcludedPartition())] * MAX_PAGE_SIZE,
    ),
    "ExplainRetention": (tier_pb2.ExplainRetentionResponse(), [explained()] * MAX_PAGE_SIZE),
    "PlanCompaction": (tier_pb2.PlanCompactionResponse(), [job()] * (MAX_PAGE_WEIGHT // 20)),
    "ListSegments": (
        partition_pb2.ListSegmentsResponse(),
        [filled(partition_pb2.Segment())] * MAX_PAGE_SIZE,
    ),
    "ListSlices": (partition_pb2.ListSlicesResponse(), [filled(partition_pb2.Slice())] * MAX_PAGE_SIZE),
    "ListProducers": (
        partition_pb2.ListProducersResponse(),
        [filled(partition_pb2.ProducerState())] * MAX_PAGE_SIZE,
    ),
    "ListTopics": (
        admin_pb2.ListTopicsResponse(),
        [
            admin_pb2.TopicListing(
                name=NAME, topic_id=NAME, config_overrides={f"a.key.number.{n}": "1" * 20 for n in range(20)}
            )
        ]
        * MAX_PAGE_SIZE,
    ),
    "DescribeTopics": (admin_pb2.DescribeTopicsResponse(), [topic(0)] * MAX_PAGE_SIZE),
    "DescribeTopics, offline partitions": (
        admin_pb2.DescribeTopicsResponse(),
        [topic(MAX_OFFLINE_COUNT)] * (MAX_PAGE_WEIGHT // (5 + 3 * MAX_OFFLINE_COUNT)),
    ),
    "DescribeTopics, an offline partition of each": (
        admin_pb2.DescribeTopicsResponse(),
        [topic(1)] * MAX_PAGE_SIZE,
    ),
    "TierStatus": (tier_pb2.TierStatusResponse(), [filled(tier_pb2.TieredTopicStatus())] * MAX_PAGE_SIZE),
    "TierStatus, offline partitions": (
        tier_pb2.TierStatusResponse(),
        [filled(admin_pb2.OfflinePartition())] * MAX_PAGE_SIZE,
    ),
    "ListOperations": (operation_pb2.ListOperationsResponse(), [operation()] * MAX_PAGE_SIZE),
    "Roll": (
        partition_pb2.RollResponse(),
        [partition_pb2.RolledPartition(partition=9_999, active_base_offset=1 << 62)] * PARTITION_COUNT,
    ),
    "Flush": (
        partition_pb2.FlushResponse(),
        [partition_pb2.FlushedPartition(partition=9_999, recovery_point=1 << 62)] * PARTITION_COUNT,
    ),
    "DeleteRecords, the store away": (
        partition_pb2.DeleteRecordsResponse(),
        [partition_pb2.DeletedRecords(partition=9_999, log_start_offset=-1, error=SHORT_ERROR)]
        * PARTITION_COUNT,
    ),
    "Metadata": (
        log_pb2.MetadataResponse(),
        [
            log_pb2.TopicMetadata(
                topic=NAME,
                topic_id=NAME,
                partitions=[
                    log_pb2.PartitionMetadata(partition=9_999, endpoint="a-host.of.a:9190", leader_epoch=9)
                ]
                * (MAX_PAGE_WEIGHT // MAX_PAGE_SIZE),
            )
        ]
        * MAX_PAGE_SIZE,
    ),
}


PARTITION = TopicPartition(NAME, PARTITION_COUNT - 1)
LONG_REASON = TEXT * 20
FINDING = VerificationFinding(
    topic=NAME, partition=9_999, object_name=NAME, base_offset=0, end_offset=1 << 62, reason=LONG_REASON
)
FAILED = (FailedPartition(PARTITION, LONG_REASON),) * PARTITION_COUNT
REFUSED = ((TopicIdPartition(UUID(int=1), 9_999), LONG_REASON),) * 7
RESULTS: dict[str, tuple[OperationResult, dict[str, int], dict[str, int]]] = {
    "upload": (
        UploadResult(failed=FAILED),
        {"failed_partition_count": PARTITION_COUNT},
        {"failed_partitions": MAX_LISTED_COUNT},
    ),
    "retention": (
        RetentionResult((RetainedPartition(PARTITION, *[1 << 30] * 6),) * PARTITION_COUNT, FAILED),
        {"partition_count": PARTITION_COUNT, "failed_partition_count": PARTITION_COUNT},
        {"partitions": MAX_LISTED_COUNT, "failed_partitions": MAX_LISTED_COUNT},
    ),
    "compaction": (
        CompactionResult(
            (CompactionReport(refused=LONG_REASON, refused_partitions=REFUSED),) * PARTITION_COUNT
        ),
        {"job_count": PARTITION_COUNT},
        {"jobs": MAX_LISTED_COUNT},
    ),
    "verification": (
        VerificationResult(
            VerificationReport(
                finding_count=PARTITION_COUNT,
                findings=(FINDING,) * MAX_LISTED_COUNT,
            )
        ),
        {"finding_count": PARTITION_COUNT},
        {"findings": MAX_LISTED_COUNT},
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_has_the_first_items_of_its_lists_and_counts_all(name: str) -> None:
    result, counts, lengths = RESULTS[name]
    kind = OperationKind[name.upper()]
    message = view_message(OperationView(UUID(int=1), 1, kind, (), 0, result=result), lambda _: True)
    assert message.ByteSize() < CLIENT_LIMIT_BYTES
    part = getattr(message, name)
    assert {field: getattr(part, field) for field in counts} == counts
    assert {field: len(getattr(part, field)) for field in lengths} == lengths


def test_the_refused_partitions_of_a_result_are_bounded_over_all_jobs() -> None:
    result = CompactionResult((CompactionReport(refused_partitions=REFUSED),) * 200)
    view = OperationView(UUID(int=1), 1, OperationKind.COMPACTION, (), 0, result=result)
    jobs = view_message(view, lambda _: True).compaction.jobs
    assert [len(one.refused_partitions) for one in jobs[141:145]] == [7, 6, 0, 0]
    assert {one.refused_partition_count for one in jobs} == {7}


@pytest.mark.parametrize("name", LISTS)
def test_the_largest_page_is_one_that_clients_take(name: str) -> None:
    response, items = LISTS[name]
    [field] = [one for one in response.DESCRIPTOR.fields if one.message_type == items[0].DESCRIPTOR]
    getattr(response, field.name).extend(items)
    assert response.ByteSize() < CLIENT_LIMIT_BYTES
