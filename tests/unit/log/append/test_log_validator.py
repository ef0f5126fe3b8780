"""Rules for an append; and stamping changes nothing else."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
from typing import NamedTuple

import pytest

from stratalog.base.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidRequestError,
    LogStoreError,
    RecordTooLargeError,
    UnsupportedOperationError,
)
from stratalog.log.append import log_validator
from stratalog.log.append.log_validator import validate_append, validate_replica
from stratalog.log.append.unpacking import UNLIMITED, UnpackingRoom
from stratalog.log.append_info import AppendInfo
from stratalog.log.log_config import CompressionType, LogConfig
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import LEAST_SENT_BYTES, Codec
from stratalog.record.header import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    parse_header,
)
from stratalog.record.native import pure_batch_kernels
from stratalog.record.native.batch_kernels import scan_batches
from stratalog.record.record import Record
from tests.support.decoded_records import decode_all
from tests.support.logs.log_machine import LogMachine
from tests.support.logs.plain_batches import timed_batch, with_header, with_section
from tests.support.logs.sampling import SEED

CONFIG = LogConfig()
COMPACTED = LogConfig(cleanup_policy=frozenset({"compact", "delete"}))
NOW_MS = 1_000_000


def some(count: int = 3, *, codec: Codec = Codec.NONE) -> bytes:
    return timed_batch(range(1000, 1000 + count), codec=codec, value_bytes=2)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_batches_get_consecutive_offsets_and_keep_all_else(codec: Codec, wrap: type[bytes]) -> None:
    request = wrap(some(3, codec=codec) + some(2, codec=codec))
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
    request = bytearray(some())
    before = bytes(request)
    validate_append(request, CONFIG, NOW_MS).stamp(99, 1, None)
    assert request == before


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_append_time_replaces_the_producers_under_a_new_checksum(codec: Codec) -> None:
    parts, appended = validate_append(some(codec=codec), CONFIG, NOW_MS).stamp(10, 1, 777_777)
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
    return with_section(some(count), records, **changes)


RECORD = b"\x10\0\0\0\x02k\x02v\0"
assert len(RECORD) == 9


def test_the_forged_batch_is_right_where_its_bytes_are() -> None:
    validate_append(forged(RECORD, max_timestamp=1000), CONFIG, NOW_MS)


class Refused(NamedTuple):
    """A request that cannot be kept, and the fields of the error that says why."""

    name: str
    request: bytes
    fields: dict[str, object]
    error: type[LogStoreError] = InvalidRecordError
    config: LogConfig = CONFIG

    @property
    def is_about_the_request(self) -> bool:
        """The error is not about one batch of it. Those with a producer id would be in company, too."""
        return self.name in {
            *("no batch", "too large for a segment", "a producer's batch in company", "a control batch"),
            *("a producer id that is none", "a producer without an epoch", "a producer without a sequence"),
            "more than a request may become",
        }

    def refused(self, request: bytes | None = None) -> LogStoreError:
        """The error that it gets, or that another request gets with the same configuration."""
        with pytest.raises(self.error) as failure:
            validate_append(self.request if request is None else request, self.config, NOW_MS)
        return failure.value


# One header field is changed to a value that it cannot have: the request, the field, the value.
HEADERS: list[tuple[str, str, int]] = [
    ("a format of the future", "magic", 3),
    ("a negative length", "batch_length", -1),
    ("a length within the header", "batch_length", 48),
    ("a negative count", "records_count", -1),
    ("more records than offsets", "records_count", 4),
    ("a last offset below the first", "last_offset_delta", -1),
    ("an offset out of range", "base_offset", -1),
]
# Header fields that no producer may send together: their values, and the field that the error names.
CONTRADICTIONS: list[tuple[str, dict[str, int], str, int]] = [
    (
        "a control batch",
        {"attributes": CONTROL_BIT | TRANSACTIONAL_BIT, "producer_id": 5},
        "attributes",
        CONTROL_BIT | TRANSACTIONAL_BIT,
    ),
    ("an append time", {"attributes": TIMESTAMP_TYPE_BIT}, "attributes", TIMESTAMP_TYPE_BIT),
    ("a delete horizon", {"attributes": DELETE_HORIZON_BIT}, "attributes", DELETE_HORIZON_BIT),
    ("a transaction of no producer", {"attributes": TRANSACTIONAL_BIT}, "producer_id", -1),
    ("a producer id that is none", {"producer_id": -2}, "producer_id", -2),
    ("a producer without an epoch", {"producer_id": 5, "base_sequence": 0}, "producer_epoch", -1),
    ("a producer without a sequence", {"producer_id": 5, "producer_epoch": 0}, "base_sequence", -1),
]
OF_A_PRODUCER = with_header(some(), producer_id=5, producer_epoch=0, base_sequence=0)
OLD_FORMAT = UnsupportedOperationError
LARGE = encode_batch([Record(0, 1, b"k", bytes(LEAST_SENT_BYTES * 3 // 10))], codec=Codec.ZSTD)
"""Four of these become more than a request may."""
REFUSED: list[Refused] = [
    Refused("no batch", b"", {}, InvalidRequestError),
    Refused("garbage", b"x" * 200, {"position": 0, "field": "magic", "value": 120}),
    Refused("zeros", bytes(100), {"field": "magic", "value": 0}),
    Refused("torn", some()[:-1], {"position": 0, "missing_bytes": 1}),
    Refused("a byte too many", some() + b"\0", {"position": len(some())}),
    Refused("a flipped bit", some()[:-1] + b"?", {"position": 0, "field": "crc"}),
    Refused("the second's", some() + some()[:-1] + b"?", {"position": len(some()), "field": "crc"}),
    Refused("Kafka's first format", with_header(some(), magic=0), {"position": 0, "value": 0}, OLD_FORMAT),
    Refused(
        "Kafka's second format",
        some() + with_header(some(), magic=1),
        {"position": len(some()), "field": "magic", "value": 1},
        OLD_FORMAT,
    ),
    Refused(
        "a short message of Kafka's second format",
        struct.pack(">qiIbbqi2si1s", 0, 25, 0, 1, 0, 5, 2, b"ke", 1, b"v"),
        {"position": 0, "field": "magic", "value": 1},
        OLD_FORMAT,
    ),
    Refused(
        "a record of a negative size",
        forged(b"\x01" + RECORD[1:], max_timestamp=1000),
        {"record_position": 0, "field": "record_size", "value": -1},
    ),
    Refused(
        "an overlong number",
        forged(b"\x1a\0\0" + b"\x80" * 5 + b"\0\x02k\x02v\0", max_timestamp=1000),
        {"record_position": 3},
    ),
    Refused(
        "offsets that go back",
        forged(RECORD + RECORD, 2, max_timestamp=1000),
        {"record_position": 9, "field": "offset_delta", "value": 0},
    ),
    *(
        Refused(name, with_header(some(), **{field: value}), {"field": field, "value": value})
        for name, field, value in HEADERS
    ),
    Refused("no such codec", with_header(some(), attributes=6), {"field": "codec", "value": 6}),
    Refused("not its codec's", with_header(some(), attributes=Codec.ZSTD), {"codec": "ZSTD"}),
    Refused(
        "more offsets than records",
        with_header(some(), last_offset_delta=5),
        {"batch_index": 0, "records_count": 3, "last_offset_delta": 5},
    ),
    Refused("fewer records than it says", with_header(some(), last_offset_delta=1), {}),
    Refused("more records than it says", with_header(some(), records_count=2), {}),
    Refused(
        "too large",
        some(),
        {"size_bytes": len(some()), "max_bytes": 80},
        RecordTooLargeError,
        LogConfig(max_message_bytes=80),
    ),
    Refused(
        "too large for a segment",
        some(30) * 3,
        {"size_bytes": len(some(30)) * 3, "max_bytes": 1024},
        RecordTooLargeError,
        LogConfig(segment_bytes=1024),
    ),
    Refused(
        "more than a batch may become",
        with_header(forged(gzip.compress(bytes(LEAST_SENT_BYTES + 1), 1)), attributes=Codec.GZIP),
        {"batch_index": 0, "position": 0, "codec": "GZIP", "max_bytes": LEAST_SENT_BYTES},
        RecordTooLargeError,
    ),
    Refused(
        "more than a request may become",
        LARGE * 4,
        {"batch_index": 3, "position": 3 * len(LARGE), "codec": "ZSTD"},
        RecordTooLargeError,
    ),
    *(
        Refused(name, with_header(some(), **changes), {"field": field, "value": value}, InvalidRequestError)
        for name, changes, field, value in CONTRADICTIONS
    ),
    Refused("a producer's batch in company", OF_A_PRODUCER + some(), {"batch_count": 2}, InvalidRequestError),
    Refused(
        "a record without a key",
        some() + encode_batch([Record(0, 1, b"k", b"v"), Record(0, 1, None, b"v")]),
        {"batch_index": 1, "record_index": 1, "null_key_count": 1},
        InvalidRequestError,
        COMPACTED,
    ),
]


def test_a_large_request_may_become_a_hundred_times_as_large() -> None:
    value = random.Random(1).randbytes(LEAST_SENT_BYTES // 300) + bytes(LEAST_SENT_BYTES * 3 // 10)
    large = encode_batch([Record(0, 1, b"k", value)], codec=Codec.ZSTD)
    log = LogMachine(config=LogConfig()).start()
    assert log.appender.append_as_leader(large * 4, 1).last_offset == 3


@pytest.mark.parametrize("case", REFUSED, ids=[case.name for case in REFUSED])
def test_what_cannot_be_kept_is_refused_with_its_place_and_its_neighbours_are_stored(case: Refused) -> None:
    failure = case.refused()
    assert type(failure) is case.error
    assert {name: failure.fields.get(name) for name in case.fields} == case.fields

    log = LogMachine(config=case.config).start()
    outcomes = log.appender.append_group([some(1), case.request, some(1)], 1)
    assert [type(outcome) for outcome in outcomes] == [AppendInfo, case.error, AppendInfo]
    assert (log.offsets.log_end_offset, log.local_log.segments.size_bytes) == (2, 2 * len(some(1)))
    log.check()

    if not case.is_about_the_request:
        # Behind another batch: the error says which one it is about.
        first, second = len(some(1)), len(some(1)) + len(some())
        fields = case.refused(some(1) + case.request).fields
        is_second = case.request.startswith(some()) and len(case.request) > len(some())
        position, index = (second, 2) if is_second else (first, 1)
        assert {"position", "batch_index"} & fields.keys()
        assert (fields.get("position", position), fields.get("batch_index", index)) == (position, index)


def test_no_two_refusals_look_alike() -> None:
    """Neither in their code, their message and their fields together, nor in what the wire shows of them."""
    texts = {case.name: f"{case.refused().code} {case.refused()}" for case in REFUSED}
    assert len(set(texts.values())) == len(REFUSED), texts


def test_a_producers_batch_is_admitted_alone() -> None:
    """Whether its sequence is the next one, only the state of the producer can tell."""
    for attributes in (0, TRANSACTIONAL_BIT):
        request = with_header(
            some(), attributes=attributes, producer_id=5, producer_epoch=0, base_sequence=2**31 - 1
        )
        [(header, _)] = validate_append(request, CONFIG, NOW_MS).producer_batches
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 0, 2**31 - 1)
        assert header.is_transactional == bool(attributes)


def test_a_compacted_topic_takes_keyed_records_and_tombstones() -> None:
    tombstone = encode_batch([Record(0, 1, b"k", None)])
    validate_append(some() + tombstone, COMPACTED, NOW_MS)


def test_a_replicas_offsets_must_ascend() -> None:
    first = encode_batch([Record(0, 1, b"k", b"v")] * 2, base_offset=5)
    second = encode_batch([Record(0, 1, b"k", b"v")], base_offset=9)
    assert validate_replica(first + second, 5).located[-1][1].last_offset == 9
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
        with pytest.raises(RecordTooLargeError) as refused:
            validate_append(request, config, NOW_MS)
        assert refused.value.fields["max_bytes"] == config.segment_bytes
        assert tracemalloc.get_traced_memory()[1] < 12 << 20, "forty times 900 KiB would be more"
    finally:
        tracemalloc.stop()


def test_one_batch_of_a_request_is_decompressed_at_a_time() -> None:
    request = encode_batch([Record(0, 5, b"k", bytes(8 << 20))], codec=Codec.ZSTD) * 5
    config = LogConfig(max_message_bytes=64 << 20)
    tracemalloc.start()
    try:
        validate_append(request, config, NOW_MS)
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


def test_a_plain_batch_has_the_same_summary_without_the_row_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """`proven_records` takes one call of a kernel, or three steps: nothing shows which."""
    chance = random.Random(SEED)
    for _ in range(50):
        records = [
            Record(
                0,
                chance.randint(-1, 2_000),
                chance.choice([None, b"", b"key"]),
                chance.choice([None, b"", b"v" * chance.randint(1, 300)]),
            )
            for _ in range(chance.randint(1, 8))
        ]
        data = encode_batch(records)
        header = parse_header(data)
        room = UnpackingRoom(len(data), CONFIG, UNLIMITED)
        taken, summary = log_validator.proven_records(data, 0, header, 0, room)
        assert scan_batches(data, 0, 1, 0).end_position in (0, len(data))
        with monkeypatch.context() as patch:
            patch.setattr(log_validator, "scan_batches", pure_batch_kernels.scan_batches)
            assert log_validator.proven_records(data, 0, header, 0, room) == (taken, summary)


def test_a_batch_with_holes_is_refused_by_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    data = with_header(some(3), last_offset_delta=3)
    for _ in range(2):
        with pytest.raises(InvalidRecordError) as refused:
            validate_append(data, CONFIG, NOW_MS)
        assert refused.value.fields["last_offset_delta"] == 3
        monkeypatch.setattr(log_validator, "scan_batches", pure_batch_kernels.scan_batches)
