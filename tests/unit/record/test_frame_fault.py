"""The error for a broken records section says where it is broken, and what stands there."""

from __future__ import annotations

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.record.batch import verify_records
from stratalog.record.builder import encode_batch
from stratalog.record.header import BatchHeader, parse_header
from stratalog.record.record import Record
from stratalog.record.record_frame import MAX_RECORDS_WALKED

GOOD = b"\x10\0\0\0\x02k\x02v\0"
"""A record with offset delta 0: size 8, attributes, two deltas, key k, value v, no headers."""
NEXT = b"\x10\0\0\x02\x02k\x02v\0"


def header(count: int, last_offset_delta: int | None = None) -> BatchHeader:
    last = count - 1 if last_offset_delta is None else last_offset_delta
    return parse_header(encode_batch([Record(0, 0, b"k", b"v")]))._replace(
        records_count=count, last_offset_delta=last
    )


@pytest.mark.parametrize(
    ("payload", "count", "fields"),
    [
        (GOOD, 3, {"field": "records_count", "value": 3}),
        (GOOD + NEXT, 1, {"record_position": 9, "field": "records_count", "value": 1}),
        (GOOD + GOOD, 2, {"record_position": 9, "field": "offset_delta", "value": 0}),
        (GOOD + b"\x01" + NEXT[1:], 2, {"record_position": 9, "field": "record_size", "value": -1}),
        (GOOD + b"\x12" + NEXT[1:], 2, {"record_position": 9, "field": "record_size", "value": 9}),
        (GOOD + b"\x10\0\0\x02\x03k\x02v\0", 2, {"record_position": 14, "field": "size", "value": -2}),
        (
            GOOD + b"\x10\0\0\x02\x02k\x02v\1",
            2,
            {"record_position": 9, "field": "headers_count", "value": -1},
        ),
        (
            b"\x1c\0" + b"\x80" * 10 + b"\0\0\1\1\0",
            1,
            {"record_position": 2},
        ),
        (b"\x18\0\0\0" + b"\x80" * 5 + b"\0\1\0\0", 1, {"record_position": 4}),
        (b"\x14\0\0\0\1\1\2\2\xff\1\0", 1, {"record_position": 8}),
    ],
)
def test_the_place_the_field_and_the_value_are_named(
    payload: bytes, count: int, fields: dict[str, object]
) -> None:
    with pytest.raises(CorruptRecordError) as failure:
        verify_records(payload, header(count))
    assert failure.value.fields == fields


def test_a_record_behind_the_batchs_last_offset_is_named() -> None:
    with pytest.raises(CorruptRecordError) as failure:
        verify_records(GOOD + NEXT, header(2, 0))
    assert failure.value.fields == {"record_position": 9, "field": "offset_delta", "value": 1}


def test_what_is_broken_far_behind_is_refused_without_a_long_look() -> None:
    records = [Record(0, 0, b"k", b"v")] * (MAX_RECORDS_WALKED + 1)
    batch = encode_batch(records)
    with pytest.raises(CorruptRecordError):
        verify_records(batch[61:-1] + b"\1", parse_header(batch))
