"""The headers of batches that lost records."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stratalog.cleaner.clean.rebuilt_batch import emptied, since_offset
from stratalog.record.batch import decode, require_crc
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch, rebuild_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import (
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TimestampType,
    parse_header,
)
from stratalog.record.record import Record

PRODUCER = BatchProducer(7, 3, 40, is_transactional=True)


def batch_of(timestamps: Sequence[int], codec: Codec = Codec.NONE) -> bytes:
    records = [Record(0, timestamp_ms, b"k", b"v") for timestamp_ms in timestamps]
    return encode_batch(records, base_offset=10, codec=codec, producer=PRODUCER, leader_epoch=5)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(
    ("start_offset", "expected"), [(10, [9000, 2000, 5000]), (11, [2000, 5000]), (12, [5000]), (13, [])]
)
def test_what_is_left_above_an_offset_is_as_new_as_its_newest_record(
    codec: Codec, start_offset: int, expected: list[int]
) -> None:
    batch = batch_of([9000, 2000, 5000], codec)
    left = since_offset(batch, parse_header(batch), start_offset, None)
    if not expected:
        assert left == b""
        return
    header = parse_header(left)
    require_crc(left, 0, header)
    assert [one.timestamp_ms for one in decode(left, 0)] == expected
    assert header.max_timestamp == max(expected)
    assert (header.base_offset, header.last_offset, header.codec) == (10, 12, codec)


def test_the_time_of_the_append_stays_whatever_is_left() -> None:
    batch = batch_of([9000, 2000])
    header = parse_header(batch)
    stamped = header._replace(attributes=header.attributes | TIMESTAMP_TYPE_BIT)
    batch = rebuild_batch(stamped, batch[HEADER_SIZE:], records_count=2, max_timestamp=9500)
    left = parse_header(since_offset(batch, parse_header(batch), 11, None))
    assert (left.timestamp_type, left.max_timestamp) == (TimestampType.LOG_APPEND_TIME, 9500)


@pytest.mark.parametrize("codec", list(Codec))
def test_an_emptied_batch_has_neither_a_codec_nor_a_horizon(codec: Codec) -> None:
    batch = batch_of([9000, 2000], codec)
    header = parse_header(batch)
    with_horizon = header._replace(attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=123_000)
    for before in (header, with_horizon):
        empty = emptied(before)
        left = parse_header(empty)
        require_crc(empty, 0, left)
        assert len(empty) == HEADER_SIZE
        assert left.delete_horizon_ms is None
        assert left == header._replace(
            batch_length=left.batch_length,
            crc=left.crc,
            attributes=header.attributes & ~7,
            base_timestamp=NO_TIMESTAMP,
            records_count=0,
        )
