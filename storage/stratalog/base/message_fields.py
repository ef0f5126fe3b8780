"""The fields of protobuf messages, found and written in place: megabytes of batches stay where they are.

protobuf copies a bytes field when it is set, again when its message is serialised, and twice when it is
read. So messages with batches are walked and put together by hand, and protobuf has all other fields:

    message = { tag varint | tag 8 bytes | tag varint(size) bytes | tag 4 bytes }     in any order

A tag is a varint too: the field's number and, in its lowest three bits, its form. A varint is a number that
is not negative, in groups of seven bits, the lowest ones first.
"""

from __future__ import annotations

from typing import NamedTuple

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FAR_OUTSIDE = -(1 << 70)


class MessageField(NamedTuple):
    """The place of a field in its message."""

    number: int
    is_sized: bool
    """It has bytes, a text or a message."""
    position: int
    """The beginning of its value."""
    end_position: int


def sized_field_head(number: int, size_bytes: int) -> bytes:
    """The bytes before the value of a field that holds so many bytes."""
    return varint(number << 3 | _LENGTH_DELIMITED) + varint(size_bytes)


def varint(number: int) -> bytes:
    """Encode a number that is not negative."""
    assert number >= 0
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def field_at(data: bytes, position: int, end_position: int) -> MessageField | None:
    """The field that begins at `position` of a message up to `end_position`. None if it has no known form or
    runs over the end: protobuf judges the message then."""
    tag, position = _varint(data, position, end_position)
    form = tag & 7
    if form == _LENGTH_DELIMITED:
        size, position = _varint(data, position, end_position)
        end = position + size
    elif form == _VARINT:
        _, end = _varint(data, position, end_position)
    elif form in (_FIXED64, _FIXED32):
        end = position + (8 if form == _FIXED64 else 4)
    else:
        return None
    if position < 0 or end < 0 or end > end_position or tag >> 3 == 0:
        return None
    return MessageField(tag >> 3, form == _LENGTH_DELIMITED, position, end)


def _varint(data: bytes, position: int, end_position: int) -> tuple[int, int]:
    """A number and the position behind it; a position far outside where it does not end."""
    number = shift = 0
    while 0 <= position < end_position and shift < 64:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    return 0, _FAR_OUTSIDE
