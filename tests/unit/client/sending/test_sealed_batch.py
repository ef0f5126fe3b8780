"""The halves of a batch that is too large: the same records in the same order, and the same receipt."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import RecordTooLargeError
from stratalog.base.types import Durability, TopicPartition
from stratalog.client.sending.batch_receipt import BatchReceipt
from stratalog.client.sending.sealed_batch import BatchContents, SealedBatch, halved
from stratalog.record.ack import Ack
from stratalog.record.batch import decode, verify
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import NO_PRODUCER, encode_batch
from stratalog.record.codecs.compression import Codec, compress
from stratalog.record.header import HEADER_SIZE, parse_header
from stratalog.record.native.record_accumulator import Delivery, RecordAccumulator
from stratalog.record.record import Record

HERE = TopicPartition("t", 0)

RECORDS = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(0, 2**41),
        st.none() | st.binary(max_size=9),
        st.none() | st.binary(max_size=99),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2).map(tuple),
    ),
    min_size=2,
    max_size=40,
)


@given(records=RECORDS, codec=st.sampled_from(Codec), data=st.data())
def test_halves_hold_the_records_in_order(records: list[Record], codec: Codec, data: st.DataObject) -> None:
    middle = data.draw(st.integers(1, len(records) - 1))
    found: list[Record] = []
    for half, count in zip(
        halved(encode_batch(records, codec=codec), middle), (middle, len(records) - middle), strict=True
    ):
        header = parse_header(half)
        verify(half, 0, header)
        assert (header.records_count, header.codec) == (count, codec)
        assert not header.has_producer_id
        found += decode(half)
    assert [record._replace(offset=0) for record in found] == records


@pytest.mark.parametrize(
    ("base_sequence", "second_sequence"), [(0, 3), (70, 73), (2**31 - 3, 0), (2**31 - 1, 2)]
)
def test_a_producers_sequence_goes_on_from_half_to_half(base_sequence: int, second_sequence: int) -> None:
    producer = BatchProducer(9, 4, base_sequence)
    batch = encode_batch([Record(0, 0, None, b"%d" % n) for n in range(8)], producer=producer)
    first, second = (parse_header(half) for half in halved(batch, 3))
    for header, sequence in ((first, base_sequence), (second, second_sequence)):
        assert (header.producer_id, header.producer_epoch) == (9, 4)
        assert header.base_sequence == sequence
        assert not header.is_transactional


async def test_an_outcome_of_a_half_is_that_of_its_records() -> None:
    receipt = BatchReceipt(*HERE)
    batch = encode_batch([Record(0, 0, None, b"%d" % n) for n in range(7)])
    contents = BatchContents(7, 0, 0, Codec.NONE)
    sealed = SealedBatch(HERE, receipt, 0, contents, 1001, batch[HEADER_SIZE:])
    assert b"".join(sealed.encode(NO_PRODUCER)) == batch
    waiting = [asyncio.ensure_future(Delivery(receipt, place, 5)) for place in (0, 1, 4, 6)]
    await asyncio.sleep(0)
    first, second = sealed.halves()
    assert first.size_bytes + second.size_bytes == 1001
    assert [(half.first_index, half.record_count) for half in (first, second)] == [(0, 3), (3, 4)]
    for half in (first, second):
        values = [record.value for record in decode(b"".join(half.encode(NO_PRODUCER)))]
        assert values == [b"%d" % (half.first_index + place) for place in range(half.record_count)]
    first.acknowledge(100, Durability.OS)
    assert [receipt.is_settled(place) for place in range(7)] == [True] * 3 + [False] * 4
    second.fail(RecordTooLargeError("too large"))
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert outcomes[:2] == [Ack("t", 0, 100 + place, 5, Durability.OS) for place in (0, 1)]
    assert all(isinstance(outcome, RecordTooLargeError) for outcome in outcomes[2:])


@pytest.mark.parametrize("codec", Codec)
async def test_a_sealed_batch_is_what_the_encoder_makes(codec: Codec) -> None:
    accumulator = RecordAccumulator(1000, 1 << 20, BatchReceipt)
    accumulator.hold_topic("t", 1, 0)
    accumulator.open_topic("t")
    records = [Record(0, 50 + n, b"%d" % n, b"v" * n, (("h", b"x"),) * (n % 3)) for n in range(9)]
    for record in records:
        accumulator.send(
            "t", record.key, record.value, timestamp_ms=record.timestamp_ms, headers=record.headers
        )
    accumulator.close_all()
    _, [batch] = accumulator.take_batches()
    sealed = SealedBatch.of(batch, codec, compress(codec, batch.take_section()))
    for producer in (NO_PRODUCER, BatchProducer(9, 0, 7), BatchProducer(10, 0, 0)):
        encoded = b"".join(sealed.encode(producer))
        assert encoded == encode_batch(records, codec=codec, producer=producer)
