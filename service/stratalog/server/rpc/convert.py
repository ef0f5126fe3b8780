"""Converts messages of the data plane to values of the engine and back, and refuses meaningless messages."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.errors import InvalidRequestError
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.log.isolation import Isolation
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.append.pending_append import PendingAppend
from stratalog.server.append.stream_lane import StreamAnswer
from stratalog.v1 import log_pb2

_DURABILITIES = {
    Durability.OS: log_pb2.DURABILITY_OS,
    Durability.DISK: log_pb2.DURABILITY_DISK,
    Durability.OBJECT: log_pb2.DURABILITY_OBJECT,
}
_ISOLATIONS: dict[int, Isolation] = {
    log_pb2.ISOLATION_LEVEL_UNSPECIFIED: Isolation.HIGH_WATERMARK,
    log_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED: Isolation.HIGH_WATERMARK,
    log_pb2.ISOLATION_LEVEL_READ_COMMITTED: Isolation.TXN_COMMITTED,
}


def durability(level: log_pb2.Durability.ValueType) -> Durability | None:
    """The requested level; None for the topic's. Raises InvalidRequestError."""
    if level == log_pb2.DURABILITY_UNSPECIFIED:
        return None
    try:
        return Durability(level)
    except ValueError:
        raise InvalidRequestError(
            "the durability level is unknown, use OS, DISK or OBJECT", durability=int(level)
        ) from None


def isolation(level: log_pb2.IsolationLevel.ValueType) -> Isolation:
    """The isolation of the request. Raises InvalidRequestError."""
    found = _ISOLATIONS.get(level)
    if found is None:
        raise InvalidRequestError(
            "the isolation level is unknown, use READ_UNCOMMITTED or READ_COMMITTED", isolation=int(level)
        )
    return found


def plain_records(records: Sequence[log_pb2.Record], now_ms: int) -> bytes:
    """Encode plain records into one uncompressed batch. Raises InvalidRequestError without a record."""
    if not records:
        raise InvalidRequestError("an append of plain records needs at least one record")
    return encode_batch([_record(record, now_ms) for record in records])


def _record(record: log_pb2.Record, now_ms: int) -> Record:
    if record.HasField("timestamp_ms") and record.timestamp_ms < 0:
        raise InvalidRequestError(
            "a timestamp is not negative, leave it out for the server's time",
            timestamp_ms=record.timestamp_ms,
        )
    return Record(
        offset=0,
        timestamp_ms=record.timestamp_ms if record.HasField("timestamp_ms") else now_ms,
        key=record.key if record.HasField("key") else None,
        value=record.value if record.HasField("value") else None,
        headers=tuple(
            (header.key, header.value if header.HasField("value") else None) for header in record.headers
        ),
    )


def append_response(append: PendingAppend, info: AppendInfo) -> log_pb2.AppendResponse:
    """The acknowledgement of an append that is applied."""
    return log_pb2.AppendResponse(
        base_offset=info.base_offset,
        last_offset=info.last_offset,
        log_start_offset=info.log_start_offset,
        durability=_DURABILITIES[append.durability],
        duplicate=info.is_duplicate,
        topic_id=append.identity.topic_id,
        partition=append.identity.partition,
        leader_epoch=append.identity.leader_epoch,
    )


def append_stream_ack(answer: StreamAnswer) -> log_pb2.AppendStreamResponse:
    """The answer to a request of a stream that was applied."""
    append = answer.append
    assert append is not None, "an append has a result or an error"
    ack = append_response(append, append.future.result())
    return log_pb2.AppendStreamResponse(sequence=answer.sequence, ack=ack)
