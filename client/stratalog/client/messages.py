"""Converts between messages of the data plane and values of the client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from stratalog.base.types import Durability, TopicPartition
from stratalog.client.errors import refusing_misfits
from stratalog.client.isolation_level import IsolationLevel
from stratalog.v1 import log_pb2

if TYPE_CHECKING:
    from stratalog.record.native.consumer_records import ConsumerRecord, Decoder


class FetchStart(NamedTuple):
    """The place in a partition where a fetch begins."""

    offset: int
    last_epoch: int = -1
    """The leader epoch of the last batch that was read before it; -1 if none was."""


class FetchedRecords(NamedTuple):
    """Records of one partition, in order: those of one response, or a part of them of bounded size."""

    topic_partition: TopicPartition
    records: list[ConsumerRecord]
    next_offset: int
    """Offset of the next fetch: behind the last record, or behind a hole that compaction left."""
    last_epoch: int
    """The leader epoch of the last record; -1 without records."""


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
    starts: Mapping[TopicPartition, FetchStart | int],
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    partition_max_bytes: int,
    isolation: IsolationLevel,
    topic_id: str = "",
) -> log_pb2.FetchRequest:
    """A fetch request. A limit of 0 means the server's default; an empty topic id any topic of the name.
    Raises InvalidRequestError."""
    request = log_pb2.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation=wire_isolation(isolation),
    )
    for (topic, partition), start in starts.items():
        offset, last_epoch = start if isinstance(start, FetchStart) else (start, -1)
        request.partitions.add(
            topic=topic,
            partition=partition,
            start=log_pb2.Position(offset=offset),
            max_bytes=partition_max_bytes,
            topic_id=topic_id,
            last_fetched_epoch=last_epoch if last_epoch >= 0 else None,
        )
    return request


def fetched_parts(
    answer: log_pb2.FetchedPartition,
    fetch_offset: int,
    end_offset: int | None = None,
    *,
    decode_key: Decoder = None,
    decode_value: Decoder = None,
) -> Iterator[FetchedRecords]:
    """The records of `answer` in [fetch_offset, next_fetch_offset) and below `end_offset`, if given, in parts
    of bounded size, decoded on demand. Markers and records of aborted transactions are left out.

    There is at least one part. Only the last one may be empty; its `next_offset` is the end of the response
    or the end offset. Raises CorruptRecordError, after the records of all batches before the damaged one.
    """
    # Not above: messages without records need no record format.
    from stratalog.record.reading.readable_batches import readable_batches
    from stratalog.record.reading.record_portions import RecordReading, record_portions

    place = TopicPartition(answer.topic, answer.partition)
    limit = answer_end(answer, end_offset)
    if fetch_offset < limit:
        reading = RecordReading(*place, fetch_offset, limit, decode_key, decode_value)
        is_readable = readable_batches(answer.aborted_transactions)
        for records, last_epoch, has_more in record_portions(answer.batches, reading, is_readable):
            last_offset = records[-1].offset
            if not has_more or last_offset >= limit - 1:
                yield FetchedRecords(place, records, limit, last_epoch)
                return
            yield FetchedRecords(place, records, last_offset + 1, last_epoch)
    yield FetchedRecords(place, [], limit, -1)


def answer_end(answer: log_pb2.FetchedPartition, end_offset: int | None) -> int:
    """The end of the offsets that the answer has for a reader up to `end_offset`, if given."""
    return answer.next_fetch_offset if end_offset is None else min(answer.next_fetch_offset, end_offset)
