"""Converts messages of the data plane to values of the engine and back, and refuses meaningless messages."""

from __future__ import annotations

from stratalog.base.errors import InvalidRequestError
from stratalog.base.filesystem import Buffer
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.log.isolation import Isolation
from stratalog.record.batch_producer import MAX_PRODUCER_EPOCH, MAX_SEQUENCE, BatchProducer
from stratalog.record.builder import NO_PRODUCER, head_of_section
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import HEADER_SIZE
from stratalog.record.plain.plain_records import encode_plain
from stratalog.server.append.pending_append import NO_CONDITIONS, AppendConditions, PendingAppend
from stratalog.server.append.stream_lane import StreamAnswer
from stratalog.v1 import log_pb2

_DURABILITIES = {
    Durability.OS: log_pb2.DURABILITY_OS,
    Durability.DISK: log_pb2.DURABILITY_DISK,
    Durability.OBJECT: log_pb2.DURABILITY_OBJECT,
}
_LEVELS = {level: durability for durability, level in _DURABILITIES.items()}
_ISOLATIONS: dict[int, Isolation] = {
    log_pb2.ISOLATION_LEVEL_UNSPECIFIED: Isolation.HIGH_WATERMARK,
    log_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED: Isolation.HIGH_WATERMARK,
    log_pb2.ISOLATION_LEVEL_READ_COMMITTED: Isolation.TXN_COMMITTED,
}


def durability(level: log_pb2.Durability.ValueType) -> Durability | None:
    """The requested level; None for the topic's. Raises InvalidRequestError."""
    if level == log_pb2.DURABILITY_UNSPECIFIED:
        return None
    found = _LEVELS.get(level)
    if found is None:
        raise InvalidRequestError(
            "the durability level is unknown, use OS, DISK or OBJECT", durability=int(level)
        )
    return found


def isolation(level: log_pb2.IsolationLevel.ValueType) -> Isolation:
    """The isolation of the request. Raises InvalidRequestError."""
    found = _ISOLATIONS.get(level)
    if found is None:
        raise InvalidRequestError(
            "the isolation level is unknown, use READ_UNCOMMITTED or READ_COMMITTED", isolation=int(level)
        )
    return found


def plain_batch(records: Buffer, max_bytes: int, now_ms: int, producer: BatchProducer = NO_PRODUCER) -> bytes:
    """Encode plain records, a message `Records`, into one uncompressed batch of at most `max_bytes`. Raises
    InvalidRequestError, RecordTooLargeError."""
    made = encode_plain(records, now_ms, max_bytes - HEADER_SIZE)
    head = head_of_section(
        made.section,
        codec=Codec.NONE,
        records_count=made.records_count,
        base_timestamp=made.base_timestamp,
        max_timestamp=made.max_timestamp,
        producer=producer,
    )
    return b"".join((head, made.section))


def batch_producer(
    request: log_pb2.AppendRequest | log_pb2.AppendStreamRequest | log_pb2.BatchCopy,
) -> BatchProducer:
    """The producer of the batch of plain records, or of a copied one. Raises InvalidRequestError."""
    if not request.HasField("producer"):
        return NO_PRODUCER
    sequence = request.producer
    for field, value, highest in (
        ("producer_epoch", sequence.producer_epoch, MAX_PRODUCER_EPOCH),
        ("base_sequence", sequence.base_sequence, MAX_SEQUENCE),
    ):
        if not 0 <= value <= highest:
            raise InvalidRequestError(
                "a field of the producer is out of range; correct it",
                field=field,
                value=value,
                allowed=f"0 to {highest}",
            )
    return BatchProducer(sequence.producer_id, sequence.producer_epoch, sequence.base_sequence)


def append_conditions(
    request: log_pb2.AppendRequest | log_pb2.AppendStreamRequest,
) -> AppendConditions:
    """The conditions of the append. Raises InvalidRequestError."""
    has_offset, has_token = request.HasField("expected_offset"), request.HasField("fencing_token")
    if not (has_offset or has_token):
        return NO_CONDITIONS
    expected_offset = request.expected_offset if has_offset else None
    if expected_offset is not None and expected_offset < 0:
        raise InvalidRequestError(
            "an expected offset is not negative; leave it out for any", expected_offset=expected_offset
        )
    fencing_token = request.fencing_token if has_token else None
    return AppendConditions(expected_offset, fencing_token)


def append_response(append: PendingAppend, info: AppendInfo) -> log_pb2.AppendResponse:
    """The acknowledgement of an append that is applied."""
    _, topic_id, partition, leader_epoch = append.identity
    return log_pb2.AppendResponse(
        base_offset=info.base_offset,
        last_offset=info.last_offset,
        log_start_offset=info.log_start_offset,
        durability=_DURABILITIES[append.durability],
        duplicate=info.is_duplicate,
        topic_id=topic_id,
        partition=partition,
        leader_epoch=leader_epoch,
    )


def append_stream_ack(answer: StreamAnswer) -> log_pb2.AppendStreamResponse:
    """The answer to a request of a stream that was applied."""
    append = answer.append
    assert append is not None, "an append has a result or an error"
    ack = append_response(append, append.future.result())
    return log_pb2.AppendStreamResponse(sequence=answer.sequence, ack=ack)
