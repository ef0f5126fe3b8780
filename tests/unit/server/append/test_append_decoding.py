"""Append requests decoded around protobuf say what protobuf says of them."""

from __future__ import annotations

from typing import TypeVar

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from stratalog.server.append.append_decoding import (
    Decoded,
    decode_append_request,
    decode_stream_request,
)
from stratalog.v1 import log_pb2

RECORDS = st.builds(
    log_pb2.Record,
    key=st.binary(max_size=5),
    value=st.binary(max_size=5),
    timestamp_ms=st.integers(0, 1 << 60),
)
REQUESTS = st.one_of(
    st.builds(
        log_pb2.AppendRequest,
        topic=st.text(max_size=20),
        partition=st.integers(-(1 << 31), (1 << 31) - 1),
        durability=st.sampled_from(log_pb2.Durability.values()),
        batches=st.none() | st.binary(max_size=300),
    ),
    st.builds(
        log_pb2.AppendRequest,
        topic=st.text(max_size=20),
        records=st.builds(log_pb2.Records, records=st.lists(RECORDS, max_size=3)),
        expected_offset=st.none() | st.integers(-1, 1 << 60),
        fencing_token=st.none() | st.text(max_size=5),
        producer=st.none() | st.builds(log_pb2.ProducerSequence, producer_id=st.integers(-1, 1 << 60)),
    ),
)

STREAM_REQUESTS = st.builds(
    log_pb2.AppendStreamRequest,
    topic=st.text(max_size=20),
    partition=st.integers(-(1 << 31), (1 << 31) - 1),
    batches=st.none() | st.binary(max_size=300),
    sequence=st.integers(0, (1 << 64) - 1),
    resume=st.booleans(),
)


Request = TypeVar("Request", log_pb2.AppendRequest, log_pb2.AppendStreamRequest)


def restored(decoded: Decoded[Request]) -> Request:
    """The message that `decoded` stands for."""
    request = type(decoded.request)()
    request.CopyFrom(decoded.request)
    if decoded.batches is not None:
        request.batches = bytes(decoded.batches)
    return request


def test_a_request_of_a_stream_has_the_fields_of_a_single_one_under_the_same_numbers() -> None:
    single, streamed = (
        {(field.name, field.number) for field in message.DESCRIPTOR.fields}
        for message in (log_pb2.AppendRequest, log_pb2.AppendStreamRequest)
    )
    assert {name for name, _ in streamed - single} == {"sequence", "resume"}
    assert single < streamed


@given(request=STREAM_REQUESTS, plain=REQUESTS)
def test_every_request_of_a_stream_is_decoded_as_protobuf_does(
    request: log_pb2.AppendStreamRequest, plain: log_pb2.AppendRequest
) -> None:
    data = request.SerializeToString()
    decoded = decode_stream_request(data)
    assert restored(decoded) == request
    assert decoded.size_bytes == len(data)
    # Of fields that come again the last one counts.
    data += plain.SerializeToString()
    assert restored(decode_stream_request(data)) == (log_pb2.AppendStreamRequest.FromString(data))


@given(request=REQUESTS)
def test_every_request_is_decoded_as_protobuf_does(request: log_pb2.AppendRequest) -> None:
    data = request.SerializeToString()
    decoded = decode_append_request(data)
    assert restored(decoded) == request
    assert decoded.size_bytes == len(data)
    assert (decoded.batches is not None) == (request.WhichOneof("payload") == "batches")


@given(requests=st.lists(REQUESTS, min_size=2, max_size=4))
def test_fields_that_come_again_count_as_protobuf_counts_them(requests: list[log_pb2.AppendRequest]) -> None:
    data = b"".join(request.SerializeToString() for request in requests)
    assert restored(decode_append_request(data)) == log_pb2.AppendRequest.FromString(data)


@given(data=st.binary(max_size=60))
@example(data=b"\x22")
@example(data=b"\x22\x05abc")
@example(data=b"\x22" + b"\xff" * 10)
@example(data=b"\x22" + b"\xff" * 9 + b"\x01")
@example(data=b"\x23\x24")
@example(data=b"\x00\x00")
@example(data=b"\x0a\x02\xff\xff")
@example(data=b"\x20\x05")
def test_garbage_is_judged_by_protobuf(data: bytes) -> None:
    try:
        expected = log_pb2.AppendRequest.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            decode_append_request(data)
        return
    assert restored(decode_append_request(data)).SerializeToString(deterministic=True) == (
        expected.SerializeToString(deterministic=True)
    )


def test_batches_are_a_view_and_not_a_copy() -> None:
    batches = bytes(1 << 20)
    decoded = decode_append_request(log_pb2.AppendRequest(topic="t", batches=batches).SerializeToString())
    assert decoded.batches is not None
    assert isinstance(decoded.batches.obj, bytes)
    assert len(decoded.batches.obj) == decoded.size_bytes
    assert decoded.batches == batches
    assert not decoded.request.HasField("batches")
