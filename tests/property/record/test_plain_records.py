"""Plain records become the section that protobuf and the encoder of records make of them, on any bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from stratalog.base.errors import InvalidRequestError, LogStoreError, RecordTooLargeError
from stratalog.record.key_partition import partition_for_key
from stratalog.record.native import kernels
from stratalog.record.plain import pure_plain_records
from stratalog.record.plain.plain_section import KeyPlace, PlainSection
from stratalog.record.record import Record
from stratalog.v1 import log_pb2

native = pytest.importorskip("stratalog.record.native._kernels")

NOW_MS = 1_357_034_400_000
ROOM = 1 << 30
PARTITION_COUNT = 5

HEADERS = st.lists(
    st.builds(log_pb2.Header, key=st.text(max_size=5), value=st.none() | st.binary(max_size=5)), max_size=3
)
RECORDS = st.lists(
    st.builds(
        log_pb2.Record,
        key=st.none() | st.binary(max_size=9),
        value=st.none() | st.binary(max_size=200),
        timestamp_ms=st.none() | st.sampled_from([0, 1, NOW_MS, (1 << 63) - 1]) | st.integers(0, 1 << 40),
        headers=HEADERS,
    ),
    max_size=8,
)
MESSAGES = st.builds(log_pb2.Records, records=RECORDS).map(lambda message: message.SerializeToString())
NOISE = st.binary(max_size=6)
"""Unknown fields, fields again, and garbage."""


def outcome(encode: Callable[..., object], *arguments: object) -> tuple[str, Any]:
    """The result, or the class of the refusal and its fields."""
    try:
        return "result", encode(*arguments)
    except LogStoreError as error:
        return "refused", (type(error), error.fields)


def by_protobuf(message: bytes, now_ms: int) -> PlainSection:
    """The section of the records that protobuf decodes, by the encoder of records."""
    try:
        plain = log_pb2.Records.FromString(message).records
    except DecodeError as error:
        raise InvalidRequestError("") from error
    if not plain or any(one.timestamp_ms < 0 for one in plain):
        raise InvalidRequestError("")
    records = [
        Record(
            index,
            one.timestamp_ms if one.HasField("timestamp_ms") else now_ms,
            one.key if one.HasField("key") else None,
            one.value if one.HasField("value") else None,
            tuple((header.key, header.value if header.HasField("value") else None) for header in one.headers),
        )
        for index, one in enumerate(plain)
    ]
    times = [record.timestamp_ms for record in records]
    return PlainSection(kernels.encode_records(records, times[0]), len(records), times[0], max(times))


def place_by_protobuf(message: bytes) -> KeyPlace:
    """The partition of the keys that protobuf decodes."""
    places = [
        (index, partition_for_key(one.key, PARTITION_COUNT))
        for index, one in enumerate(log_pb2.Records.FromString(message).records)
        if one.HasField("key")
    ]
    if not places:
        return KeyPlace(None)
    first = places[0][1]
    return next((KeyPlace(first, *place) for place in places if place[1] != first), KeyPlace(first))


@given(message=MESSAGES)
def test_records_become_the_section_of_their_encoder(message: bytes) -> None:
    found = outcome(native.encode_plain, message, NOW_MS, ROOM)
    assert found == outcome(pure_plain_records.encode_plain, message, NOW_MS, ROOM)
    kind, expected = outcome(by_protobuf, message, NOW_MS)
    assert (kind, expected) == found or (kind, found[0]) == ("refused", "refused")


@given(message=MESSAGES, noise=NOISE, place=st.integers(0, 1 << 12))
@example(message=b"\x0a\x02\x18\xff", noise=b"", place=0)
@example(message=b"\x0a\x0b\x18" + b"\xff" * 9 + b"\x01", noise=b"", place=0)
@example(message=b"\x0a\x04\x22\x02\x0a\xff", noise=b"", place=0)
@example(message=b"\x0a\x80\x80\x80\x80\x80\x00", noise=b"", place=0)
@example(message=b"\x8a\x80\x80\x80\x10\x00", noise=b"", place=0)
def test_any_bytes_are_judged_as_protobuf_judges_them(message: bytes, noise: bytes, place: int) -> None:
    at = place % (len(message) + 1)
    for changed in (message[:at] + noise + message[at:], message[:at] + noise + message[at + len(noise) :]):
        found = outcome(native.encode_plain, changed, NOW_MS, ROOM)
        assert found == outcome(pure_plain_records.encode_plain, changed, NOW_MS, ROOM)
        kind, expected = outcome(by_protobuf, changed, NOW_MS)
        if found[0] == "result":
            assert (kind, expected) == found
        placed = outcome(native.place_plain, changed, PARTITION_COUNT)
        assert placed == outcome(pure_plain_records.place_plain, changed, PARTITION_COUNT)
        if placed[0] == "result" and placed[1].other_index is None:
            assert placed[1] == place_by_protobuf(changed)


@given(message=MESSAGES)
def test_keys_of_one_partition_are_placed_there(message: bytes) -> None:
    found = outcome(native.place_plain, message, PARTITION_COUNT)
    assert found == outcome(pure_plain_records.place_plain, message, PARTITION_COUNT)
    assert found == ("result", place_by_protobuf(message))


def test_a_section_that_has_no_room_is_refused_before_it_is_made() -> None:
    message = log_pb2.Records(records=[log_pb2.Record()] * 1000).SerializeToString()
    made = native.encode_plain(message, NOW_MS, ROOM)
    for encode in (native.encode_plain, pure_plain_records.encode_plain):
        assert encode(message, NOW_MS, len(made.section)) == made
        with pytest.raises(RecordTooLargeError) as refused:
            encode(message, NOW_MS, len(made.section) - 1)
        assert refused.value.fields["records_count"] == 1000
