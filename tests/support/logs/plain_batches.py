"""Batches for tests that need some, and batches whose header was changed under a true checksum."""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c

from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import NO_LEADER_EPOCH, encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import ATTRIBUTES_POSITION, HEADER_SIZE, LOG_OVERHEAD, parse_header
from stratalog.record.record import Record

NO_PRODUCER = BatchProducer()


def batch(
    count: int = 1,
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    timestamp_ms: int = 1000,
    value_bytes: int = 20,
    codec: Codec = Codec.NONE,
    producer: BatchProducer = NO_PRODUCER,
) -> bytes:
    """`count` equal records."""
    record = Record(0, timestamp_ms, b"key", b"v" * value_bytes)
    return encode_batch(
        [record] * count, base_offset=base_offset, leader_epoch=leader_epoch, codec=codec, producer=producer
    )


def timed_batch(times_ms: Iterable[int], *, value_bytes: int = 20, codec: Codec = Codec.NONE) -> bytes:
    """A record for each of the times, each with a key of its own."""
    value = b"v" * value_bytes
    records = [Record(0, time_ms, b"k%d" % number, value) for number, time_ms in enumerate(times_ms)]
    return encode_batch(records, codec=codec)


def with_header(data: bytes, **changes: int) -> bytes:
    """The batch with other header fields and a checksum that fits them."""
    return _summed(data, data[HEADER_SIZE:], changes)


def with_section(data: bytes, section: bytes, **changes: int) -> bytes:
    """The batch with other bytes as its records section, and a length and a checksum that fit them."""
    return _summed(data, section, {"batch_length": HEADER_SIZE - LOG_OVERHEAD + len(section), **changes})


def _summed(data: bytes, section: bytes, changes: dict[str, int]) -> bytes:
    header = parse_header(data)._replace(**changes)
    crc = crc32c(section, crc32c(header.pack()[ATTRIBUTES_POSITION:]))
    return header._replace(crc=crc).pack() + section
