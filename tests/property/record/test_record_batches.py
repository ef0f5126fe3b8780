"""Whole batches, for every codec: what goes in comes out, changed bytes are noticed, garbage is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError, InvalidRequestError
from stratalog.record.batch import batches, complete_prefix_size, crc_matches, decode, stamp, verify
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    HEADER_SIZE,
    BatchHeader,
    TimestampType,
    parse_header,
)
from stratalog.record.record import Record
from tests.support.decoded_records import decode_all
from tests.support.logs.plain_batches import with_header

CODECS = st.sampled_from(Codec)
PARTS = st.one_of(st.none(), st.binary(max_size=30))
HEADERS = st.lists(st.tuples(st.text(max_size=8), PARTS), max_size=3).map(tuple)
RECORDS = st.lists(
    st.builds(Record, st.just(0), st.integers(-1, 2**45), PARTS, PARTS, HEADERS), min_size=1, max_size=8
)
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
ANY_HEADER = st.builds(
    BatchHeader,
    st.one_of(st.integers(0, 2**62), INT64),
    st.one_of(st.integers(49, 400), INT32),
    INT32,
    st.one_of(st.just(2), st.integers(-128, 127)),
    st.integers(0, 2**32 - 1),
    INT16,
    st.one_of(st.integers(0, 9), INT32),
    INT64,
    INT64,
    INT64,
    INT16,
    INT32,
    st.one_of(st.integers(0, 9), INT32),
)


@st.composite
def encoded_batches(draw: st.DrawFn) -> tuple[bytes, list[Record]]:
    """A batch, and the records that it must give back."""
    records, base_offset = draw(RECORDS), draw(st.one_of(st.just(0), st.integers(0, 2**62)))
    batch = encode_batch(
        records, codec=draw(CODECS), base_offset=base_offset, leader_epoch=draw(st.integers(-1, 2**31 - 1))
    )
    return batch, [record._replace(offset=base_offset + index) for index, record in enumerate(records)]


def resummed(batch: bytes) -> bytes:
    """The batch with a checksum that fits: what a forger would send."""
    crc = crc32c(batch[ATTRIBUTES_POSITION:])
    return batch[:CRC_POSITION] + crc.to_bytes(4, "big") + batch[ATTRIBUTES_POSITION:]


@given(st.lists(encoded_batches(), max_size=4), st.binary(max_size=HEADER_SIZE - 1))
def test_batches_in_a_row(parts: list[tuple[bytes, list[Record]]], torn: bytes) -> None:
    data = b"".join(batch for batch, _ in parts)
    assert decode_all(data) == [record for _, records in parts for record in records]
    for position, header in batches(data):
        summary = verify(data, position, header)
        assert summary.is_dense
        assert decode(data, position)[-1].offset == header.last_offset == header.next_offset - 1
    assert complete_prefix_size(data + torn) == len(data)
    if parts and torn:
        assert complete_prefix_size(data[: -len(torn)]) == len(data) - len(parts[-1][0])
        with pytest.raises(CorruptRecordError):
            list(batches(data[: -len(torn)]))


@given(encoded_batches(), st.data())
def test_every_changed_bit_is_noticed(
    batch_and_records: tuple[bytes, list[Record]], data: st.DataObject
) -> None:
    """But in the two fields that the log itself writes, and the length, which moves the end."""
    batch, _ = batch_and_records
    place = data.draw(st.integers(CRC_POSITION, len(batch) - 1))
    changed = bytearray(batch)
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptRecordError):
        verify(changed, 0, parse_header(changed))
    with pytest.raises(CorruptRecordError):
        decode(changed)


@given(encoded_batches(), st.data())
def test_forged_batches_are_refused_or_sound(
    batch_and_records: tuple[bytes, list[Record]], data: st.DataObject
) -> None:
    """A checksum that fits proves nothing: what `verify` lets pass, every reader must be able to decode."""
    changed = bytearray(batch_and_records[0])
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(ATTRIBUTES_POSITION, len(changed) - 1))] = data.draw(
            st.integers(0, 255)
        )
    forged = resummed(bytes(changed))
    try:
        header = parse_header(forged)
        summary = verify(forged, 0, header, max_bytes=10_000)
    except CorruptRecordError:
        return
    records = decode(forged)
    assert len(records) == header.records_count
    assert all(header.base_offset <= record.offset <= header.last_offset for record in records)
    assert sum(record.is_tombstone for record in records) == summary.tombstone_count
    assert sum(record.key is None for record in records) == summary.null_key_count
    assert (
        max((record.timestamp_ms for record in records), default=header.max_timestamp) == header.max_timestamp
    )


@given(st.one_of(st.binary(max_size=200), st.tuples(ANY_HEADER, st.binary(max_size=80))))
def test_garbage_is_refused(garbage: bytes | tuple[BatchHeader, bytes]) -> None:
    data = garbage if isinstance(garbage, bytes) else resummed(garbage[0].pack() + garbage[1])
    looks: list[Callable[[bytes], object]] = [decode, decode_all, complete_prefix_size, walked]
    for look in looks:
        try:
            look(data)
        except CorruptRecordError:
            pass


def walked(data: bytes) -> list[tuple[int, BatchHeader]]:
    return list(batches(data))


@given(ANY_HEADER, st.binary(max_size=5))
def test_headers_survive_the_bytes(header: BatchHeader, lead: bytes) -> None:
    packed = lead + header.pack()
    try:
        parsed = parse_header(packed, len(lead))
    except CorruptRecordError:
        return
    assert parsed == header
    assert parsed.magic == 2
    assert 0 <= parsed.base_offset <= parsed.last_offset < parsed.next_offset < 2**63
    assert parsed.size_in_bytes == parsed.batch_length + 12 >= HEADER_SIZE
    assert 0 <= parsed.records_count <= parsed.last_offset_delta + 1
    assert parsed.codec in Codec


@given(encoded_batches(), st.integers(0, 2**62), st.integers(-1, 2**31 - 1), st.integers(0, 9))
def test_stamping_changes_two_fields(
    batch_and_records: tuple[bytes, list[Record]], base_offset: int, leader_epoch: int, lead: int
) -> None:
    batch, records = batch_and_records
    stamped = bytearray(lead) + batch
    stamp(memoryview(stamped), lead, base_offset=base_offset, leader_epoch=leader_epoch)
    before, after = parse_header(batch), parse_header(stamped, lead)
    assert after == before._replace(base_offset=base_offset, leader_epoch=leader_epoch)
    assert crc_matches(stamped, lead, after)
    assert stamped[lead + HEADER_SIZE :] == batch[HEADER_SIZE:]
    assert [record.offset - base_offset for record in decode(stamped, lead)] == list(range(len(records)))


PRODUCERS = st.builds(
    BatchProducer,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.integers(-1, 2**31 - 1),
    st.booleans(),
)
TIMES = st.none() | st.integers(0, 2**45)


@given(RECORDS, CODECS, st.just(BatchProducer()) | PRODUCERS, TIMES, TIMES)
def test_a_header_says_what_the_batch_was_made_with(
    records: list[Record],
    codec: Codec,
    producer: BatchProducer,
    append_time_ms: int | None,
    delete_horizon_ms: int | None,
) -> None:
    batch = encode_batch(
        records,
        codec=codec,
        base_offset=5,
        leader_epoch=7,
        producer=producer,
        append_time_ms=append_time_ms,
        delete_horizon_ms=delete_horizon_ms,
    )
    header = parse_header(batch)
    assert (header.base_offset, header.leader_epoch, header.codec) == (5, 7, codec)
    found = (header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional)
    assert found == producer
    assert header.has_producer_id == (producer != BatchProducer())
    assert not header.is_control
    assert (header.append_time_ms, header.delete_horizon_ms) == (append_time_ms, delete_horizon_ms)
    assert (header.timestamp_type is TimestampType.LOG_APPEND_TIME) == (append_time_ms is not None)
    verify(batch, 0, header)
    assert decode(batch) == [
        record._replace(
            offset=5 + index, timestamp_ms=record.timestamp_ms if append_time_ms is None else append_time_ms
        )
        for index, record in enumerate(records)
    ]


@given(encoded_batches())
def test_the_highest_timestamp_must_be_true(batch_and_records: tuple[bytes, list[Record]]) -> None:
    batch, _ = batch_and_records
    forged = with_header(batch, max_timestamp=parse_header(batch).max_timestamp + 1)
    with pytest.raises(CorruptRecordError) as refused:
        verify(forged, 0, parse_header(forged))
    assert refused.value.fields["field"] == "max_timestamp"


def test_what_cannot_be_a_batch_is_refused() -> None:
    for records in (
        [],
        [Record(0, 2**63, None, None)],
        [Record(0, -(2**62) - 1, None, None), Record(0, 2**62, None, None)],
        [Record(0, 0, None, None, (("\ud800", None),))],
    ):
        with pytest.raises(InvalidRequestError):
            encode_batch(records)
    with pytest.raises(InvalidRequestError):
        encode_batch([Record(0, 0, b"k", b"v")], codec=Codec.SNAPPY, level=1)
