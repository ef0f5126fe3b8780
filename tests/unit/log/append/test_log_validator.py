"""What an append must be, and that stamping changes nothing else."""

from __future__ import annotations

import gzip
import struct
import tracemalloc

import pytest
from crc32c import crc32c

from stratalog.base.errors import (
    CorruptRecordError,
    InvalidRequestError,
    LogStoreError,
    RecordTooLargeError,
    UnsupportedOperationError,
)
from stratalog.log.append.append_info import AppendInfo
from stratalog.log.append.log_validator import validate_append, validate_replica
from stratalog.log.log_config import CompressionType, LogConfig
from stratalog.record.batch import decode_all
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import MAX_SENT_BYTES, Codec
from stratalog.record.header import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    parse_header,
)
from stratalog.record.record import Record
from tests.support.logs.log_machine import LogMachine

CONFIG = LogConfig()
COMPACTED = LogConfig(cleanup_policy=frozenset({"compact", "delete"}))
NOW_MS = 1_000_000


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
    validated = validate_append(request, CONFIG, NOW_MS)
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
    validate_append(request, CONFIG, NOW_MS).stamp(99, 1, None)
    assert request == before


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_append_time_replaces_the_producers_under_a_new_checksum(codec: Codec) -> None:
    parts, appended = validate_append(batch(codec=codec), CONFIG, NOW_MS).stamp(10, 1, 777_777)
    data = b"".join(parts)
    assert [(record.offset, record.timestamp_ms) for record in decode_all(data)] == [
        (10, 777_777),
        (11, 777_777),
        (12, 777_777),
    ]
    assert parse_header(data).attributes & TIMESTAMP_TYPE_BIT
    assert appended[0].max_timestamp_ms == 777_777
    validate_replica(data, 10)


def forged(records: bytes, count: int = 1, **changes: int) -> bytes:
    """A batch of any bytes as records, with a header and a checksum that fit them."""
    header = parse_header(batch(count))._replace(batch_length=HEADER_SIZE - LOG_OVERHEAD + len(records))
    return with_header(header.pack() + records, **changes)


RECORD = b"\x10\0\0\0\x02k\x02v\0"
assert len(RECORD) == 9


def test_the_forged_batch_is_right_where_its_bytes_are() -> None:
    validate_append(forged(RECORD, max_timestamp=1000), CONFIG, NOW_MS)


# What is wrong, the error, and the fields that say it.
REFUSED: list[tuple[str, bytes, LogConfig, type[LogStoreError], dict[str, object]]] = [
    ("no batch", b"", CONFIG, InvalidRequestError, {}),
    ("garbage", b"x" * 200, CONFIG, CorruptRecordError, {"position": 0, "field": "magic", "value": 120}),
    ("torn", batch()[:-1], CONFIG, CorruptRecordError, {"position": 0, "missing_bytes": 1}),
    ("a byte too many", batch() + b"\0", CONFIG, CorruptRecordError, {"position": len(batch())}),
    ("a flipped bit", batch()[:-1] + b"?", CONFIG, CorruptRecordError, {"position": 0, "field": "crc"}),
    (
        "the second batch's flipped bit",
        batch() + batch()[:-1] + b"?",
        CONFIG,
        CorruptRecordError,
        {"position": len(batch()), "field": "crc"},
    ),
    (
        "Kafka's first format",
        with_header(batch(), magic=0),
        CONFIG,
        UnsupportedOperationError,
        {"position": 0, "field": "magic", "value": 0},
    ),
    (
        "Kafka's second format",
        batch() + with_header(batch(), magic=1),
        CONFIG,
        UnsupportedOperationError,
        {"position": len(batch()), "field": "magic", "value": 1},
    ),
    ("zeros", bytes(100), CONFIG, CorruptRecordError, {"field": "magic", "value": 0}),
    (
        "a short message of Kafka's second format",
        struct.pack(">qiIbbqi2si1s", 0, 25, 0, 1, 0, 5, 2, b"ke", 1, b"v"),
        CONFIG,
        UnsupportedOperationError,
        {"position": 0, "field": "magic", "value": 1},
    ),
    (
        "a record of a negative size",
        forged(b"\x01" + RECORD[1:], max_timestamp=1000),
        CONFIG,
        CorruptRecordError,
        {"record_position": 0, "field": "record_size", "value": -1},
    ),
    (
        "an overlong number",
        forged(b"\x1a\0\0" + b"\x80" * 5 + b"\0\x02k\x02v\0", max_timestamp=1000),
        CONFIG,
        CorruptRecordError,
        {"record_position": 3},
    ),
    (
        "offsets that go back",
        forged(RECORD + RECORD, 2, max_timestamp=1000),
        CONFIG,
        CorruptRecordError,
        {"record_position": 9, "field": "offset_delta", "value": 0},
    ),
    (
        "a format of the future",
        with_header(batch(), magic=3),
        CONFIG,
        CorruptRecordError,
        {"field": "magic", "value": 3},
    ),
    (
        "a negative length",
        with_header(batch(), batch_length=-1),
        CONFIG,
        CorruptRecordError,
        {"field": "batch_length", "value": -1},
    ),
    (
        "a length within the header",
        with_header(batch(), batch_length=48),
        CONFIG,
        CorruptRecordError,
        {"field": "batch_length", "value": 48},
    ),
    (
        "a negative count",
        with_header(batch(), records_count=-1),
        CONFIG,
        CorruptRecordError,
        {"field": "records_count", "value": -1},
    ),
    (
        "more records than offsets",
        with_header(batch(), records_count=4),
        CONFIG,
        CorruptRecordError,
        {"field": "records_count", "value": 4},
    ),
    (
        "a last offset below the first",
        with_header(batch(), last_offset_delta=-1),
        CONFIG,
        CorruptRecordError,
        {"field": "last_offset_delta", "value": -1},
    ),
    (
        "an offset out of range",
        with_header(batch(), base_offset=-1),
        CONFIG,
        CorruptRecordError,
        {"field": "base_offset", "value": -1},
    ),
    (
        "no such codec",
        with_header(batch(), attributes=6),
        CONFIG,
        CorruptRecordError,
        {"field": "codec", "value": 6},
    ),
    (
        "not what its codec writes",
        with_header(batch(), attributes=Codec.ZSTD),
        CONFIG,
        CorruptRecordError,
        {"codec": "ZSTD"},
    ),
    (
        "more offsets than records",
        with_header(batch(), last_offset_delta=5),
        CONFIG,
        CorruptRecordError,
        {"batch_index": 0, "records_count": 3, "last_offset_delta": 5},
    ),
    ("fewer records than it says", with_header(batch(), last_offset_delta=1), CONFIG, CorruptRecordError, {}),
    ("more records than it says", with_header(batch(), records_count=2), CONFIG, CorruptRecordError, {}),
    (
        "too large",
        batch(),
        LogConfig(max_message_bytes=80),
        RecordTooLargeError,
        {"size_bytes": len(batch()), "max_bytes": 80},
    ),
    (
        "too large for a segment",
        batch(30) * 3,
        LogConfig(segment_bytes=1024),
        RecordTooLargeError,
        {"size_bytes": len(batch(30)) * 3, "max_bytes": 1024},
    ),
    (
        "a control batch",
        with_header(batch(), attributes=CONTROL_BIT | TRANSACTIONAL_BIT, producer_id=5),
        CONFIG,
        InvalidRequestError,
        {"batch_index": 0, "field": "attributes", "value": 0x30},
    ),
    (
        "an append time",
        with_header(batch(), attributes=TIMESTAMP_TYPE_BIT),
        CONFIG,
        InvalidRequestError,
        {"batch_index": 0, "field": "attributes", "value": 0x08},
    ),
    (
        "a delete horizon",
        with_header(batch(), attributes=DELETE_HORIZON_BIT),
        CONFIG,
        InvalidRequestError,
        {"batch_index": 0, "field": "attributes", "value": 0x40},
    ),
    (
        "a transaction of nobody",
        with_header(batch(), attributes=TRANSACTIONAL_BIT),
        CONFIG,
        InvalidRequestError,
        {"field": "producer_id", "value": -1},
    ),
    (
        "a producer id that is none",
        with_header(batch(), producer_id=-2),
        CONFIG,
        InvalidRequestError,
        {"field": "producer_id", "value": -2},
    ),
    (
        "a producer without an epoch",
        with_header(batch(), producer_id=5, base_sequence=0),
        CONFIG,
        InvalidRequestError,
        {"producer_id": 5, "field": "producer_epoch", "value": -1},
    ),
    (
        "a producer without a sequence",
        with_header(batch(), producer_id=5, producer_epoch=0),
        CONFIG,
        InvalidRequestError,
        {"producer_id": 5, "field": "base_sequence", "value": -1},
    ),
    (
        "a producer's batch in company",
        with_header(batch(), producer_id=5, producer_epoch=0, base_sequence=0) + batch(),
        CONFIG,
        InvalidRequestError,
        {"batch_count": 2},
    ),
    (
        "a record without a key",
        batch() + encode_batch([Record(0, 1, b"k", b"v"), Record(0, 1, None, b"v")]),
        COMPACTED,
        InvalidRequestError,
        {"batch_index": 1, "record_index": 1, "null_key_count": 1},
    ),
    (
        "more than a batch may become",
        with_header(forged(gzip.compress(bytes(MAX_SENT_BYTES + 1), 1)), attributes=Codec.GZIP),
        CONFIG,
        RecordTooLargeError,
        {"batch_index": 0, "position": 0, "codec": "GZIP", "max_bytes": MAX_SENT_BYTES},
    ),
]
OF_THE_REQUEST = {
    *("no batch", "too large for a segment", "a producer's batch in company"),
    # They have a producer id, and would be in company.
    *("a control batch", "a producer id that is none"),
    *("a producer without an epoch", "a producer without a sequence"),
}


@pytest.mark.parametrize(
    ("request_bytes", "config", "error", "fields"),
    [case[1:] for case in REFUSED],
    ids=[case[0] for case in REFUSED],
)
def test_what_cannot_be_kept_is_refused(
    request_bytes: bytes, config: LogConfig, error: type[LogStoreError], fields: dict[str, object]
) -> None:
    with pytest.raises(error) as failure:
        validate_append(request_bytes, config, NOW_MS)
    assert type(failure.value) is error
    assert {name: failure.value.fields.get(name) for name in fields} == fields


@pytest.mark.parametrize(
    ("request_bytes", "config", "error"), [case[1:4] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_nothing_of_a_refused_request_is_stored_and_its_neighbours_are(
    request_bytes: bytes, config: LogConfig, error: type[LogStoreError]
) -> None:
    log = LogMachine(config=config).start()
    outcomes = log.appender.append_group([batch(1), request_bytes, batch(1)], 1)
    assert [type(outcome) for outcome in outcomes] == [AppendInfo, error, AppendInfo]
    assert (log.offsets.log_end_offset, log.local_log.segments.size_bytes) == (2, 2 * len(batch(1)))
    log.check()


@pytest.mark.parametrize(
    ("request_bytes", "config"),
    [case[1:3] for case in REFUSED if case[0] not in OF_THE_REQUEST],
    ids=[case[0] for case in REFUSED if case[0] not in OF_THE_REQUEST],
)
def test_a_refusal_says_which_batch_it_is_about(request_bytes: bytes, config: LogConfig) -> None:
    first, second = len(batch(1)), len(batch(1)) + len(batch())
    with pytest.raises(LogStoreError) as failure:
        validate_append(batch(1) + request_bytes, config, NOW_MS)
    told = failure.value.fields
    is_second = request_bytes.startswith(batch()) and len(request_bytes) > len(batch())
    expected = (second, 2) if is_second else (first, 1)
    assert {"position", "batch_index"} & told.keys()
    assert (told.get("position", expected[0]), told.get("batch_index", expected[1])) == expected


def test_no_two_refusals_look_alike() -> None:
    """Neither in their code, their message and their fields together, nor in what the wire shows of them."""
    seen: dict[str, str] = {}
    for name, request_bytes, config, error, _ in REFUSED:
        with pytest.raises(error) as failure:
            validate_append(request_bytes, config, NOW_MS)
        text = f"{failure.value.code} {failure.value}"
        assert text not in seen, (name, seen[text])
        seen[text] = name


def test_a_producers_batch_is_admitted_alone() -> None:
    """Whether its sequence is the next one, only the state of the producer can tell."""
    for attributes in (0, TRANSACTIONAL_BIT):
        request = with_header(
            batch(), attributes=attributes, producer_id=5, producer_epoch=0, base_sequence=2**31 - 1
        )
        [header] = validate_append(request, CONFIG, NOW_MS).headers
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 0, 2**31 - 1)
        assert header.is_transactional == bool(attributes)


def test_a_compacted_topic_takes_keyed_records_and_tombstones() -> None:
    tombstone = encode_batch([Record(0, 1, b"k", None)])
    validate_append(batch() + tombstone, COMPACTED, NOW_MS)


def test_a_replicas_offsets_must_ascend() -> None:
    first = encode_batch([Record(0, 1, b"k", b"v")] * 2, base_offset=5)
    second = encode_batch([Record(0, 1, b"k", b"v")], base_offset=9)
    assert validate_replica(first + second, 5).headers[-1].last_offset == 9
    for request, next_offset in ((first, 6), (second + first, 0), (first + first, 0), (first[:-1], 0)):
        with pytest.raises(CorruptRecordError):
            validate_replica(request, next_offset)
    with pytest.raises(InvalidRequestError):
        validate_replica(b"", 0)


def test_a_request_that_grows_over_a_segment_is_refused_before_it_is_made() -> None:
    config = LogConfig(compression_type=CompressionType.UNCOMPRESSED, segment_bytes=4 << 20)
    request = encode_batch([Record(0, 5, b"k", bytes(900 << 10))], codec=Codec.ZSTD) * 40
    tracemalloc.start()
    try:
        with pytest.raises(RecordTooLargeError) as failure:
            validate_append(request, config, NOW_MS)
        assert failure.value.fields["max_bytes"] == config.segment_bytes
        assert tracemalloc.get_traced_memory()[1] < 12 << 20, "forty times 900 KiB would be more"
    finally:
        tracemalloc.stop()


def test_one_batch_of_a_request_is_decompressed_at_a_time() -> None:
    request = encode_batch([Record(0, 5, b"k", bytes(8 << 20))], codec=Codec.ZSTD) * 5
    tracemalloc.start()
    try:
        validate_append(request, CONFIG, NOW_MS)
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()
