"""Records of many batches come in portions of bounded size, and little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.record.batch import batches, stamp
from stratalog.record.builder import rebuild_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import TRANSACTIONAL_BIT, BatchHeader, parse_header
from stratalog.record.native import kernels
from stratalog.record.reading.record_portions import (
    CONSUMED_COUNT,
    PORTION_BYTES,
    PORTION_COUNT,
    RecordReading,
    batch_records,
    payload_spans,
    record_portions,
)
from stratalog.record.record import Record
from tests.support.decoded_records import decode_all, plain_record
from tests.support.logs.plain_batches import timed_batch, with_header

MIB = 1 << 20
READING = RecordReading("t", 3)


def everything(header: BatchHeader) -> bool:
    assert header.size_in_bytes > 0
    return True


def placed(base_offset: int, count: int, value_bytes: int, codec: Codec = Codec.NONE) -> bytes:
    return with_header(
        timed_batch(range(5, 5 + count), value_bytes=value_bytes, codec=codec), base_offset=base_offset
    )


def row(*shapes: tuple[int, int, Codec]) -> bytes:
    """Batches one behind the other: records, bytes of each value, codec."""
    data, offset = b"", 0
    for count, value_bytes, codec in shapes:
        data += placed(offset, count, value_bytes, codec)
        offset += count
    return data


def peak_bytes(portions: Iterator[object]) -> int:
    """The most memory that reading to the end takes, where nothing is kept."""
    tracemalloc.start()
    try:
        for _ in portions:
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "shapes",
    [
        [],
        [(1, 10, Codec.NONE)] * 50,
        [(CONSUMED_COUNT - 1, 0, Codec.NONE), (1, 0, Codec.NONE), (1, 0, Codec.NONE)],
        [(3 * CONSUMED_COUNT + 7, 1, Codec.ZSTD), (2, 0, Codec.NONE), (CONSUMED_COUNT, 0, Codec.GZIP)],
        [(2, 0, Codec.NONE), (5, PORTION_BYTES // 2, Codec.LZ4), (3, PORTION_BYTES + 1, Codec.SNAPPY)],
        [(2, PORTION_BYTES + 1, Codec.NONE), (1, 0, Codec.NONE)],
    ],
    ids=["none", "small", "full", "many records", "large records", "uncompressed"],
)
def test_the_portions_hold_every_record_in_order(shapes: list[tuple[int, int, Codec]]) -> None:
    data = row(*shapes)
    portions = list(record_portions(data, READING, everything))
    assert [plain_record(record) for portion in portions for record in portion.records] == decode_all(data)
    flags = [portion.has_more for portion in portions]
    assert flags == [True] * (len(portions) - 1) + [False] * bool(portions)
    for records, _, _ in portions:
        assert 0 < len(records) <= CONSUMED_COUNT
        values_bytes = sum(len(record.value or b"") for record in records)
        assert values_bytes <= PORTION_BYTES or len(records) == 1
    found = [record for position, _ in batches(data) for record in batch_records(data, position)]
    assert found == decode_all(data)


def test_small_batches_come_together() -> None:
    data = row(*[(10, 10, Codec.NONE)] * 100)
    assert [len(portion.records) for portion in record_portions(data, READING, everything)] == [1000]


def test_batches_that_are_not_wanted_are_proven_and_not_decompressed() -> None:
    left_out = with_header(placed(3, 2, MIB, Codec.ZSTD), attributes=Codec.ZSTD | TRANSACTIONAL_BIT)
    data = bytearray(placed(0, 3, 1) + left_out + placed(5, 1, 1))
    asked: list[int] = []

    def is_wanted(header: BatchHeader) -> bool:
        asked.append(header.base_offset)
        return header.base_offset != 3

    # Decompressing it would raise.
    portions = record_portions(data, READING, is_wanted, max_bytes=MIB)
    assert [record.offset for portion in portions for record in portion.records] == [0, 1, 2, 5]
    assert asked == [3], "only transactional batches and control batches are asked for"
    asked.clear()
    data[len(placed(0, 3, 1)) + len(left_out) - 1] ^= 1
    portions = record_portions(data, READING, is_wanted)
    assert [record.offset for record in next(portions).records] == [0, 1, 2]
    with pytest.raises(CorruptRecordError):
        next(portions)
    assert asked == [], "a damaged header decides nothing"


def test_the_records_before_a_damaged_batch_come_first() -> None:
    data = bytearray(row((3, 1, Codec.NONE), (2, 1, Codec.NONE)))
    data[-1] ^= 1
    portions = record_portions(data, READING, everything)
    assert [record.offset for record in next(portions).records] == [0, 1, 2]
    with pytest.raises(CorruptRecordError):
        next(portions)


def test_offsets_increase_from_one_portion_to_the_next_as_well() -> None:
    piece = kernels.encode_records([Record(0, 0, None, None)] * CONSUMED_COUNT, 0)
    header = parse_header(placed(0, 2 * CONSUMED_COUNT, 0))
    twice = bytearray(rebuild_batch(header, piece * 2, records_count=2 * CONSUMED_COUNT, max_timestamp=0))
    stamp(twice, 0, base_offset=40, leader_epoch=0)
    portions = record_portions(twice, READING, everything)
    assert next(portions).records[0].offset == 40
    with pytest.raises(CorruptRecordError):
        next(portions)


@pytest.mark.parametrize("claimed", [PORTION_COUNT + 4, PORTION_COUNT + 6])
def test_a_count_that_is_not_that_of_the_records_is_found_at_the_end(claimed: int) -> None:
    payload = kernels.encode_records([Record(0, 0, None, None)] * (PORTION_COUNT + 5), 0)
    pieces = (kernels.decode_records(*span, 0, 0, None) for span in payload_spans(payload, claimed))
    assert len(next(pieces)) == PORTION_COUNT
    with pytest.raises(CorruptRecordError):
        list(pieces)


def test_memory_does_not_grow_with_the_number_of_batches() -> None:
    one, many = (row(*[(80, 100 << 10, Codec.ZSTD)] * count) for count in (1, 12))
    assert len(many) < MIB
    for data in (one, many):
        # The batch, the portion of it, and the one before, which the loop still holds.
        assert peak_bytes(record_portions(data, READING, everything)) < 32 * MIB


def test_memory_does_not_grow_with_the_number_of_records_in_a_batch() -> None:
    data = row((150_000, 0, Codec.ZSTD))
    assert peak_bytes(record_portions(data, READING, everything)) < 16 * MIB
    assert peak_bytes(batch_records(data)) < 16 * MIB
    assert peak_bytes(decode_all(data) for _ in range(1)) > 24 * MIB, "this is what would be taken otherwise"
