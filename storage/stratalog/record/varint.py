"""Zigzag variable-length integers, the number format of records: seven bits a byte, least significant first.

A signed number n is written as the unsigned (n << 1) ^ (n >> 63). 32-bit fields take one to five bytes,
64-bit fields one to ten; more bytes, or bits beyond the width, are corruption. Forms that are longer than
needed are accepted, as Kafka does.
"""

from __future__ import annotations

from stratalog.base.errors import CorruptRecordError

MAX_VARINT_BYTES = 5
MAX_VARLONG_BYTES = 10


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Read the 32-bit number at `position`; returns it and the position after it. Raises CorruptRecordError
    if it goes beyond `end` or is malformed."""
    return _read(data, position, end, 32)


def read_varlong(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Read the 64-bit number at `position`; returns it and the position after it. Raises CorruptRecordError
    if it goes beyond `end` or is malformed."""
    return _read(data, position, end, 64)


def append_varint(target: bytearray, number: int) -> None:
    """Write a signed number of up to 64 bits in its shortest form."""
    assert -(2**63) <= number < 2**63
    rest = (number << 1) ^ (number >> 63)
    while rest > 0x7F:
        target.append(rest & 0x7F | 0x80)
        rest >>= 7
    target.append(rest)


def varint_size(number: int) -> int:
    """The size of the shortest form of a signed number of up to 64 bits."""
    return max(1, (((number << 1) ^ (number >> 63)).bit_length() + 6) // 7)


def _read(data: bytes, position: int, end: int, bits: int) -> tuple[int, int]:
    start = position
    number = 0
    shift = 0
    while position < end:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> bits:
                break
            return (number >> 1) ^ -(number & 1), position
        shift += 7
        if shift >= bits:
            break
    raise CorruptRecordError(
        "a variable-length number is cut short or too long; the record's bytes were changed",
        record_position=start,
    )
