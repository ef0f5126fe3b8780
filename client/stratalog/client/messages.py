"""Requests and answers of the data plane, between the wire's messages and the client's values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stratalog.base.types import Durability, TopicPartition
from stratalog.client.aborted_batches import AbortedBatches
from stratalog.client.errors import refusing_misfits
from stratalog.client.isolation_level import IsolationLevel
from stratalog.record.batch import batches, decode, decode_all
from stratalog.record.record import Record
from stratalog.v1 import log_pb2


class FetchedRecords(NamedTuple):
    """Records of one partition, in order, from one answer."""

    topic_partition: TopicPartition
    records: list[Record]
    next_offset: int
    """Where the next fetch goes on; behind the last record, further where compaction left a hole."""
    high_watermark: int
    log_start_offset: int
    local_log_start_offset: int


_ACKS: dict[Durability | None, log_pb2.Durability.ValueType] = {
    None: log_pb2.DURABILITY_UNSPECIFIED,
    Durability.OS: log_pb2.DURABILITY_OS,
    Durability.DISK: log_pb2.DURABILITY_DISK,
    Durability.OBJECT: log_pb2.DURABILITY_OBJECT,
}
_ISOLATIONS: dict[IsolationLevel, log_pb2.IsolationLevel.ValueType] = {
    IsolationLevel.READ_UNCOMMITTED: log_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED,
    IsolationLevel.READ_COMMITTED: log_pb2.ISOLATION_LEVEL_READ_COMMITTED,
}


def wire_acks(acks: Durability | None) -> log_pb2.Durability.ValueType:
    """None: as the topic says."""
    return _ACKS[acks]


def wire_isolation(isolation: IsolationLevel) -> log_pb2.IsolationLevel.ValueType:
    """The same on the wire."""
    return _ISOLATIONS[isolation]


@refusing_misfits()
def fetch_request(
    positions: Mapping[TopicPartition, int],
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    partition_max_bytes: int,
    isolation: IsolationLevel,
) -> log_pb2.FetchRequest:
    """Zeros leave a limit to the server. Raises InvalidRequestError."""
    partitions = [
        log_pb2.FetchPartition(
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            fetch_offset=offset,
            max_bytes=partition_max_bytes,
        )
        for topic_partition, offset in positions.items()
    ]
    return log_pb2.FetchRequest(
        partitions=partitions,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation=wire_isolation(isolation),
    )


def fetched_records(answer: log_pb2.FetchedPartition, fetch_offset: int) -> FetchedRecords:
    """The records of `answer` inside [fetch_offset, next_fetch_offset): batches may reach over either end.
    Without markers, and without the aborted transactions that it names. Raises CorruptRecordError where a
    checksum does not match.
    """
    end_offset = answer.next_fetch_offset
    records = _committed_records(answer) if answer.aborted_transactions else decode_all(answer.batches)
    # Almost always nothing has to go, and the list stays as it is.
    if records and (records[0].offset < fetch_offset or records[-1].offset >= end_offset):
        records = [record for record in records if fetch_offset <= record.offset < end_offset]
    return FetchedRecords(
        TopicPartition(answer.topic, answer.partition),
        records,
        end_offset,
        answer.high_watermark,
        answer.log_start_offset,
        answer.local_log_start_offset,
    )


def _committed_records(answer: log_pb2.FetchedPartition) -> list[Record]:
    aborted = AbortedBatches(answer.aborted_transactions)
    records: list[Record] = []
    for position, header in batches(answer.batches):
        if not (aborted.has_next(header) or header.is_control):
            records += decode(answer.batches, position)
    return records
