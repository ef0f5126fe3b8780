"""Append requests from bytes, with the record batches left where they are.

The counterpart of ``fetch_encoding``: protobuf would copy the batches into its message and once more out of
it. Here the top-level fields of an ``AppendRequest`` or an ``AppendStreamRequest`` are walked by hand;
everything but ``batches``, which has the same number in both, goes to protobuf, which judges it, and
``batches`` becomes a view of the bytes that the transport delivered.

    AppendRequest = { tag varint | tag 8 bytes | tag varint(size) bytes | tag 4 bytes }     any order

What is not of that form is left to protobuf as a whole, so malformed requests fail as they always do.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeAlias, TypeVar

from stratalog.v1 import log_pb2

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIELDS = log_pb2.DESCRIPTOR.message_types_by_name["AppendRequest"].fields_by_name
_BATCHES_NUMBER = _FIELDS["batches"].number

_Request = TypeVar("_Request", log_pb2.AppendRequest, log_pb2.AppendStreamRequest)


class Decoded(NamedTuple, Generic[_Request]):
    """An append request; `batches` is None if it holds plain records or nothing."""

    request: _Request
    """Everything but the batches."""
    batches: memoryview | None
    size_bytes: int
    """The size of the whole message."""


DecodedAppend: TypeAlias = Decoded[log_pb2.AppendRequest]
DecodedStreamAppend: TypeAlias = Decoded[log_pb2.AppendStreamRequest]


def decode_append_request(data: bytes) -> DecodedAppend:
    """Decode an append request. Raises protobuf's DecodeError if `data` is no `AppendRequest`."""
    return _decode(data, log_pb2.AppendRequest)


def decode_stream_request(data: bytes) -> DecodedStreamAppend:
    """Decode a request of a stream. Raises protobuf's DecodeError if `data` is no `AppendStreamRequest`."""
    return _decode(data, log_pb2.AppendStreamRequest)


def _decode(data: bytes, request_class: type[_Request]) -> Decoded[_Request]:
    batches: memoryview | None = None
    rest = bytearray()
    position, end = 0, len(data)
    view = memoryview(data)
    while position < end:
        field = _field(data, position)
        if field is None:
            return _by_protobuf(data, request_class)
        number, value_position, next_position = field
        if number == _BATCHES_NUMBER and data[position] & 7 == _LENGTH_DELIMITED:
            batches = view[value_position:next_position]
        else:
            rest += view[position:next_position]
        position = next_position
    request = request_class.FromString(bytes(rest))
    if batches is not None and request.HasField("records"):
        # Of the members of a oneof the last one counts, which only protobuf can tell.
        return _by_protobuf(data, request_class)
    return Decoded(request, batches, end)


def _by_protobuf(data: bytes, request_class: type[_Request]) -> Decoded[_Request]:
    request = request_class.FromString(data)
    batches = memoryview(request.batches) if request.WhichOneof("payload") == "batches" else None
    return Decoded(request, batches, len(data))


def _field(data: bytes, position: int) -> tuple[int, int, int] | None:
    """Number, position of the value, position behind it; None if it has no known form or runs over."""
    tag, position = _varint(data, position)
    wire_type = tag & 7
    if wire_type == _LENGTH_DELIMITED:
        size, position = _varint(data, position)
        value_position, next_position = position, position + size
    elif wire_type == _VARINT:
        value_position = position
        _, next_position = _varint(data, position)
    elif wire_type in (_FIXED64, _FIXED32):
        value_position, next_position = position, position + (8 if wire_type == _FIXED64 else 4)
    else:
        return None
    if position < 0 or next_position < 0 or next_position > len(data) or tag >> 3 == 0:
        return None
    return tag >> 3, value_position, next_position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A base-128 number and the position behind it; a position far outside where it does not end."""
    number = shift = 0
    while 0 <= position < len(data) and shift < 64:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    return 0, -(1 << 70)
