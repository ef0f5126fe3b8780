"""Batches cross, both ways and in every codec, between us and two encoders that share no code with us."""

from __future__ import annotations

import warnings
from typing import Any

import aiokafka.record.default_records  # type: ignore[import-untyped]  # marks no types
import pytest
from aiokafka.record.control_record import ControlRecord  # type: ignore[import-untyped]  # marks no types
from hypothesis import event, given
from hypothesis import strategies as st

from stratalog.record.batch import decode, verify
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import parse_header
from stratalog.record.record import Record

with warnings.catch_warnings():
    # It reads its schemas in a way that Python would rather see gone.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.default_records  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]

KAFKA_PYTHON: Any = kafka.record.default_records
AIOKAFKA: Any = aiokafka.record.default_records
MAX_SIZE_BYTES = 2**24

each_codec = pytest.mark.parametrize("codec", Codec)
each_other = pytest.mark.parametrize("other", [KAFKA_PYTHON, AIOKAFKA], ids=["kafka-python", "aiokafka"])

# A codec that makes a batch larger is not used by the others, so some parts are long and dull.
PARTS = (
    st.none()
    | st.binary(max_size=20)
    | st.builds(bytes.__mul__, st.binary(max_size=5), st.integers(0, 20_000))
)
HEADERS = st.lists(st.tuples(st.text(max_size=8), PARTS), max_size=3).map(tuple)
RECORDS = st.lists(
    st.builds(Record, st.just(0), st.integers(0, 2**45), PARTS, PARTS, HEADERS), min_size=1, max_size=8
)
PRODUCERS = st.just(BatchProducer()) | st.builds(
    BatchProducer,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.integers(0, 2**31 - 1),
    st.booleans(),
)


def placed(records: list[Record], base_offset: int = 0, append_time_ms: int | None = None) -> list[Record]:
    """The records as they are read."""
    return [
        record._replace(
            offset=base_offset + index,
            timestamp_ms=record.timestamp_ms if append_time_ms is None else append_time_ms,
        )
        for index, record in enumerate(records)
    ]


def read_by(other: Any, batch: bytes) -> list[Record]:
    """The records that the other one sees in a batch that it finds sound."""
    found = other.DefaultRecordBatch(batch)
    assert found.validate_crc()
    return [
        Record(
            record.offset, record.timestamp, as_bytes(record.key), as_bytes(record.value), headers_of(record)
        )
        for record in found
    ]


def headers_of(record: Any) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, as_bytes(value)) for name, value in record.headers)


def as_bytes(part: Any) -> bytes | None:
    return None if part is None else bytes(part)


@each_other
@each_codec
@given(records=RECORDS, producer=PRODUCERS)
def test_theirs_are_read_here(
    other: Any, codec: Codec, records: list[Record], producer: BatchProducer
) -> None:
    builder = other.DefaultRecordBatchBuilder(
        2,
        int(codec),
        producer.is_transactional,
        producer.producer_id,
        producer.producer_epoch,
        producer.base_sequence,
        MAX_SIZE_BYTES,
    )
    for index, record in enumerate(records):
        written = builder.append(index, record.timestamp_ms, record.key, record.value, [*record.headers])
        assert written is not None
    batch = bytes(builder.build())
    header = parse_header(batch)
    event(f"stored as {header.codec.name}")
    assert header.codec in (codec, Codec.NONE)
    assert verify(batch, 0, header).is_dense
    assert decode(batch) == placed(records)
    found = (header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional)
    assert found == producer


@each_other
@each_codec
@given(
    records=RECORDS,
    producer=PRODUCERS,
    base_offset=st.integers(0, 2**62),
    append_time_ms=st.none() | st.integers(0, 2**45),
    delete_horizon_ms=st.none() | st.integers(0, 2**45),
)
def test_ours_are_read_there(
    other: Any,
    codec: Codec,
    records: list[Record],
    producer: BatchProducer,
    base_offset: int,
    append_time_ms: int | None,
    delete_horizon_ms: int | None,
) -> None:
    batch = encode_batch(
        records,
        codec=codec,
        base_offset=base_offset,
        producer=producer,
        append_time_ms=append_time_ms,
        delete_horizon_ms=delete_horizon_ms,
    )
    assert read_by(other, batch) == placed(records, base_offset, append_time_ms)
    found = other.DefaultRecordBatch(batch)
    assert found.compression_type == codec
    assert (found.timestamp_type == 1) == (append_time_ms is not None)
    assert found.is_transactional == producer.is_transactional
    assert not found.is_control_batch
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == producer[:3]
    assert found.next_offset == base_offset + len(records)


@each_other
@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_large_batches_cross_compressed(other: Any, codec: Codec) -> None:
    """Many blocks of snappy and lz4; small batches have one."""
    records = [Record(0, 5, b"key %d" % number, b"%d" % number * 50) for number in range(3_000)]
    assert read_by(other, encode_batch(records, codec=codec)) == placed(records)
    builder = other.DefaultRecordBatchBuilder(2, int(codec), 0, -1, -1, -1, MAX_SIZE_BYTES)
    for index, record in enumerate(records):
        builder.append(index, record.timestamp_ms, record.key, record.value, [])
    batch = bytes(builder.build())
    assert parse_header(batch).codec is codec
    assert decode(batch) == placed(records)


@each_other
@pytest.mark.parametrize("control_type", ControlType)
def test_our_markers_are_read_there(other: Any, control_type: ControlType) -> None:
    batch = EndTransactionMarker(control_type, 4).to_batch(77, 3, 1234, base_offset=9)
    found = other.DefaultRecordBatch(batch)
    assert found.validate_crc()
    assert found.is_control_batch
    assert found.is_transactional
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (77, 3, -1)
    [record] = list(found)
    assert (record.offset, record.timestamp) == (9, 1234)
    if other is KAFKA_PYTHON:
        assert (record.commit, record.abort) == (
            control_type is ControlType.COMMIT,
            control_type is ControlType.ABORT,
        )
    else:
        assert ControlRecord.parse(record.key) == ControlRecord(0, int(control_type))
