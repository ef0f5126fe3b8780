"""Append requests decoded around protobuf say what protobuf says of them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from stratalog.base.errors import InvalidRequestError
from stratalog.base.message_fields import fields_of
from stratalog.record.plain.plain_records import encode_plain
from stratalog.server.append import append_decoding
from stratalog.server.append.append_decoding import (
    SHORT_BYTES,
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
    if decoded.records is not None:
        request.records.CopyFrom(log_pb2.Records.FromString(bytes(decoded.records)))
    return request


@contextmanager
def walking() -> Generator[None]:
    """All requests are walked, as those are that are not short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_decoding, "SHORT_BYTES", -1)
        yield


def both_ways(decode: Callable[[bytes], Decoded[Request]], data: bytes) -> Request:
    """The message that both ways of decoding stand for."""
    short = restored(decode(data))
    with walking():
        walked = decode(data)
    assert restored(walked) == short
    assert walked.size_bytes == len(data)
    assert walked.request.WhichOneof("payload") is None
    return short


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
    assert both_ways(decode_stream_request, data) == request
    # Of fields that come again the last one counts.
    data += plain.SerializeToString()
    assert both_ways(decode_stream_request, data) == log_pb2.AppendStreamRequest.FromString(data)


@given(request=REQUESTS)
def test_every_request_is_decoded_as_protobuf_does(request: log_pb2.AppendRequest) -> None:
    data = request.SerializeToString()
    assert both_ways(decode_append_request, data) == request
    decoded = decode_append_request(data)
    assert decoded.size_bytes == len(data)
    assert (decoded.batches is not None) == (request.WhichOneof("payload") == "batches")
    assert (decoded.records is not None) == (request.WhichOneof("payload") == "records")


@given(requests=st.lists(REQUESTS, min_size=2, max_size=4))
def test_fields_that_come_again_count_as_protobuf_counts_them(requests: list[log_pb2.AppendRequest]) -> None:
    data = b"".join(request.SerializeToString() for request in requests)
    assert both_ways(decode_append_request, data) == log_pb2.AppendRequest.FromString(data)


@given(data=st.binary(max_size=60))
@example(data=b"\x22")
@example(data=b"\x22\x05abc")
@example(data=b"\x22" + b"\xff" * 10)
@example(data=b"\x22" + b"\xff" * 9 + b"\x01")
@example(data=b"\x23\x24")
@example(data=b"\x00\x00")
@example(data=b"\x0a\x02\xff\xff")
@example(data=b"\x20\x05")
def test_garbage_is_judged_as_protobuf_does(data: bytes) -> None:
    try:
        expected = log_pb2.AppendRequest.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            decode_append_request(data)
        with walking(), pytest.raises((DecodeError, InvalidRequestError)):
            # The records of a walked request are judged by their encoder.
            encode_plain(decode_append_request(data).records or b"", 0, 1 << 20)
        return
    encoded = expected.SerializeToString(deterministic=True)
    assert restored(decode_append_request(data)).SerializeToString(deterministic=True) == encoded
    with walking():
        try:
            walked = decode_append_request(data)
        except DecodeError:
            # Groups belong to protobuf's second version.
            assert has_group(data)
            return
    assert restored(walked).SerializeToString(deterministic=True) == encoded


def has_group(data: bytes) -> bool:
    """Whether a field of the message is a group."""
    position = 0
    for field in fields_of(data, 0, len(data)):
        if field is None:
            return data[position] & 7 in {3, 4}
        position = field.end_position
    return False


def test_a_long_request_of_too_many_fields_is_refused_before_it_takes_long() -> None:
    data = b"\x50\x01" * (SHORT_BYTES // 2 + 1)
    assert decode_append_request(data[: SHORT_BYTES - 1 & ~1]).request.expected_offset == 1
    with pytest.raises(DecodeError):
        decode_append_request(data)


def test_plain_records_of_a_long_request_become_no_objects() -> None:
    records = log_pb2.Records(records=[log_pb2.Record(value=bytes(100))] * 1000)
    data = log_pb2.AppendRequest(topic="t", records=records).SerializeToString()
    decoded = decode_append_request(data)
    assert isinstance(decoded.records, memoryview)
    assert decoded.records == records.SerializeToString()
    assert not decoded.request.HasField("records")


def test_batches_are_a_view_and_not_a_copy() -> None:
    batches = bytes(1 << 20)
    decoded = decode_append_request(log_pb2.AppendRequest(topic="t", batches=batches).SerializeToString())
    assert decoded.batches is not None
    assert isinstance(decoded.batches.obj, bytes)
    assert len(decoded.batches.obj) == decoded.size_bytes
    assert decoded.batches == batches
    assert not decoded.request.HasField("batches")
