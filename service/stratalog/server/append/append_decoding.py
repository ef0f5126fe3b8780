"""Append requests from bytes, with batches and plain records left where they are.

The counterpart of ``fetch_encoding``: protobuf would copy batches into its message and once more out of it,
and would make an object of each plain record. Here the top-level fields of an ``AppendRequest`` or an
``AppendStreamRequest`` are walked by hand; everything but ``batches`` and ``records``, which have the same
numbers in both, goes to protobuf, and these become views of the bytes that the transport delivered. Of the
two, which exclude each other, the last one counts, as in protobuf.

A short request is decoded by protobuf as a whole, because that takes less time than the walk.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from stratalog.base.message_fields import fields_of
from stratalog.v1 import log_pb2

_FIELDS = log_pb2.DESCRIPTOR.message_types_by_name["AppendRequest"].fields_by_name
_BATCHES_NUMBER = _FIELDS["batches"].number
_RECORDS_NUMBER = _FIELDS["records"].number

SHORT_BYTES = 16 << 10
"""The largest request that protobuf decodes as a whole."""

MAX_FIELD_COUNT = 1000
"""The most fields of a longer request, far above what the contract has."""

_Request = TypeVar("_Request", log_pb2.AppendRequest, log_pb2.AppendStreamRequest)


class Decoded(NamedTuple, Generic[_Request]):
    """An append request. At most one of `batches` and `records` is not None."""

    request: _Request
    """Everything but batches and records, which only a short one may have, too."""
    batches: memoryview | None
    records: bytes | memoryview | None
    """The plain records, as the message `Records`. Nothing has looked into it unless the request is short."""
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
    if len(data) <= SHORT_BYTES:
        return _by_protobuf(data, request_class)
    batches: memoryview | None = None
    records: list[memoryview] = []
    rest = bytearray()
    begin, end = 0, len(data)
    view = memoryview(data)
    for number, field in enumerate(fields_of(data, begin, end)):
        if field is None:
            raise DecodeError("a field of the append is malformed")
        if number == MAX_FIELD_COUNT:
            raise DecodeError("the append has too many fields")
        if field.number == _BATCHES_NUMBER and field.is_sized:
            batches, records = view[field.position : field.end_position], []
        elif field.number == _RECORDS_NUMBER and field.is_sized:
            # Messages of one field are joined.
            batches, records = None, [*records, view[field.position : field.end_position]]
        else:
            rest += view[begin : field.end_position]
        begin = field.end_position
    request = request_class.FromString(bytes(rest))
    joined = records[0] if len(records) == 1 else b"".join(records) if records else None
    return Decoded(request, batches, joined, end)


def _by_protobuf(data: bytes, request_class: type[_Request]) -> Decoded[_Request]:
    request = request_class.FromString(data)
    payload = request.WhichOneof("payload")
    if payload == "batches":
        return Decoded(request, memoryview(request.batches), None, len(data))
    records = request.records.SerializeToString() if payload == "records" else None
    return Decoded(request, None, records, len(data))
