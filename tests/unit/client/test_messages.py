"""Fetched batches reach over the ends of what was asked for; records outside do not count. However many
batches there are, and whatever they decompress to, a part of them at a time becomes records.
"""

from __future__ import annotations

import tracemalloc
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.client.errors import RecordDecodingError
from stratalog.client.messages import FetchedRecords, fetched_parts
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import ATTRIBUTES_POSITION
from stratalog.record.reading import record_portions
from stratalog.record.record import Record
from stratalog.v1 import log_pb2

MIB = 1 << 20
COUNTS = st.lists(st.integers(1, 5), max_size=4)


def row(counts: list[int]) -> tuple[bytes, int]:
    """Batches of so many records each, and the offset behind them. A record's value is its offset."""
    batches, offset = b"", 0
    for count in counts:
        records = [Record(0, 5, b"k", str(offset + delta).encode()) for delta in range(count)]
        batches += encode_batch(records, base_offset=offset)
        offset += count
    return batches, offset


def answer_of(batches: bytes, next_offset: int) -> log_pb2.FetchedPartition:
    return log_pb2.FetchedPartition(
        topic="t",
        partition=1,
        batches=batches,
        next_fetch_offset=next_offset,
    )


@given(counts=COUNTS, fetch_offset=st.integers(0, 20), next_offset=st.integers(0, 25))
def test_only_records_inside_the_range_count(counts: list[int], fetch_offset: int, next_offset: int) -> None:
    batches, offset = row(counts)
    parts = list(fetched_parts(answer_of(batches, next_offset), fetch_offset))
    records = [record for part in parts for record in part.records]
    expected = [at for at in range(offset) if fetch_offset <= at < next_offset]
    assert [record.offset for record in records] == expected
    assert [record.value for record in records] == [str(at).encode() for at in expected]
    assert parts[-1].next_offset == next_offset


@given(
    counts=COUNTS,
    fetch_offset=st.integers(0, 20),
    hole=st.integers(0, 3),
    end_offset=st.one_of(st.none(), st.integers(0, 25)),
    portion_count=st.integers(1, 6),
)
def test_parts_go_on_where_the_one_before_ended(
    counts: list[int], fetch_offset: int, hole: int, end_offset: int | None, portion_count: int
) -> None:
    batches, offset = row(counts)
    end = offset + hole if end_offset is None else min(offset + hole, end_offset)
    with mock.patch.object(record_portions, "CONSUMED_COUNT", portion_count):
        parts = list(fetched_parts(answer_of(batches, offset + hole), fetch_offset, end_offset))
    assert all(len(part.records) <= portion_count for part in parts)
    # A reader that stops behind any of them, and goes on at its next offset, has every record once.
    found = list[int]()
    for part in parts:
        found += [record.offset for record in part.records]
        assert found == list(range(fetch_offset, min(part.next_offset, offset)))
        assert part.records or part is parts[-1]
        assert part.topic_partition == ("t", 1)
    assert parts[-1].next_offset == end
    assert found == list(range(fetch_offset, min(end, offset)))


def test_parts_have_neither_markers_nor_what_was_aborted() -> None:
    def transactional(base_offset: int, producer_id: int, count: int) -> bytes:
        producer = BatchProducer(producer_id, 0, 0, is_transactional=True)
        return encode_batch([Record(0, 5, b"k", b"v")] * count, base_offset=base_offset, producer=producer)

    batches = transactional(0, 7, 2) + transactional(2, 8, 3) + transactional(5, 7, 1)
    marker = EndTransactionMarker(ControlType.ABORT, 0).to_batch(7, 0, 0)
    answer = answer_of(batches + with_base_offset(marker, 6), 7)
    answer.aborted_transactions.add(producer_id=7, first_offset=0, last_offset=6)
    with mock.patch.object(record_portions, "CONSUMED_COUNT", 2):
        parts = list(fetched_parts(answer, 0))
    assert [[record.offset for record in part.records] for part in parts] == [[2, 3], [4]]
    assert [part.next_offset for part in parts] == [4, 7]


def with_base_offset(batch: bytes, base_offset: int) -> bytes:
    return base_offset.to_bytes(8) + batch[8:]


def test_the_records_before_a_damaged_batch_come_first() -> None:
    batches, offset = row([3, 2])
    parts = fetched_parts(answer_of(batches[:-1] + b"x", offset), 1)
    fetched = next(parts)
    assert ([record.offset for record in fetched.records], fetched.next_offset) == ([1, 2], 3)
    with pytest.raises(CorruptRecordError):
        next(parts)


@pytest.mark.parametrize("mask", [0x20, 0x10], ids=["control", "transactional"])
def test_a_damaged_batch_does_not_pass_for_one_to_leave_out(mask: int) -> None:
    plain = encode_batch([Record(0, 5, b"k", b"v")], producer=BatchProducer(7, 0, 0, is_transactional=False))
    damaged = bytearray(with_base_offset(plain, 1))
    damaged[ATTRIBUTES_POSITION + 1] ^= mask
    answer = answer_of(plain + damaged + with_base_offset(plain, 2), 3)
    answer.aborted_transactions.add(producer_id=7, first_offset=0, last_offset=9)
    parts = fetched_parts(answer, 0)
    assert [record.offset for record in next(parts).records] == [0]
    with pytest.raises(CorruptRecordError):
        next(parts)


def test_memory_does_not_grow_with_what_an_answer_decompresses_to() -> None:
    one = encode_batch([Record(0, 5, b"k", bytes(100 << 10))] * 80, codec=Codec.ZSTD)
    answer = answer_of(b"".join(with_base_offset(one, 80 * index) for index in range(12)), 80 * 12)
    count = 0
    fetched: FetchedRecords | None = None
    tracemalloc.start()
    try:
        for fetched in fetched_parts(answer, 0):
            count += len(fetched.records)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (count, fetched is not None and fetched.next_offset) == (80 * 12, 80 * 12)
    assert peak_bytes < 32 * MIB, "twelve times 8 MiB were read"


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("failing", [1, 2, 3, 5, 3000, 6001])
def test_the_records_before_one_that_cannot_be_decoded_come_first(codec: Codec, failing: int) -> None:
    """Batches of different epochs, the last one in several parts, read from offset 1 on."""
    values = [b"v"] * 6002
    values[failing] = b"\xff"
    batches = b"".join(
        encode_batch(
            [Record(0, 5, b"k", value) for value in values[first:end]],
            base_offset=first,
            leader_epoch=epoch,
            codec=codec,
        )
        for first, end, epoch in [(0, 2, 4), (2, 4, 5), (4, 6002, 6)]
    )
    parts: list[FetchedRecords] = []
    with pytest.raises(RecordDecodingError) as caught:
        parts.extend(fetched_parts(answer_of(batches, 6002), 1, decode_value="utf-8"))
    place = {"topic": "t", "partition": 1, "offset": failing, "origin": "value"}
    assert place.items() <= caught.value.fields.items()
    assert isinstance(caught.value.__cause__, UnicodeDecodeError)
    assert [record.offset for part in parts for record in part.records] == list(range(1, failing))
    assert all(record.value == "v" for part in parts for record in part.records)
    for part in parts:
        last_offset = part.records[-1].offset
        assert part.next_offset == last_offset + 1
        assert part.last_epoch == (4 if last_offset < 2 else 5 if last_offset < 4 else 6)
