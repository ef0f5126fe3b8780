"""The kernel that accepts a request as a whole, beside the rules that look at it batch by batch."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import LogStoreError
from stratalog.log.append import log_validator
from stratalog.log.append.log_validator import validate_append
from stratalog.log.append.validated_append import ValidatedAppend
from stratalog.log.config_key import LONG_MAX
from stratalog.log.log_config import CompressionType, LogConfig
from stratalog.record.batch import batches
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    TimestampType,
    parse_header,
)
from stratalog.record.native import pure_batch_kernels
from stratalog.record.record import Record
from tests.support.kernels import native, needs_native
from tests.support.logs.plain_batches import with_header

NOW_MS = 1_000_000
BOUND_MS = 1000
"""Records may be so much older and newer."""

RECORDS = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.sampled_from([-1, NOW_MS - BOUND_MS - 1, NOW_MS - BOUND_MS, NOW_MS, NOW_MS + BOUND_MS])
        | st.sampled_from([NOW_MS + BOUND_MS + 1, 0, 2**62]),
        st.none() | st.just(b"key"),
        st.none() | st.binary(max_size=8),
    ),
    min_size=1,
    max_size=4,
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "attributes": st.sampled_from(
            [0, 0x80, TRANSACTIONAL_BIT, CONTROL_BIT, TIMESTAMP_TYPE_BIT, DELETE_HORIZON_BIT, 5]
        ),
        "max_timestamp": st.sampled_from([-1, 0, NOW_MS, 2**63 - 1]),
        "base_timestamp": st.sampled_from([-1, 0, NOW_MS, -(2**63), 2**63 - 1]),
        "last_offset_delta": st.integers(-1, 4),
        "records_count": st.integers(-1, 4),
        "base_offset": st.sampled_from([-1, 0, 7, 2**63 - 1]),
        "producer_id": st.integers(-2, 1),
        "producer_epoch": st.integers(-1, 1),
        "base_sequence": st.integers(-1, 1),
        "magic": st.integers(1, 3),
        "batch_length": st.integers(0, 100),
    },
)


@st.composite
def configs(draw: st.DrawFn) -> LogConfig:
    return LogConfig(
        cleanup_policy=frozenset({draw(st.sampled_from(["compact", "delete"]))}),
        compression_type=draw(
            st.sampled_from([CompressionType.PRODUCER, CompressionType.UNCOMPRESSED, CompressionType.ZSTD])
        ),
        message_timestamp_type=draw(st.sampled_from(TimestampType)),
        max_message_bytes=draw(st.sampled_from([80, 1000])),
        segment_bytes=draw(st.sampled_from([100, 2000])),
        message_timestamp_before_max_ms=BOUND_MS,
        message_timestamp_after_max_ms=draw(st.sampled_from([BOUND_MS, LONG_MAX])),
    )


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Sound batches, most of them plain; one may have other header fields, and one byte another value."""
    request = b""
    for _ in range(draw(st.integers(1, 3))):
        producer = draw(st.just(BatchProducer()) | st.just(BatchProducer(5, 0, 3)))
        codec = draw(st.sampled_from([Codec.NONE] * 5 + [Codec.GZIP]))
        batch = encode_batch(draw(RECORDS), codec=codec, producer=producer)
        if draw(st.integers(0, 3)) == 0:
            batch = with_header(batch, **draw(CHANGES))
        request += batch
    if draw(st.integers(0, 4)) == 0:
        place = draw(st.integers(0, len(request) - 1))
        request = request[:place] + bytes([draw(st.integers(0, 255))]) + request[place + 1 :]
    return request[: draw(st.just(len(request)) | st.integers(0, len(request)))]


class Judged(NamedTuple):
    """A request, as the rules judge it one by one."""

    validated: ValidatedAppend | None
    """None if it is refused."""
    must_be_accepted: bool
    """It breaks no rule, and is stored as it is."""


def judged(request: bytes, config: LogConfig) -> Judged:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_validator, "accept_append", pure_batch_kernels.accept_append)
        try:
            validated = validate_append(request, config, NOW_MS)
        except LogStoreError:
            return Judged(None, False)
    headers = [header for _, header in batches(validated.buffer)]
    is_plain = all(header.codec is Codec.NONE and not header.is_transactional for header in headers)
    is_stored_so = config.compression_type.codec_for(Codec.NONE) is Codec.NONE
    return Judged(validated, validated.buffer == request and is_plain and is_stored_so)


@needs_native
@given(request=requests(), config=configs())
def test_the_kernel_accepts_what_breaks_no_rule_and_is_stored_as_it_is(
    request: bytes, config: LogConfig
) -> None:
    accepted: list[object] = []

    def noting(*arguments: object) -> object:
        found = native.accept_append(*arguments)
        accepted.append(found)
        return found

    by_rules = judged(request, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_validator, "accept_append", noting)
        try:
            validated = validate_append(request, config, NOW_MS)
        except LogStoreError:
            validated = None
    assert validated == by_rules.validated
    assert by_rules.must_be_accepted == any(found is not None for found in accepted)


@needs_native
@given(
    records=st.lists(RECORDS, min_size=1, max_size=3),
    value_bytes=st.sampled_from([0, 40_000]),
    base_offset=st.integers(0, 2**40),
    leader_epoch=st.integers(-1, 2**31 - 1),
)
def test_batches_are_stamped_as_in_python(
    records: list[list[Record]], value_bytes: int, base_offset: int, leader_epoch: int
) -> None:
    """Small ones in a copy, and large ones in parts."""
    request = b"".join(
        encode_batch([*few, Record(0, NOW_MS, b"key", bytes(value_bytes))], base_offset=7) for few in records
    )
    before = bytes(bytearray(request))
    parts, appended = native.stamp_batches(request, base_offset, leader_epoch)
    expected, rows = pure_batch_kernels.stamp_batches(request, base_offset, leader_epoch)
    assert (b"".join(parts), appended) == (b"".join(expected), rows)
    assert request == before, "the request stays as it is"
    assert len(parts) == (1 if value_bytes == 0 else 2 * len(records))


@needs_native
def test_only_whole_batches_are_stamped() -> None:
    batch = encode_batch([Record(0, 1, b"key", b"value")])
    with pytest.raises(AssertionError):
        native.stamp_batches(batch + batch[:-1], 0, 0)
    assert parse_header(batch).base_offset == 0
