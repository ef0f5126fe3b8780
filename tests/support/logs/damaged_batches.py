"""Rows of batches with changed bytes, for code that must be safe on any bytes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from crc32c import crc32c

from stratalog.base.errors import CorruptRecordError
from stratalog.record.header import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    LAST_OFFSET_DELTA_POSITION,
    BatchHeader,
    parse_header,
)


def damaged(random: Random, data: bytes) -> bytes:
    """A few bytes changed, the end cut off, or random bytes."""
    changed = bytearray(data)
    for _ in range(random.choice((0, 1, 1, 3))):
        if changed:
            place = random.randrange(len(changed))
            changed[place] = random.choice(
                (0, 1, 0x7F, 0x80, 0xFF, changed[place] ^ 1 << random.randrange(8))
            )
    if random.random() < 0.15:
        del changed[random.randrange(len(changed) + 1) :]
    return bytes(changed) if random.random() < 0.96 else random.randbytes(random.randrange(200))


def sum_again(data: bytes) -> bytes:
    """The same batches, with checksums that are true."""
    summed = bytearray(data)
    for position, header in sound_headers(data):
        end = position + header.size_in_bytes
        crc = crc32c(memoryview(data)[position + ATTRIBUTES_POSITION : end])
        summed[position + CRC_POSITION : position + ATTRIBUTES_POSITION] = crc.to_bytes(4, "big")
    return bytes(summed)


def with_attributes(batch: bytes, bits: int) -> bytes:
    """A batch with more attribute bits set, and the checksum that belongs to it."""
    changed = bytearray(batch)
    attributes = int.from_bytes(changed[ATTRIBUTES_POSITION:LAST_OFFSET_DELTA_POSITION], "big") | bits
    changed[ATTRIBUTES_POSITION:LAST_OFFSET_DELTA_POSITION] = attributes.to_bytes(2, "big")
    return sum_again(bytes(changed))


def sound_headers(data: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """Those of the whole batches that the data begin with."""
    position = 0
    while True:
        try:
            header = parse_header(data, position)
        except CorruptRecordError:
            return
        if header.size_in_bytes > len(data) - position:
            return
        yield position, header
        position += header.size_in_bytes
