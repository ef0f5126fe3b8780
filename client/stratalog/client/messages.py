"""Converts between messages of the data plane and values of the client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from stratalog.base.types import Durability, TopicPartition
from stratalog.client.errors import refusing_misfits
from stratalog.client.isolation_level import IsolationLevel
from stratalog.v1 import log_pb2

if TYPE_CHECKING:
    from stratalog.record.record import Record


class FetchedRecords(NamedTuple):
    """Records of one partition, in order: those of one response, or a part of them of bounded size."""

    topic_partition: TopicPartition
    records: list[Record]
    next_offset: int
    """Offset of the next fetch: behind the last record, or behind a hole that compaction left."""
    high_watermark: int
    log_start_offset: int
    local_log_start_offset: int


_DURABILITIES: dict[Durability | None, log_pb2.Durability.ValueType] = {
    None: log_pb2.DURABILITY_UNSPECIFIED,
    Durability.OS: log_pb2.DURABILITY_OS,
    Durability.DISK: log_pb2.DURABILITY_DISK,
    Durability.OBJECT: log_pb2.DURABILITY_OBJECT,
}
_ISOLATIONS: dict[IsolationLevel, log_pb2.IsolationLevel.ValueType] = {
    IsolationLevel.READ_UNCOMMITTED: log_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED,
    IsolationLevel.READ_COMMITTED: log_pb2.ISOLATION_LEVEL_READ_COMMITTED,
}


def wire_durability(durability: Durability | None) -> log_pb2.Durability.ValueType:
    """The value on the wire. None: the topic's setting."""
    return _DURABILITIES[durability]


def wire_isolation(isolation: IsolationLevel) -> log_pb2.IsolationLevel.ValueType:
    """The value on the wire."""
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
    """A fetch request. A limit of 0 means the server's default. Raises InvalidRequestError."""
    partitions = [
        log_pb2.FetchPartition(
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            start=log_pb2.Position(offset=offset),
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


def fetched_parts(
    answer: log_pb2.FetchedPartition, fetch_offset: int, end_offset: int | None = None
) -> Iterator[FetchedRecords]:
    """The records of `answer` in [fetch_offset, next_fetch_offset) and below `end_offset`, if given, in parts
    of bounded size, decoded on demand. Markers and records of aborted transactions are left out.

    There is at least one part; the last may be empty, and its `next_offset` is the end of the response or the
    end offset. Raises CorruptRecordError, after the records of all batches before the damaged one.
    """
    # Not above: messages without records need no record format.
    from stratalog.record.readable_batches import readable_batches
    from stratalog.record.record_portions import record_portions

    answer_end = answer.next_fetch_offset
    limit = answer_end if end_offset is None else min(answer_end, end_offset)
    empty = FetchedRecords(
        topic_partition=TopicPartition(answer.topic, answer.partition),
        records=[],
        next_offset=limit,
        high_watermark=answer.high_watermark,
        log_start_offset=answer.log_start_offset,
        local_log_start_offset=answer.local_log_start_offset,
    )
    if fetch_offset < limit:
        for records, has_more in record_portions(
            answer.batches, readable_batches(answer.aborted_transactions)
        ):
            kept, last_offset = records, records[-1].offset
            # Almost always all records are wanted, and the list is not copied.
            if records[0].offset < fetch_offset or last_offset >= limit:
                kept = [record for record in records if fetch_offset <= record.offset < limit]
            if not has_more or last_offset >= limit - 1:
                yield empty._replace(records=kept)
                return
            if kept:
                yield empty._replace(records=kept, next_offset=last_offset + 1)
    yield empty
