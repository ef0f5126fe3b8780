"""Fetch responses decoded around protobuf say what protobuf says of them."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from stratalog.client.consuming import fetch_decoding
from stratalog.client.consuming.fetch_decoding import ReceivedResponse, decode_fetch_response
from stratalog.v1 import log_pb2

PARTITIONS = st.builds(
    log_pb2.FetchedPartition,
    topic=st.text(max_size=20),
    partition=st.integers(-(1 << 31), (1 << 31) - 1),
    batches=st.binary(max_size=300),
    next_fetch_offset=st.integers(-(1 << 63), (1 << 63) - 1),
    last_epoch=st.integers(-1, 1 << 20),
    aborted_transactions=st.lists(
        st.builds(log_pb2.AbortedTransaction, producer_id=st.integers(0, 1 << 60)), max_size=2
    ),
)
RESPONSES = st.builds(log_pb2.FetchResponse, partitions=st.lists(PARTITIONS, max_size=3))

VARINT_OF_NINE, FIXED64_OF_NINE, BATCHES = b"\x48\x01", b"\x49" + bytes(8), b"\x1a\x02xy"


@pytest.fixture(autouse=True)
def walk_small_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_decoding, "_SMALL_BYTES", 0)


def restored(response: ReceivedResponse) -> log_pb2.FetchResponse:
    """The message that a decoded response stands for."""
    message = log_pb2.FetchResponse()
    for received in response.partitions:
        added = message.partitions.add()
        added.CopyFrom(received.fields)
        added.batches = bytes(received.batches)
    return message


def decoded_or_none(data: bytes) -> list[log_pb2.FetchedPartition] | None:
    """The partitions; fields of a response that are not known are left out."""
    try:
        return list(restored(decode_fetch_response(data)).partitions)
    except DecodeError:
        return None


def parsed_or_none(data: bytes) -> list[log_pb2.FetchedPartition] | None:
    try:
        return list(log_pb2.FetchResponse.FromString(data).partitions)
    except DecodeError:
        return None


@given(RESPONSES)
def test_says_what_protobuf_says(response: log_pb2.FetchResponse) -> None:
    assert restored(decode_fetch_response(response.SerializeToString())) == response


def test_leaves_batches_where_they_are() -> None:
    batches = bytes(range(200))
    response = log_pb2.FetchResponse(partitions=[log_pb2.FetchedPartition(topic="t", batches=batches)])
    data = response.SerializeToString()
    [received] = decode_fetch_response(data).partitions
    assert isinstance(received.batches, memoryview)
    assert received.batches.obj is data
    assert received.batches == batches
    assert received.fields.batches == b""


def test_reads_properties_of_the_message() -> None:
    message = log_pb2.FetchedPartition(topic="t", partition=3, next_fetch_offset=9, last_epoch=4)
    message.aborted_transactions.add(producer_id=7)
    [received] = decode_fetch_response(
        log_pb2.FetchResponse(partitions=[message]).SerializeToString()
    ).partitions
    assert (received.topic, received.partition, received.next_fetch_offset) == ("t", 3, 9)
    assert received.last_epoch == 4
    assert [one.producer_id for one in received.aborted_transactions] == [7]


@given(RESPONSES, st.data())
def test_judges_cut_and_changed_bytes_as_protobuf_does(
    response: log_pb2.FetchResponse, data: st.DataObject
) -> None:
    message = bytearray(response.SerializeToString())
    if message:
        place = data.draw(st.integers(0, len(message) - 1))
        if data.draw(st.booleans()):
            message[place] = data.draw(st.integers(0, 255))
        else:
            del message[place:]
    assert decoded_or_none(bytes(message)) == parsed_or_none(bytes(message))


@pytest.mark.parametrize(
    "partition", [BATCHES + b"\x1a\x01z", VARINT_OF_NINE, FIXED64_OF_NINE + BATCHES, b"\x18\x05" + BATCHES]
)
def test_other_forms_and_repeated_fields(partition: bytes) -> None:
    """The last ones of repeated batches count; a field of another form is unknown."""
    data = b"\x0a" + bytes([len(partition)]) + partition
    assert decoded_or_none(data) == parsed_or_none(data)


@example(b"\x0a\x05\x0a\x01")
@example(b"\x08\x01")
@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    assert decoded_or_none(data) == parsed_or_none(data)
