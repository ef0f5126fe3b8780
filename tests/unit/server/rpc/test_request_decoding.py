"""A request without records is refused if it is too large, or has more elements than the contract needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import InvalidRequestError
from stratalog.base.message_fields import has_more_fields, sized_field_head, varint
from stratalog.server.rpc.call_guard import (
    MAX_DECODED_BYTES,
    MAX_ELEMENT_COUNT,
    TOO_LARGE,
    TOO_MANY,
    UNDECODABLE,
    decoder,
    require_decoded,
)
from stratalog.server.rpc.method_handlers import METHODS_WITH_RECORDS
from stratalog.v1 import admin_pb2, log_pb2, operation_pb2, tier_pb2

REQUESTS = {
    method.input_type.name: method.input_type
    for file in (log_pb2, admin_pb2, operation_pb2, tier_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.name not in METHODS_WITH_RECORDS
}
LISTS = [(request, field) for request in REQUESTS.values() for field in request.fields if field.is_repeated]
FIELDS = st.one_of(
    st.tuples(st.integers(1, 5000), st.binary(max_size=200)).map(
        lambda one: sized_field_head(one[0], len(one[1])) + one[1]
    ),
    st.tuples(st.integers(1, 5000), st.integers(0, (1 << 64) - 1)).map(
        lambda one: varint(one[0] << 3) + varint(one[1])
    ),
    st.integers(1, 5000).map(lambda number: varint(number << 3 | 1) + bytes(8)),
)


def elements(field: FieldDescriptor, count: int) -> bytes:
    """A list of the smallest elements."""
    if field.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING):
        return sized_field_head(field.number, 0) * count
    return sized_field_head(field.number, count) + b"\x01" * count


@pytest.mark.parametrize(
    ("request_type", "field"), LISTS, ids=[f"{one.name}.{field.name}" for one, field in LISTS]
)
def test_a_list_of_a_request_has_a_bound(request_type: Descriptor, field: FieldDescriptor) -> None:
    request_class = GetMessageClass(request_type)
    decode = decoder(request_class.FromString, MAX_DECODED_BYTES)
    assert isinstance(decode(elements(field, MAX_ELEMENT_COUNT)), request_class)
    refused = decode(elements(field, MAX_ELEMENT_COUNT + 1))
    assert refused is TOO_MANY
    with pytest.raises(InvalidRequestError) as caught:
        require_decoded(refused)
    assert caught.value.fields["allowed"] == MAX_ELEMENT_COUNT


def test_a_group_does_not_hide_a_list() -> None:
    """protobuf takes it for an unknown field."""
    message = b"\xfb\x07\xfc\x07" + b"\x0a\x00" * (MAX_ELEMENT_COUNT + 1)
    assert log_pb2.FetchRequest.FromString(message).partitions
    assert decoder(log_pb2.FetchRequest.FromString, MAX_DECODED_BYTES)(message) is UNDECODABLE


def test_no_message_inside_a_request_has_a_list() -> None:
    """Those would not be counted."""
    assert [one for request in REQUESTS.values() for one in inner_lists(request)] == []


def inner_lists(request: Descriptor) -> Iterator[str]:
    """The lists of the messages in a request, at any depth."""
    inner = [field.message_type for field in request.fields if field.message_type is not None]
    while inner:
        message = inner.pop()
        yield from (f"{message.full_name}.{field.name}" for field in message.fields if field.is_repeated)
        inner += [field.message_type for field in message.fields if field.message_type is not None]


def test_other_bytes_are_refused_as_before() -> None:
    decode = decoder(log_pb2.FetchRequest.FromString, MAX_DECODED_BYTES)
    assert decode(bytes(MAX_DECODED_BYTES + 1)) is TOO_LARGE
    assert decode(bytes(MAX_ELEMENT_COUNT + 1)) is UNDECODABLE
    assert decode(b"\x0a") is UNDECODABLE
    assert decode(b"") == log_pb2.FetchRequest()


@given(st.lists(FIELDS, max_size=12), st.integers(0, 14))
def test_fields_are_counted(fields: list[bytes], most: int) -> None:
    message = b"".join(fields)
    assert has_more_fields(message, most) is (len(fields) > most)
    if fields:
        assert has_more_fields(message[:-1], len(fields)) is None
    assert has_more_fields(message + b"\x0b", len(fields) + 1) is None, "a group"
