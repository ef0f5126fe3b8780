"""Markers: known bytes, what a broker wrote, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.record.batch import decode, verify
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch, rebuild_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.control_key import ControlKey
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import ATTRIBUTES_POSITION, parse_header
from stratalog.record.record import Record
from tests.support.logs.decoded_records import decode_all

COMMIT_KEY, ABORT_KEY = b"\0\0\0\x01", b"\0\0\0\0"
TRANSACTION = BatchProducer(9, 2, is_transactional=True)


def marker(key: bytes | None, value: bytes | None) -> Record:
    return Record(3, 1, key, value)


@pytest.mark.parametrize(
    ("control_type", "key"), [(ControlType.COMMIT, COMMIT_KEY), (ControlType.ABORT, ABORT_KEY)]
)
def test_a_marker_has_kafkas_bytes(control_type: ControlType, key: bytes) -> None:
    batch = EndTransactionMarker(control_type, 258).to_batch(9, 2, 1000, base_offset=40, leader_epoch=3)
    header = parse_header(batch)
    assert len(batch) == 78
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (40, 40, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, -1)
    assert header.is_control
    assert header.is_transactional
    verify(batch, 0, header)
    assert decode(batch) == [Record(40, 1000, key, b"\0\0\0\0\x01\x02")]
    assert decode_all(batch) == []
    assert EndTransactionMarker.read(batch, 0, header) == EndTransactionMarker(control_type, 258)


def test_later_versions_may_say_more() -> None:
    key, value = b"\0\x05\0\x01more", b"\0\x03\xff\xff\xff\xffmore"
    assert EndTransactionMarker.parse(marker(key, value)) == EndTransactionMarker(ControlType.COMMIT, -1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, bytes(6)),
        (COMMIT_KEY, None),
        (COMMIT_KEY[:3], bytes(6)),
        (COMMIT_KEY, bytes(5)),
        (b"\xff\xff\0\x01", bytes(6)),
        (COMMIT_KEY, b"\xff\xff\0\0\0\0"),
        (b"\0\0\0\x02", bytes(6)),
        (b"\0\0\xff\xff", bytes(6)),
    ],
)
def test_what_ends_no_transaction_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptRecordError) as refused:
        EndTransactionMarker.parse(marker(key, value))
    assert refused.value.fields == {"offset": 3}


@given(st.binary(max_size=12), st.binary(max_size=12))
def test_garbage_is_refused_or_a_marker(key: bytes, value: bytes) -> None:
    try:
        assert EndTransactionMarker.parse(marker(key, value)).control_type in ControlType
    except CorruptRecordError:
        pass


def test_a_control_batch_holds_one_marker() -> None:
    record = marker(COMMIT_KEY, bytes(6))
    for records, codec in (([record, record], Codec.NONE), ([record], Codec.GZIP)):
        batch = encode_batch(records, codec=codec, producer=TRANSACTION, is_control=True)
        with pytest.raises(CorruptRecordError) as refused:
            EndTransactionMarker.read(batch, 0, parse_header(batch))
        assert refused.value.fields == {"base_offset": 0, "records_count": len(records)}


@pytest.mark.parametrize("control_type", [2, 3, 4, 5, 6, 7, 2**15 - 1])
@pytest.mark.parametrize("count", [1, 3])
def test_control_records_of_other_types_end_no_transaction(control_type: int, count: int) -> None:
    records = [marker(ControlKey(1, control_type).pack() + b"more", b"any")] * count
    batch = encode_batch(records, is_control=True)
    assert EndTransactionMarker.read(batch, 0, parse_header(batch)) is None
    with_marker = encode_batch([*records, marker(COMMIT_KEY, bytes(6))], is_control=True)
    with pytest.raises(CorruptRecordError) as refused:
        EndTransactionMarker.read(with_marker, 0, parse_header(with_marker))
    assert refused.value.fields == {"base_offset": 0, "records_count": count + 1}


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\x02", b"\0\0\xff\xff"])
def test_a_control_record_has_a_type(key: bytes | None) -> None:
    batch = encode_batch([marker(key, bytes(6))], is_control=True)
    with pytest.raises(CorruptRecordError) as refused:
        EndTransactionMarker.read(batch, 0, parse_header(batch))
    assert refused.value.fields == {"offset": 0}


def test_compaction_may_leave_the_batch_without_its_marker() -> None:
    batch = EndTransactionMarker(ControlType.ABORT, 1).to_batch(9, 2, 1000)
    empty = rebuild_batch(parse_header(batch), b"", records_count=0, max_timestamp=1000)
    assert EndTransactionMarker.read(empty, 0, parse_header(empty)) is None


@given(st.data())
def test_every_change_under_the_checksum_is_noticed(data: st.DataObject) -> None:
    batch = bytearray(EndTransactionMarker(ControlType.ABORT, 1).to_batch(9, 2, 1000))
    header = parse_header(batch)
    batch[data.draw(st.integers(ATTRIBUTES_POSITION, len(batch) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptRecordError):
        EndTransactionMarker.read(batch, 0, header)
