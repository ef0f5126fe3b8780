"""Requests and answers of the data plane, between the wire's messages and the client's values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from stratalog.base.types import Durability, TopicPartition
from stratalog.client.aborted_batches import AbortedBatches
from stratalog.client.errors import refusing_misfits
from stratalog.client.isolation_level import IsolationLevel
from stratalog.record.header import BatchHeader
from stratalog.record.record import Record
from stratalog.record.record_runs import record_runs
from stratalog.v1 import log_pb2


class FetchedRecords(NamedTuple):
    """Records of one partition, in order, from one answer: all, or a part of bounded size."""

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
    Without markers, and without the aborted transactions that it names. All at once, and nothing bounds what
    the batches of an answer decompress to: `fetched_runs` has them in parts. Raises CorruptRecordError where
    a checksum does not match.
    """
    runs = list(fetched_runs(answer, fetch_offset))
    return runs[-1]._replace(records=[record for run in runs for record in run.records])


def fetched_runs(
    answer: log_pb2.FetchedPartition, fetch_offset: int, end_offset: int | None = None
) -> Iterator[FetchedRecords]:
    """The same in parts of bounded size, each decoded when its turn comes, and only below `end_offset`, where
    given. There is one at least, the last may be empty; its `next_offset` is where the answer ends, or the
    end offset. Raises CorruptRecordError behind the records of all batches before the damaged one.
    """
    answer_end = answer.next_fetch_offset
    limit = answer_end if end_offset is None else min(answer_end, end_offset)
    empty = FetchedRecords(
        TopicPartition(answer.topic, answer.partition),
        [],
        limit,
        answer.high_watermark,
        answer.log_start_offset,
        answer.local_log_start_offset,
    )
    if fetch_offset < limit:
        for records, has_more in record_runs(answer.batches, _wanted(answer)):
            kept, last_offset = records, records[-1].offset
            # Almost always nothing has to go, and the list stays as it is.
            if records[0].offset < fetch_offset or last_offset >= limit:
                kept = [record for record in records if fetch_offset <= record.offset < limit]
            if not has_more or last_offset >= limit - 1:
                yield empty._replace(records=kept)
                return
            if kept:
                yield empty._replace(records=kept, next_offset=last_offset + 1)
    yield empty


def _wanted(answer: log_pb2.FetchedPartition) -> Callable[[BatchHeader], bool]:
    if not answer.aborted_transactions:
        return lambda header: not header.is_control
    aborted = AbortedBatches(answer.aborted_transactions)
    return lambda header: not (aborted.has_next(header) or header.is_control)
