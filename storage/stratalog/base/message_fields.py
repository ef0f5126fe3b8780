"""The fields of protobuf messages, found and written in place: megabytes of batches stay where they are.

protobuf copies a bytes field when it is set, again when its message is serialised, and twice when it is
read. So messages with batches are walked and put together by hand, and protobuf has all other fields:

    message = { tag varint | tag 8 bytes | tag varint(size) bytes | tag 4 bytes }     in any order

A tag is a varint too: the field's number and, in its lowest three bits, its form. A varint is a number that
is not negative, in groups of seven bits, the lowest ones first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_MAX_SHORT_BYTES, _MAX_BYTES = 5, 10
"""The most bytes of a tag or a size, and of another number."""
_MAX_NUMBER = (1 << 29) - 1
_FAR_OUTSIDE = -(1 << 70)


class MessageField(NamedTuple):
    """The place of a field in its message."""

    number: int
    form: int
    position: int
    """The beginning of its value."""
    end_position: int

    @property
    def is_sized(self) -> bool:
        """It has bytes, a text or a message."""
        return self.form == _LENGTH_DELIMITED

    @property
    def is_varint(self) -> bool:
        """It has a number."""
        return self.form == _VARINT


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
    """The field that begins at `position` of a message up to `end_position`. None if it runs over the end or
    has another form than those above: a group, which protobuf's third version has no more."""
    tag, position = _varint(data, position, end_position, _MAX_SHORT_BYTES)
    form = tag & 7
    if form == _LENGTH_DELIMITED:
        size, position = _varint(data, position, end_position, _MAX_SHORT_BYTES)
        end = position + size
    elif form == _VARINT:
        _, end = _varint(data, position, end_position, _MAX_BYTES)
    elif form in (_FIXED64, _FIXED32):
        end = position + (8 if form == _FIXED64 else 4)
    else:
        return None
    if position < 0 or end < 0 or end > end_position or not 0 < tag >> 3 <= _MAX_NUMBER:
        return None
    return MessageField(tag >> 3, form, position, end)


def fields_of(data: bytes, position: int, end_position: int) -> Iterator[MessageField | None]:
    """The fields of a message from `position` up to `end_position`, in their order. The last one is None if
    it is malformed, see `field_at`."""
    while position < end_position:
        field = field_at(data, position, end_position)
        yield field
        if field is None:
            return
        position = field.end_position


def has_more_fields(data: bytes, most: int) -> bool | None:
    """Whether a message has more than `most` fields; looks at no more of them. None if one of these is
    malformed."""
    position, end = 0, len(data)
    for _ in range(most):
        if position >= end:
            return False
        # Most fields have a tag and a size of one byte each.
        if data[position] & 0x87 == _LENGTH_DELIMITED and position + 1 < end and data[position + 1] < 0x80:
            position += 2 + data[position + 1]
            continue
        field = field_at(data, position, end)
        if field is None:
            return None
        position = field.end_position
    return position < end if position <= end else None


def varint_at(data: bytes, field: MessageField) -> int:
    """The number of a field that has one, unsigned, of 64 bits."""
    assert field.is_varint
    number, _ = _varint(data, field.position, field.end_position, _MAX_BYTES)
    return number


def _varint(data: bytes, position: int, end_position: int, max_bytes: int) -> tuple[int, int]:
    """A number and the position behind it; a position far outside where it does not end or does not fit."""
    number = shift = 0
    while 0 <= position < end_position and shift < 7 * max_bytes:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number, position) if number >> 64 == 0 else (0, _FAR_OUTSIDE)
        shift += 7
    return 0, _FAR_OUTSIDE
