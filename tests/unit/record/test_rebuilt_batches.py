"""Batches as a compaction leaves them: holes, horizons, nothing at all."""

from __future__ import annotations

import pytest

from stratalog.base.errors import InvalidRequestError
from stratalog.record.batch import decode, records_payload, verify
from stratalog.record.builder import encode_batch, rebuild_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import BatchHeader, parse_header
from stratalog.record.native import kernels
from stratalog.record.record import Record

RECORDS = [
    Record(100, 1_000, b"a", b"1"),
    Record(101, 1_005, b"b", None),
    Record(102, 1_002, b"c", b"3", (("h", b"x"),)),
    Record(103, 1_001, None, b"4"),
]


def original(codec: Codec) -> tuple[bytes, BatchHeader]:
    batch = encode_batch(RECORDS, codec=codec, base_offset=100, leader_epoch=7)
    return batch, parse_header(batch)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
def test_survivors_keep_their_offsets(codec: Codec) -> None:
    batch, header = original(codec)
    copied = kernels.copy_records(
        records_payload(batch, 0, header),
        header.records_count,
        bytes([0b0110]),
        0,
        first_offset_delta=0,
        end_offset_delta=4,
        drop_tombstones=False,
        timestamp_shift=0,
    )
    assert (copied.count, copied.first_delta, copied.last_delta, copied.tombstone_count) == (2, 1, 2, 1)
    max_timestamp = header.base_timestamp + copied.max_timestamp_delta
    rebuilt = rebuild_batch(header, copied.payload, records_count=copied.count, max_timestamp=max_timestamp)
    assert decode(rebuilt) == RECORDS[1:3]
    after = parse_header(rebuilt)
    assert (after.base_offset, after.last_offset, after.leader_epoch) == (100, 103, 7)
    assert (after.codec, after.max_timestamp, after.delete_horizon_ms) == (codec, 1_005, None)
    assert not verify(rebuilt, 0, after).is_dense


def test_a_horizon_takes_the_place_of_the_base_timestamp() -> None:
    batch, header = original(Codec.ZSTD)
    horizon_ms = 86_400_000
    copied = kernels.copy_records(
        records_payload(batch, 0, header),
        header.records_count,
        bytes([0b1111]),
        0,
        first_offset_delta=1,
        end_offset_delta=3,
        drop_tombstones=False,
        timestamp_shift=header.base_timestamp - horizon_ms,
    )
    stamped = rebuild_batch(
        header,
        copied.payload,
        records_count=copied.count,
        max_timestamp=horizon_ms + copied.max_timestamp_delta,
        delete_horizon_ms=horizon_ms,
    )
    after = parse_header(stamped)
    assert after.delete_horizon_ms == horizon_ms
    assert decode(stamped) == RECORDS[1:3]
    verify(stamped, 0, after)
    # A later job keeps the horizon without naming it.
    again = rebuild_batch(
        after, records_payload(stamped, 0, after), records_count=2, max_timestamp=after.max_timestamp
    )
    assert again == stamped


def test_nothing_may_be_left() -> None:
    batch, header = original(Codec.NONE)
    empty = kernels.copy_records(
        records_payload(batch, 0, header),
        header.records_count,
        bytes(1),
        0,
        first_offset_delta=0,
        end_offset_delta=4,
        drop_tombstones=False,
        timestamp_shift=3,
    )
    assert (empty.payload, empty.count, empty.first_delta, empty.last_delta) == (b"", 0, -1, -1)
    rebuilt = rebuild_batch(header, b"", records_count=0, max_timestamp=header.max_timestamp)
    after = parse_header(rebuilt)
    assert decode(rebuilt) == []
    assert verify(rebuilt, 0, after).max_timestamp_delta == 0
    assert after.next_offset == header.next_offset


def test_what_cannot_be_a_batch_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        encode_batch([])
    with pytest.raises(InvalidRequestError):
        encode_batch([Record(0, 2**63, None, None)])
    with pytest.raises(InvalidRequestError):
        encode_batch([Record(0, -(2**62) - 1, None, None), Record(0, 2**62, None, None)])
    with pytest.raises(InvalidRequestError):
        encode_batch([Record(0, 0, None, None, (("\ud800", None),))])
    with pytest.raises(InvalidRequestError):
        encode_batch(RECORDS, codec=Codec.SNAPPY, level=1)
