"""Converts between messages of the data plane and values of the client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from stratalog.base.errors import InvalidRequestError, LogStoreError
from stratalog.base.filesystem import Buffer
from stratalog.base.types import Durability, TopicPartition
from stratalog.client.errors import RecordDecodingError, refusing_misfits
from stratalog.client.isolation_level import IsolationLevel, IsolationLike, isolation_level
from stratalog.v1 import log_pb2

if TYPE_CHECKING:
    from stratalog.record.native.consumer_records import ConsumerRecord, Decoder
    from stratalog.record.reading.readable_batches import AbortedTransactionLike
    from stratalog.record.record import RecordLike


class AppendAck(NamedTuple):
    """The place of the records of one append."""

    topic: str
    partition: int
    base_offset: int
    """The offset of the first record."""
    last_offset: int
    """The offset of the last record, inclusive."""
    log_start_offset: int
    """The first readable offset of the partition, in any tier."""
    durability: Durability
    """The level that held when the server answered."""
    duplicate: bool
    """The same idempotent producer has appended this before. Nothing was stored now; the offsets are those of
    then."""
    topic_id: str
    leader_epoch: int


class AbortedTransaction(NamedTuple):
    """A transaction whose records readers of committed records leave out."""

    producer_id: int
    first_offset: int
    """The offset of its first record; it may lie below the answer's batches."""
    last_offset: int
    """The offset of its marker, inclusive; it may lie behind them."""


class FetchedPartition(NamedTuple):
    """The batches of one partition, or the failure to read it. `fetched_parts` has the records."""

    topic: str
    partition: int
    batches: bytes
    """Whole record batches. The outer ones may have records outside of [fetch_offset, next_fetch_offset), and
    some batches are not for readers."""
    fetch_offset: int
    """The offset at which the answer begins."""
    next_fetch_offset: int
    """The offset of the next fetch."""
    log_start_offset: int
    """The first readable offset, in any tier."""
    local_log_start_offset: int
    """The first offset on the server's disk."""
    high_watermark: int
    """The end of the visible records, exclusive."""
    last_stable_offset: int
    """The end of the records of decided transactions, exclusive."""
    aborted_transactions: tuple[AbortedTransaction, ...]
    """Those that a reader of committed records leaves out."""
    topic_id: str
    """Empty if there is no such log."""
    leader_epoch: int
    """The leader epoch of the partition; 0 if there is no such log."""
    last_epoch: int
    """The leader epoch before `next_fetch_offset`; -1 if none is known."""
    error: LogStoreError | None
    """The failure of this partition; the others are not affected."""


class OffsetAnswer(NamedTuple):
    """The offset of one place in a partition, or the failure to look it up."""

    topic: str
    partition: int
    offset: int
    """-1 if there is no such record."""
    timestamp_ms: int
    """-1 if the offset is not that of a record."""
    topic_id: str
    """Empty if there is no such log."""
    leader_epoch: int
    """The leader epoch of the partition; 0 if there is no such log."""
    error: LogStoreError | None
    """The failure of this query; the others are not affected."""


class PartitionMetadata(NamedTuple):
    """A partition and its owner."""

    partition: int
    endpoint: str
    """HOST:PORT of the server that owns it; empty if that one serves no clients."""
    leader_epoch: int
    error: LogStoreError | None
    """The reason why its owner cannot serve it."""


class TopicMetadata(NamedTuple):
    """A topic and its partitions, or the reason why there are none."""

    topic: str
    topic_id: str
    """Empty: there is no such topic."""
    partitions: tuple[PartitionMetadata, ...]
    """Sorted by number."""
    max_message_bytes: int
    """The size of the largest batch that the topic takes; -1 if it is unknown."""
    error: LogStoreError | None


class StoreMetadata(NamedTuple):
    """Topics of a store, and the limits of its server."""

    store_id: str
    max_request_bytes: int
    """The size of the largest append request."""
    topics: tuple[TopicMetadata, ...]
    """In the order of the question, or sorted by name."""


class FetchStart(NamedTuple):
    """The place in a partition where a fetch begins."""

    offset: int
    last_epoch: int = -1
    """The leader epoch of the last batch that was read before it; -1 if none was."""
    leader_epoch: int = 0
    """The leader epoch that the partition must have; 0: any."""


class FetchedRecords(NamedTuple):
    """Records of one partition, in order: those of one response, or a part of them of bounded size."""

    topic_partition: TopicPartition
    records: list[ConsumerRecord]
    next_offset: int
    """Offset of the next fetch: behind the last record, or behind a hole that compaction left."""
    last_epoch: int
    """The leader epoch of the last record; -1 without records."""


_DURABILITIES = {
    Durability.OS: log_pb2.DURABILITY_OS,
    Durability.DISK: log_pb2.DURABILITY_DISK,
    Durability.OBJECT: log_pb2.DURABILITY_OBJECT,
}
_ISOLATIONS = {
    IsolationLevel.READ_UNCOMMITTED: log_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED,
    IsolationLevel.READ_COMMITTED: log_pb2.ISOLATION_LEVEL_READ_COMMITTED,
}

DurabilityLike = Durability | Literal["os", "disk", "object"]


def wire_durability(durability: DurabilityLike | None) -> log_pb2.Durability.ValueType:
    """The value on the wire. None: the topic's setting. Raises InvalidRequestError."""
    if durability is None:
        return log_pb2.DURABILITY_UNSPECIFIED
    for member, number in _DURABILITIES.items():
        if durability in (member, member.config_value):
            return number
    raise InvalidRequestError(
        "there is no such durability", durability=durability, allowed="os, disk, object, None"
    )


def wire_isolation(isolation: IsolationLike) -> log_pb2.IsolationLevel.ValueType:
    """The value on the wire. Raises InvalidRequestError."""
    return _ISOLATIONS[isolation_level(isolation)]


def append_ack(topic: str, ack: log_pb2.AppendResponse) -> AppendAck:
    """The value of an acknowledgement."""
    return AppendAck(
        topic=topic,
        partition=ack.partition,
        base_offset=ack.base_offset,
        last_offset=ack.last_offset,
        log_start_offset=ack.log_start_offset,
        durability=Durability(ack.durability),
        duplicate=ack.duplicate,
        topic_id=ack.topic_id,
        leader_epoch=ack.leader_epoch,
    )


def plain_records(records: Iterable[RecordLike]) -> log_pb2.Records:
    """Records in their plain form, for the server to encode. Raises InvalidRequestError."""
    with refusing_misfits():
        return log_pb2.Records(
            records=[
                log_pb2.Record(
                    key=record.key,
                    value=record.value,
                    timestamp_ms=record.timestamp_ms,
                    headers=[log_pb2.Header(key=key, value=value) for key, value in record.headers],
                )
                for record in records
            ]
        )


@refusing_misfits()
def fetch_request(
    starts: Mapping[TopicPartition, FetchStart | log_pb2.Position],
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    partition_max_bytes: int,
    isolation: IsolationLike,
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
        added = request.partitions.add(
            topic=topic, partition=partition, max_bytes=partition_max_bytes, topic_id=topic_id
        )
        if isinstance(start, log_pb2.Position):
            added.start.CopyFrom(start)
            continue
        added.start.offset = start.offset
        added.leader_epoch = start.leader_epoch
        if start.last_epoch >= 0:
            added.last_fetched_epoch = start.last_epoch
    return request


class FetchAnswer(Protocol):
    """The answer for one partition, as a message or as a value."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def batches(self) -> Buffer: ...

    @property
    def next_fetch_offset(self) -> int: ...

    @property
    def aborted_transactions(self) -> Iterable[AbortedTransactionLike]: ...


def fetched_parts(
    answer: FetchAnswer,
    fetch_offset: int,
    end_offset: int | None = None,
    *,
    decode_key: Decoder = None,
    decode_value: Decoder = None,
) -> Iterator[FetchedRecords]:
    """Yield the records of `answer` in [fetch_offset, next_fetch_offset) and below `end_offset`, if given, in
    parts of bounded size, decoded on demand. Markers and records of aborted transactions are left out.

    There is at least one part. Only the last one may be empty; its `next_offset` is the end of the response
    or the end offset. Raises CorruptRecordError, after the records of all batches before the damaged one, and
    RecordDecodingError, after the records before the one for which a decoder failed.
    """
    limit = answer_end(answer, end_offset)
    try:
        for part in _parts(answer, fetch_offset, limit, decode_key, decode_value):
            fetch_offset = part.next_offset
            yield part
        return
    except Exception:  # noqa: BLE001 - a decoder may raise any error, and does not name the record
        pass
    for part in _parts(answer, fetch_offset, limit, None, None):
        yield from _decoded_singly(answer, part, decode_key, decode_value)


def _parts(
    answer: FetchAnswer, fetch_offset: int, limit: int, decode_key: Decoder, decode_value: Decoder
) -> Iterator[FetchedRecords]:
    """Yield the parts of the records in [fetch_offset, limit). Raises CorruptRecordError, and the errors of
    the decoders."""
    # Not above: messages without records need no record format.
    from stratalog.record.reading.readable_batches import readable_batches
    from stratalog.record.reading.record_portions import RecordReading, record_portions

    place = TopicPartition(answer.topic, answer.partition)
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


def _decoded_singly(
    answer: FetchAnswer, part: FetchedRecords, decode_key: Decoder, decode_value: Decoder
) -> Iterator[FetchedRecords]:
    """Yield the part with its records decoded. Raises RecordDecodingError, after the records before it."""
    # Not above: as in `_parts`.
    from stratalog.record.batch import batches

    records: list[ConsumerRecord] = []
    failure: RecordDecodingError | None = None
    for record in part.records:
        try:
            records.append(_decoded(record, decode_key, decode_value))
        except RecordDecodingError as error:
            failure = error
            break
    if failure is None:
        yield part._replace(records=records)
        return
    if records:
        last_offset = records[-1].offset
        # The failed record may have a newer one.
        last_epoch = next(
            one.leader_epoch for _, one in batches(answer.batches) if one.last_offset >= last_offset
        )
        yield part._replace(records=records, next_offset=last_offset + 1, last_epoch=last_epoch)
    raise failure


def _decoded(record: ConsumerRecord, decode_key: Decoder, decode_value: Decoder) -> ConsumerRecord:
    """The record with its key and its value decoded. Raises RecordDecodingError."""
    # Not above: as in `_parts`.
    from stratalog.record.native.consumer_records import ConsumerRecord, decoded_part

    def decoded(origin: str, part: bytes | None, decode: Decoder) -> Any:
        try:
            return decoded_part(part, decode)
        except Exception as error:
            raise RecordDecodingError(
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                origin=origin,
                reason=error,
            ) from error

    return ConsumerRecord(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        decoded("key", record.key, decode_key),
        decoded("value", record.value, decode_value),
        record.headers,
    )


def answer_end(answer: FetchAnswer, end_offset: int | None) -> int:
    """The end of the offsets that the answer has for a reader up to `end_offset`, if given."""
    return answer.next_fetch_offset if end_offset is None else min(answer.next_fetch_offset, end_offset)
