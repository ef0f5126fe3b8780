"""Rules for the batches that clients send, besides soundness: one error for each rule.

The log's own batches (markers, compacted batches, imports) break most of these rules rightly.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.errors import (
    InvalidRecordError,
    InvalidRequestError,
    RecordTooLargeError,
)
from stratalog.base.filesystem import Buffer
from stratalog.log.log_config import LogConfig
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    NO_PRODUCER_ID,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
)
from stratalog.record.record_search import first_record
from stratalog.record.records_summary import RecordsSummary

# Attributes that no client may set, and the message of the error.
_BITS_OF_THE_LOG = (
    (CONTROL_BIT, "control batches are written by the log itself; send records only"),
    (TIMESTAMP_TYPE_BIT, "only the log sets append times; send batches with create time"),
    (DELETE_HORIZON_BIT, "only compaction sets delete horizons; send batches without one"),
)


def require_one_producer_batch(headers: Sequence[BatchHeader]) -> None:
    """Raise InvalidRequestError if a batch with a producer id comes with others: it may be a duplicate, and
    then it has its own answer.
    """
    if len(headers) > 1 and any(header.has_producer_id for header in headers):
        raise InvalidRequestError(
            "an idempotent or transactional producer sends one batch at once for a partition",
            batch_count=len(headers),
        )


def require_header_of_producer(header: BatchHeader, config: LogConfig, batch_index: int) -> None:
    """Check the fields of a batch's header. `batch_index`: the place of the batch in the request.

    Raises RecordTooLargeError, InvalidRequestError.
    """
    require_size(header, config, batch_index)
    for bit, rule in _BITS_OF_THE_LOG:
        if header.attributes & bit:
            raise InvalidRequestError(
                rule, batch_index=batch_index, field="attributes", value=header.attributes
            )
    _require_producer_fields(header, batch_index)


def _require_producer_fields(header: BatchHeader, batch_index: int) -> None:
    if header.producer_id < NO_PRODUCER_ID or (header.is_transactional and not header.has_producer_id):
        raise InvalidRequestError(
            "the batch needs a producer id of at least 0, or -1 and no transaction",
            batch_index=batch_index,
            field="producer_id",
            value=header.producer_id,
        )
    for field, value in (
        ("producer_epoch", header.producer_epoch),
        ("base_sequence", header.base_sequence),
    ):
        if header.has_producer_id and value < 0:
            raise InvalidRequestError(
                "a batch with a producer id needs an epoch and a sequence number of at least 0",
                batch_index=batch_index,
                producer_id=header.producer_id,
                field=field,
                value=value,
            )


def require_size(
    header: BatchHeader, config: LogConfig, batch_index: int, *, sent_in: Codec | None = None
) -> None:
    """Raise RecordTooLargeError for a batch over the topic's limit. `sent_in`: the codec in which the client
    sent the batch, if the log has compressed it anew."""
    if header.size_in_bytes <= config.max_message_bytes:
        return
    if sent_in is None:
        raise RecordTooLargeError(
            "a batch is larger than max.message.bytes; send smaller batches or raise the topic's limit",
            batch_index=batch_index,
            size_bytes=header.size_in_bytes,
            max_bytes=config.max_message_bytes,
        )
    raise RecordTooLargeError(
        "a batch is larger than max.message.bytes in the topic's compression.type; send smaller batches or"
        " change the topic",
        batch_index=batch_index,
        size_bytes=header.size_in_bytes,
        max_bytes=config.max_message_bytes,
        sent_in=sent_in.name,
        codec=header.codec.name,
    )


def require_every_offset(header: BatchHeader, summary: RecordsSummary, batch_index: int) -> None:
    """Raise InvalidRecordError for a batch with holes: only compaction makes them."""
    if not summary.is_dense:
        raise InvalidRecordError(
            "a producer's batch lacks a record for some of its offsets; build the batch anew",
            batch_index=batch_index,
            records_count=header.records_count,
            last_offset_delta=header.last_offset_delta,
        )


def require_keys(payload: Buffer, header: BatchHeader, summary: RecordsSummary, batch_index: int) -> None:
    """Raise InvalidRequestError with the index of the first record without a key."""
    if summary.null_key_count == 0:
        return
    record = first_record(
        payload,
        header.records_count,
        header.base_timestamp,
        may_match=lambda part: part.null_key_count > 0,
        matches=lambda record: record.key is None,
    )
    assert record is not None
    raise InvalidRequestError(
        "the topic is compacted, so every record needs a key; add a key, or use a topic that is not"
        " compacted",
        batch_index=batch_index,
        record_index=record.offset,
        null_key_count=summary.null_key_count,
    )
