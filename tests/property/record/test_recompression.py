"""A topic's own codec changes the codec and nothing else: what any decoder read before, it reads after.

The oracle is kafka-python's decoder, which shares no code with ours; header fields are compared one by one.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import RecordTooLargeError
from stratalog.log.append.log_validator import validate_append
from stratalog.log.log_config import CompressionType, LogConfig
from stratalog.record.batch import batches, decode, records_payload, verify
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec, compress
from stratalog.record.header import (
    CODEC_MASK,
    HEADER_SIZE,
    BatchHeader,
    TimestampType,
    parse_header,
)
from stratalog.record.record import Record
from tests.support.logs.plain_batches import with_header

with warnings.catch_warnings():
    # It reads its schemas in a way that Python would rather see gone.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.default_records  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]

KAFKA_PYTHON: Any = kafka.record.default_records
NOW_MS = 2**45

PARTS = (
    st.none()
    | st.binary(max_size=20)
    | st.builds(bytes.__mul__, st.binary(max_size=5), st.integers(0, 5_000))
)
RECORDS = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(0, 2**45),
        PARTS,
        PARTS,
        st.lists(st.tuples(st.text(max_size=8), PARTS), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=8,
)
PRODUCERS = st.just(BatchProducer()) | st.builds(
    BatchProducer,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.integers(0, 2**31 - 1),
    st.booleans(),
)
OWN_CODECS = [kind for kind in CompressionType if kind is not CompressionType.PRODUCER]


def seen_by_kafka_python(batch: bytes) -> list[tuple[Any, ...]]:
    found = KAFKA_PYTHON.DefaultRecordBatch(batch)
    assert found.validate_crc()
    return [
        (record.offset, record.timestamp, record.timestamp_type, record.key, record.value, record.headers)
        for record in found
    ]


def but_for_the_codec(header: BatchHeader) -> BatchHeader:
    return header._replace(batch_length=0, crc=0, attributes=header.attributes & ~CODEC_MASK)


@pytest.mark.parametrize("kind", OWN_CODECS)
@pytest.mark.parametrize("source", Codec)
@given(records=RECORDS, producer=PRODUCERS, unused_bits=st.sampled_from([0, 0x80, 0x4000, -0x8000]))
def test_every_codec_becomes_every_other_with_the_same_content(
    kind: CompressionType,
    source: Codec,
    records: list[Record],
    producer: BatchProducer,
    unused_bits: int,
) -> None:
    sent = encode_batch(records, codec=source, producer=producer)
    sent = with_header(sent, attributes=parse_header(sent).attributes | unused_bits)
    config = LogConfig(compression_type=kind, max_message_bytes=2**24)
    validated = validate_append(sent, config, NOW_MS)
    stored = bytes(validated.buffer)
    if kind.codec_for(source) is source:
        assert validated.buffer is sent, "a batch that is right already is not made again"
    [(position, after)] = batches(stored)
    before = parse_header(sent)
    verify(stored, position, after)
    assert after.codec is kind.codec_for(source)
    assert but_for_the_codec(after) == but_for_the_codec(before)
    assert records_payload(stored, 0, after) == records_payload(sent, 0, before)
    assert seen_by_kafka_python(stored) == seen_by_kafka_python(sent)
    assert (validated.offset_count, validated.max_timestamp_ms) == (len(records), after.max_timestamp)
    assert [batch.header for batch in validated.producer_batches] == [after] * after.has_producer_id
    assert validated.size_bytes == len(stored)


@given(
    sent=st.lists(st.tuples(RECORDS, st.sampled_from(Codec)), min_size=1, max_size=4),
    kind=st.sampled_from(CompressionType),
    append_time_ms=st.none() | st.integers(0, 2**45),
    base_offset=st.integers(0, 2**40),
)
def test_a_request_of_many_codecs_is_stored_in_order_under_either_time(
    sent: list[tuple[list[Record], Codec]],
    kind: CompressionType,
    append_time_ms: int | None,
    base_offset: int,
) -> None:
    times = TimestampType.CREATE_TIME if append_time_ms is None else TimestampType.LOG_APPEND_TIME
    config = LogConfig(compression_type=kind, message_timestamp_type=times, max_message_bytes=2**24)
    request = b"".join(encode_batch(records, codec=codec) for records, codec in sent)
    parts, appended = validate_append(request, config, NOW_MS).stamp(base_offset, 7, append_time_ms)
    stored = b"".join(parts)
    expected = [
        record._replace(
            offset=base_offset + index,
            timestamp_ms=record.timestamp_ms if append_time_ms is None else append_time_ms,
        )
        for index, record in enumerate(record for records, _ in sent for record in records)
    ]
    located = list(batches(stored))
    assert [record for position, _ in located for record in decode(stored, position)] == expected
    assert [header.codec for _, header in located] == [kind.codec_for(codec) for _, codec in sent]
    assert [header.size_in_bytes for _, header in located] == [batch.size_bytes for batch in appended]
    assert {header.leader_epoch for _, header in located} == {7}


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("level", [5, 8])
def test_the_level_is_the_topics(codec: Codec, level: int) -> None:
    name = codec.name.lower()
    sent = encode_batch([Record(0, 0, b"k", b" ".join(b"%d" % (number * 7) for number in range(20_000)))])
    config = LogConfig.from_overrides({"compression.type": name, f"compression.{name}.level": str(level)})
    section = bytes(validate_append(sent, config, NOW_MS).buffer)[HEADER_SIZE:]
    assert section == compress(codec, sent[HEADER_SIZE:], level)
    assert section != compress(codec, sent[HEADER_SIZE:])


def test_the_limit_is_for_the_batch_as_it_comes_and_as_it_is_stored() -> None:
    """Neither may be larger, as in Kafka, so a codec that makes a batch fit does not make it welcome."""
    dull = encode_batch([Record(0, 0, b"k", bytes(100_000))])
    packed = encode_batch([Record(0, 0, b"k", bytes(100_000))], codec=Codec.ZSTD)
    assert len(packed) < 1000
    for request, kind in ((dull, CompressionType.ZSTD), (packed, CompressionType.UNCOMPRESSED)):
        with pytest.raises(RecordTooLargeError) as failure:
            validate_append(request, LogConfig(compression_type=kind, max_message_bytes=1000), NOW_MS)
        assert failure.value.fields["size_bytes"] == len(dull)
        assert failure.value.fields["max_bytes"] == 1000
    validate_append(packed, LogConfig(max_message_bytes=1000), NOW_MS)
    # What a request takes of its segment is what is stored of it.
    small = LogConfig(compression_type=CompressionType.ZSTD, segment_bytes=2000)
    assert validate_append(dull, small, NOW_MS).size_bytes < 1000
    with pytest.raises(RecordTooLargeError):
        validate_append(dull, LogConfig(segment_bytes=2000), NOW_MS)
