"""Batches of producers, as headers only: what producer state looks at."""

from __future__ import annotations

from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import (
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
)

_EMPTY_BATCH_LENGTH = HEADER_SIZE - LOG_OVERHEAD


def data_batch(
    base_offset: int,
    producer_id: int = NO_PRODUCER_ID,
    epoch: int = NO_PRODUCER_EPOCH,
    sequence: int = NO_SEQUENCE,
    *,
    count: int = 1,
    is_transactional: bool = False,
    timestamp_ms: int = 0,
) -> ProducerBatch:
    """`count` records from `base_offset` and `sequence` on."""
    return ProducerBatch(
        BatchHeader(
            base_offset=base_offset,
            batch_length=_EMPTY_BATCH_LENGTH,
            leader_epoch=0,
            magic=MAGIC,
            crc=0,
            attributes=TRANSACTIONAL_BIT if is_transactional else 0,
            last_offset_delta=count - 1,
            base_timestamp=timestamp_ms,
            max_timestamp=timestamp_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            records_count=count,
        )
    )


def marker_batch(
    base_offset: int,
    producer_id: int,
    epoch: int,
    control_type: ControlType,
    *,
    coordinator_epoch: int = 0,
    timestamp_ms: int = 0,
) -> ProducerBatch:
    """The end of the producer's transaction."""
    data = data_batch(base_offset, producer_id, epoch, is_transactional=True, timestamp_ms=timestamp_ms)
    header = data.header._replace(attributes=TRANSACTIONAL_BIT | CONTROL_BIT)
    return ProducerBatch(header, EndTransactionMarker(control_type, coordinator_epoch))
