"""The halves of a batch that is too large: the same records in the same order, and the same people wait."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.types import Durability, TopicPartition
from stratalog.client.sealed_batch import Acknowledged, SealedBatch, halved
from stratalog.record.batch import decode, verify
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import parse_header
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


async def test_who_waits_for_a_record_waits_for_its_half() -> None:
    loop = asyncio.get_running_loop()
    futures: dict[int, asyncio.Future[Acknowledged]] = {place: loop.create_future() for place in (0, 1, 4, 6)}
    batch = encode_batch([Record(0, 0, None, b"%d" % n) for n in range(7)])
    sealed = SealedBatch(HERE, batch, list(range(70, 77)), list(futures.items()), 1001)
    first, second = sealed.halves()
    assert (list(first.tags), list(second.tags)) == ([70, 71, 72], [73, 74, 75, 76])
    assert first.size_bytes + second.size_bytes == 1001
    for half, begin in ((first, 0), (second, 3)):
        assert half.topic_partition == HERE
        values = [record.value for record in decode(half.batch)]
        assert values == [b"%d" % (begin + place) for place in range(half.record_count)]
        for place, future in half.futures:
            future.set_result(Acknowledged(HERE, begin + place, Durability.OS))
    assert {place: future.result().offset for place, future in futures.items()} == {n: n for n in futures}
