"""What an append must be, and that stamping changes nothing else."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from stratalog.base.errors import (
    CorruptRecordError,
    InvalidRequestError,
    LogStoreError,
    RecordTooLargeError,
    UnsupportedOperationError,
)
from stratalog.log.log_config import LogConfig
from stratalog.log.log_validator import validate_append, validate_replica
from stratalog.record.batch import decode_all
from stratalog.record.builder import encode_batch
from stratalog.record.compression import Codec
from stratalog.record.header import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    parse_header,
)
from stratalog.record.record import Record

CONFIG = LogConfig()


def batch(count: int = 3, *, key: bytes | None = b"k", codec: Codec = Codec.NONE) -> bytes:
    return encode_batch(
        [Record(0, 1000 + number, key, b"v%d" % number) for number in range(count)], codec=codec
    )


def with_header(data: bytes, **changes: int) -> bytes:
    """The batch with other header fields and a checksum that fits them."""
    header: BatchHeader = parse_header(data)._replace(**changes)
    crc = crc32c(data[HEADER_SIZE:], crc32c(header.pack()[21:]))
    return header._replace(crc=crc).pack() + data[HEADER_SIZE:]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_batches_get_consecutive_offsets_and_keep_all_else(codec: Codec, wrap: type[bytes]) -> None:
    request = wrap(batch(3, codec=codec) + batch(2, codec=codec))
    validated = validate_append(request, CONFIG)
    parts, appended = validated.stamp(2**40, 7, None)
    data = b"".join(parts)
    records = decode_all(data)
    assert [record.offset for record in records] == list(range(2**40, 2**40 + 5))
    assert [record.value for record in records] == [record.value for record in decode_all(bytes(request))]
    assert [parse_header(data, position).leader_epoch for position in (0, appended[0].size_bytes)] == [7, 7]
    assert [item.last_offset for item in appended] == [2**40 + 2, 2**40 + 4]
    assert [item.max_timestamp_ms for item in appended] == [1002, 1001]
    assert sum(item.size_bytes for item in appended) == validated.size_bytes == len(data)
    assert validated.offset_count == 5
    # Nothing but base offset and leader epoch differs.
    assert (data[8:12], data[16 : appended[0].size_bytes]) == (
        request[8:12],
        request[16 : appended[0].size_bytes],
    )


def test_the_caller_keeps_its_bytes() -> None:
    request = bytearray(batch())
    before = bytes(request)
    validate_append(request, CONFIG).stamp(99, 1, None)
    assert request == before


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_append_time_replaces_the_producers_under_a_new_checksum(codec: Codec) -> None:
    parts, appended = validate_append(batch(codec=codec), CONFIG).stamp(10, 1, 777_777)
    data = b"".join(parts)
    assert [(record.offset, record.timestamp_ms) for record in decode_all(data)] == [
        (10, 777_777),
        (11, 777_777),
        (12, 777_777),
    ]
    assert parse_header(data).attributes & TIMESTAMP_TYPE_BIT
    assert appended[0].max_timestamp_ms == 777_777
    validate_replica(data, 10)


@pytest.mark.parametrize(
    ("request_bytes", "config", "error"),
    [
        (b"", CONFIG, InvalidRequestError),
        (b"x" * 200, CONFIG, CorruptRecordError),
        (batch()[:-1], CONFIG, CorruptRecordError),
        (batch() + b"\0", CONFIG, CorruptRecordError),
        (batch()[:-1] + b"?", CONFIG, CorruptRecordError),
        (batch(), LogConfig(max_message_bytes=80), RecordTooLargeError),
        (batch(30) + batch(30) + batch(30), LogConfig(segment_bytes=1024), RecordTooLargeError),
        (with_header(batch(), attributes=CONTROL_BIT), CONFIG, UnsupportedOperationError),
        (with_header(batch(), attributes=TRANSACTIONAL_BIT), CONFIG, UnsupportedOperationError),
        (with_header(batch(), producer_id=5), CONFIG, UnsupportedOperationError),
        (with_header(batch(), attributes=TIMESTAMP_TYPE_BIT), CONFIG, InvalidRequestError),
        (with_header(batch(), attributes=DELETE_HORIZON_BIT), CONFIG, InvalidRequestError),
        (with_header(batch(), last_offset_delta=5), CONFIG, CorruptRecordError),
        (with_header(batch(), last_offset_delta=1), CONFIG, CorruptRecordError),
        (with_header(batch(), records_count=2), CONFIG, CorruptRecordError),
        (with_header(batch(), max_timestamp=5), CONFIG, CorruptRecordError),
        (with_header(batch(), max_timestamp=-2, base_timestamp=-4), CONFIG, InvalidRequestError),
        (batch(key=None), LogConfig(cleanup_policy=frozenset({"compact"})), InvalidRequestError),
    ],
)
def test_what_cannot_be_kept_is_refused(
    request_bytes: bytes, config: LogConfig, error: type[LogStoreError]
) -> None:
    with pytest.raises(error) as failure:
        validate_append(request_bytes, config)
    assert type(failure.value) is error


def test_limits_say_what_they_are() -> None:
    with pytest.raises(RecordTooLargeError) as failure:
        validate_append(batch(), LogConfig(max_message_bytes=80))
    assert failure.value.fields == {"size_bytes": len(batch()), "max_bytes": 80}


def test_a_compacted_topic_takes_keyed_records_and_tombstones() -> None:
    tombstone = encode_batch([Record(0, 1, b"k", None)])
    validate_append(batch() + tombstone, LogConfig(cleanup_policy=frozenset({"compact", "delete"})))


def test_a_replicas_offsets_must_ascend() -> None:
    first = encode_batch([Record(0, 1, b"k", b"v")] * 2, base_offset=5)
    second = encode_batch([Record(0, 1, b"k", b"v")], base_offset=9)
    assert validate_replica(first + second, 5).headers[-1].last_offset == 9
    for request, next_offset in ((first, 6), (second + first, 0), (first + first, 0), (first[:-1], 0)):
        with pytest.raises(CorruptRecordError):
            validate_replica(request, next_offset)
    with pytest.raises(InvalidRequestError):
        validate_replica(b"", 0)
