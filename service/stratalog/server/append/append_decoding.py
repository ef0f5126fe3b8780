"""Append requests from bytes, with the record batches left where they are.

The counterpart of ``fetch_encoding``: protobuf would copy the batches into its message and once more out of
it. Here the top-level fields of an ``AppendRequest`` or an ``AppendStreamRequest`` are walked by hand;
everything but ``batches``, which has the same number in both, goes to protobuf, which judges it, and
``batches`` becomes a view of the bytes that the transport delivered.

What has another form than `message_fields` knows is left to protobuf as a whole, so malformed requests fail
as they always do.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeAlias, TypeVar

from stratalog.base.message_fields import field_at
from stratalog.v1 import log_pb2

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
        field = field_at(data, position, end)
        if field is None:
            return _by_protobuf(data, request_class)
        if field.number == _BATCHES_NUMBER and field.is_sized:
            batches = view[field.position : field.end_position]
        else:
            rest += view[position : field.end_position]
        position = field.end_position
    request = request_class.FromString(bytes(rest))
    if batches is not None and request.HasField("records"):
        # Of the members of a oneof the last one counts, which only protobuf can tell.
        return _by_protobuf(data, request_class)
    return Decoded(request, batches, end)


def _by_protobuf(data: bytes, request_class: type[_Request]) -> Decoded[_Request]:
    request = request_class.FromString(data)
    batches = memoryview(request.batches) if request.WhichOneof("payload") == "batches" else None
    return Decoded(request, batches, len(data))
