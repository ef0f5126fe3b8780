"""A sealed batch of a producer: its records, the futures of waiting callers, and its halves.

Only the server knows a topic's limits (`max.message.bytes`, `segment.bytes`, the size in the topic's own
compression), so a batch may turn out to be too large when it is sent. Its halves hold the same records in the
same order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stratalog.base.errors import LogStoreError
from stratalog.base.types import Durability, TopicPartition
from stratalog.record.batch import decode
from stratalog.record.batch_producer import BatchProducer, add_to_sequence
from stratalog.record.builder import MAX_BATCH_LENGTH, NO_PRODUCER, encode_batch
from stratalog.record.header import BatchHeader, parse_header


class Acknowledged(NamedTuple):
    """The place of a stored record."""

    topic_partition: TopicPartition
    offset: int
    durability: Durability


@dataclass(slots=True, eq=False)
class SealedBatch:
    """A batch that is queued or in flight, with the futures of its records. Guarded by its producer."""

    topic_partition: TopicPartition
    batch: bytes
    tags: Sequence[int]
    """The tag of each record."""
    futures: Sequence[tuple[int, asyncio.Future[Acknowledged]]]
    """Futures of awaited records, each with the record's place in the batch."""
    size_bytes: int
    """Its size in the producer's buffer."""

    @property
    def record_count(self) -> int:
        return len(self.tags)

    def fail(self, cause: LogStoreError) -> None:
        """Fail the futures of its records."""
        for _, future in self.futures:
            if not future.done():
                future.set_exception(cause)

    def halves(self) -> tuple[SealedBatch, SealedBatch]:
        """Two batches with the same records, in order. They take over the futures. Needs several records."""
        middle = self.record_count // 2
        first, second = halved(self.batch, middle)
        first_size_bytes = self.size_bytes * middle // self.record_count
        return (
            SealedBatch(
                self.topic_partition,
                first,
                self.tags[:middle],
                [(place, future) for place, future in self.futures if place < middle],
                first_size_bytes,
            ),
            SealedBatch(
                self.topic_partition,
                second,
                self.tags[middle:],
                [(place - middle, future) for place, future in self.futures if place >= middle],
                self.size_bytes - first_size_bytes,
            ),
        )


def halved(batch: bytes, middle: int) -> tuple[bytes, bytes]:
    """Divide a batch that was encoded here: the records before place `middle`, and the others. The sequence
    of an idempotent producer continues from one to the other.
    """
    header = parse_header(batch)
    records = decode(batch, max_bytes=MAX_BATCH_LENGTH)
    assert 0 < middle < len(records)
    first = encode_batch(records[:middle], codec=header.codec, producer=_producer(header, 0))
    second = encode_batch(records[middle:], codec=header.codec, producer=_producer(header, middle))
    return first, second


def _producer(header: BatchHeader, place: int) -> BatchProducer:
    """The producer fields of the batch for its records from `place` on."""
    if not header.has_producer_id:
        return NO_PRODUCER
    sequence = add_to_sequence(header.base_sequence, place)
    return BatchProducer(header.producer_id, header.producer_epoch, sequence, header.is_transactional)
