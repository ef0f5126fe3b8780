"""The place of a message among those of its file, which stands in front of Protobuf payloads that Confluent's
serializers made: behind the number of the schema, in front of the message.

    count   index ...   message

All are zigzag varints. The indexes go from the outermost message to the one inside; those of map entries are
not counted, because a `.proto` file does not name them. The first message of a file is a single zero.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor

_MAX_DEPTH = 100
_VARINT_BYTES = 5

MessageIndex = tuple[int, ...]


def index_of(message: Descriptor) -> MessageIndex:
    """The place of a message in its file."""
    outer = message.containing_type
    siblings = message.file.message_types_by_name.values() if outer is None else outer.nested_types
    names = [one.full_name for one in siblings if not one.GetOptions().map_entry]
    place = names.index(message.full_name)
    return (place,) if outer is None else (*index_of(outer), place)


def split_index(payload: bytes) -> tuple[MessageIndex, bytes]:
    """The index in front of a message, and the message. Raises ValueError if there is none."""
    count, position = _varint(payload, 0)
    if count == 0:
        return (0,), payload[position:]
    if not 0 < count <= _MAX_DEPTH:
        raise ValueError("the value lacks the index of its message")
    found: list[int] = []
    for _ in range(count):
        place, position = _varint(payload, position)
        found.append(place)
    return tuple(found), payload[position:]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The number there, and the position behind it."""
    bits = 0
    for place, byte in enumerate(data[position : position + _VARINT_BYTES]):
        bits |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (bits >> 1) ^ -(bits & 1), position + place + 1
    raise ValueError("the value lacks the index of its message")
