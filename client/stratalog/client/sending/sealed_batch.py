"""A sealed batch of a producer: the records of an open batch, or a part of them, ready to be sent.

Only the server knows a topic's limits (`max.message.bytes`, `segment.bytes`, the size in the topic's own
compression), so a batch may turn out to be too large when it is sent. Its halves hold the same records in the
same order.
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

from stratalog.base.errors import LogStoreError
from stratalog.base.filesystem import Buffer
from stratalog.base.types import Durability, TopicPartition
from stratalog.client.sending.batch_receipt import BatchReceipt
from stratalog.record.batch import decode
from stratalog.record.batch_producer import BatchProducer, add_to_sequence
from stratalog.record.builder import MAX_BATCH_LENGTH, NO_PRODUCER, encode_batch, head_of_section
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import HEADER_SIZE, BatchHeader, parse_header
from stratalog.record.native.record_accumulator import OpenBatch


class BatchContents(NamedTuple):
    """The facts about the records of a batch that its header has."""

    record_count: int
    base_timestamp: int
    max_timestamp: int
    codec: Codec


class EncodedBatch(NamedTuple):
    """The bytes of a batch, in order. They are joined in the request that they are sent in."""

    head: bytes
    section: Buffer
    """The records section, compressed."""


class SealedBatch:
    """A batch that is queued or in flight. Guarded by its producer."""

    __slots__ = (
        "_head",
        "contents",
        "first_index",
        "is_in_doubt",
        "producer",
        "receipt",
        "section",
        "size_bytes",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        receipt: BatchReceipt,
        first_index: int,
        contents: BatchContents,
        size_bytes: int,
        section: Buffer | None,
        topic_id: str = "",
    ) -> None:
        """`first_index` is the place of its first record in the receipt, `size_bytes` its size in the
        producer's buffer. `section` is the records section, compressed; None while it is being compressed.
        `topic_id` is the only topic that may take the batch, or empty: its records have their partition by
        the number of partitions of that one.
        """
        self.topic_partition = topic_partition
        self.receipt = receipt
        self.first_index = first_index
        self.contents = contents
        self.size_bytes = size_bytes
        self.section = section
        self.topic_id = topic_id
        self._head: bytes | None = None
        """The bytes before the records section, as they are sent."""
        self.producer: BatchProducer | None = None
        """The producer fields of the batch, once it has been sent or shall be sent with them."""
        self.is_in_doubt = False
        """It may be stored: it was sent, and the connection failed before its answer."""

    @classmethod
    def of(cls, batch: OpenBatch, codec: Codec, section: Buffer | None) -> SealedBatch:
        """The sealed form of an open batch that is complete."""
        contents = BatchContents(batch.record_count, batch.base_timestamp, batch.max_timestamp, codec)
        place = TopicPartition(batch.topic, batch.partition)
        return cls(place, batch.receipt, 0, contents, batch.size_bytes, section, batch.topic_id)

    @property
    def record_count(self) -> int:
        return self.contents.record_count

    @property
    def end_index(self) -> int:
        """The place behind its last record in the receipt."""
        return self.first_index + self.record_count

    @property
    def encoded_bytes(self) -> int:
        """The size of the batch as it is sent."""
        assert self.section is not None
        return HEADER_SIZE + len(self.section)

    def encode(self, producer: BatchProducer) -> EncodedBatch:
        """The batch with these producer fields."""
        assert self.section is not None
        if self._head is None or self.producer != producer:
            self._head = head_of_section(
                self.section,
                codec=self.contents.codec,
                records_count=self.contents.record_count,
                base_timestamp=self.contents.base_timestamp,
                max_timestamp=self.contents.max_timestamp,
                producer=producer,
            )
            self.producer = producer
        return EncodedBatch(self._head, self.section)

    def acknowledge(self, base_offset: int, durability: Durability) -> None:
        """Note that its records are stored."""
        self.receipt.settle(self.first_index, self.end_index, base_offset=base_offset, durability=durability)

    def abandon(self) -> None:
        """Note that its records are given up."""
        self.fail(abandonment(self.is_in_doubt))

    def fail(self, cause: LogStoreError) -> LogStoreError:
        """Note that its records have failed. Returns their error, which says whether they may be stored."""
        error = failure_of(cause, self.is_in_doubt)
        self.receipt.settle(self.first_index, self.end_index, error=error)
        return error

    def halves(self) -> tuple[SealedBatch, SealedBatch]:
        """Two batches with the same records, in order, and with the same sequence numbers if it has any.
        Needs several records."""
        middle = self.record_count // 2
        first, second = halved(b"".join(self.encode(self.producer or NO_PRODUCER)), middle)
        first_size_bytes = self.size_bytes * middle // self.record_count
        return (
            self._part(first, self.first_index, first_size_bytes),
            self._part(second, self.first_index + middle, self.size_bytes - first_size_bytes),
        )

    def _part(self, encoded: bytes, first_index: int, size_bytes: int) -> SealedBatch:
        header = parse_header(encoded)
        contents = BatchContents(
            header.records_count, header.base_timestamp, header.max_timestamp, self.contents.codec
        )
        section = memoryview(encoded)[HEADER_SIZE:]
        part = SealedBatch(
            self.topic_partition, self.receipt, first_index, contents, size_bytes, section, self.topic_id
        )
        part._head = encoded[:HEADER_SIZE]
        part.producer = _producer(header, 0) if header.has_producer_id else None
        part.is_in_doubt = self.is_in_doubt
        return part


def abandonment(is_in_doubt: bool) -> LogStoreError:
    """The cause of the failure of records that are given up. `is_in_doubt`: they may be stored."""
    if is_in_doubt:
        return LogStoreError(
            "the producer was abandoned before the record was acknowledged; it may or may not be stored, so"
            " look for it before you send it again"
        )
    return LogStoreError(
        "the producer was abandoned before the record was sent; it is not stored, so send it again"
    )


def failure_of(cause: LogStoreError, is_in_doubt: bool) -> LogStoreError:
    """The error of records that have failed: the cause with the field `outcome`, "unknown" for records in
    doubt, which may be stored, and "not stored" for others.
    """
    failure = copy(cause)
    failure.fields = {**cause.fields, "outcome": "unknown" if is_in_doubt else "not stored"}
    return failure


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
